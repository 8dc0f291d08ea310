"""What scopes may hold of a directory: quotas and times to live of their own."""

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.rations import Ration
from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.sweep import Bounds
from anbar.testing.store_contract import TIMEOUT_S, exists, get, put
from anbar.tier.eviction import Ranked, rank
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, PutItem
from tests.unit.store.settled import ManualTime, settled

QUOTAS = {"small": 4_000, "large": 9_000, "free": None}
TTLS_S = {"small": 3600.0, "large": None, "free": None}
SCOPES = Scopes(named={name: ScopeRules(QUOTAS[name], TTLS_S[name]) for name in QUOTAS})
BOUNDS = Bounds(free_fraction=0.0, low_fraction=0.5, interval_s=3600.0, ttl_s=10 * 3600.0, scopes=SCOPES)


@contextmanager
def opened(
    root: Path, time: ManualTime, bounds: Bounds = BOUNDS, namespace: bytes = b"model"
) -> Iterator[FilesStore]:
    """A store that sweeps when it is told to, and not by itself."""
    store = settled(FilesStore(FilesConfig(root, "id", bounds), namespace, time.source()))
    store._sweeper.close()
    yield store
    store.close()


def key(index: int) -> bytes:
    return index.to_bytes(36, "big")


def value(num_bytes: int) -> bytes:
    """Of an entry of so many bytes."""
    return bytes(num_bytes - HEADER_BYTES)


@dataclass
class Held:
    """An entry, as the model knows it."""

    num_bytes: int
    saves_s: float
    used_s: float


scopes = st.sampled_from(sorted(QUOTAS))
indices = st.integers(0, 5)
puts = st.tuples(
    st.just("put"),
    scopes,
    indices,
    st.sampled_from([500, 1_000, 1_500, 2_500]),
    st.sampled_from([0.001, 0.5, 8.0]),
)
steps = st.one_of(
    puts,
    puts,
    puts,
    st.tuples(st.just("read"), scopes, indices),
    st.tuples(st.just("pass"), st.sampled_from([60.0, 1800.0])),
    st.tuples(st.just("sweep")),
)


class Model:
    """A store for one engine, and beside it what should be there."""

    def __init__(self, store: FilesStore, time: ManualTime) -> None:
        self.store = store
        self.time = time
        self.held: dict[str, dict[int, Held]] = {scope: {} for scope in QUOTAS}
        self.refused: dict[str, int] = dict.fromkeys(QUOTAS, 0)

    def used(self, scope: str) -> int:
        return sum(held.num_bytes for held in self.held[scope].values())

    def put(self, scope: str, index: int, num_bytes: int, saves_s: float) -> None:
        """Equal keys have equal sizes, as an engine's have: here each size has keys of its own."""
        index = index * 10_000 + num_bytes
        item = PutItem(key(index), memoryview(value(num_bytes)), saves_s)
        (outcome,) = self.store.put([item], scope=scope, timeout_s=TIMEOUT_S)
        known, quota = self.held[scope].get(index), QUOTAS[scope]
        if known is not None:
            assert outcome is Outcome.HIT
            if self.time.steady_s - known.used_s > 30 or saves_s > 1.1 * known.saves_s:
                known.used_s = self.time.steady_s
            known.saves_s = max(known.saves_s, saves_s)
        elif quota is not None and self.used(scope) + num_bytes > quota:
            assert outcome is Outcome.OVER_QUOTA
            self.refused[scope] = max(self.refused[scope], num_bytes)
        else:
            assert outcome is Outcome.HIT
            self.held[scope][index] = Held(num_bytes, saves_s, self.time.steady_s)

    def read(self, scope: str, index: int) -> None:
        for name, held in self.held[scope].items():
            if name // 10_000 != index:
                continue
            outcome, _ = get(self.store, key(name), held.num_bytes - HEADER_BYTES, scope)
            assert outcome is (Outcome.MISS if self.is_old(scope, held) else Outcome.HIT)
            if outcome is Outcome.HIT and self.time.steady_s - held.used_s > 30:
                held.used_s = self.time.steady_s

    def is_old(self, scope: str, held: Held) -> bool:
        return self.time.steady_s - held.used_s > (TTLS_S[scope] or 10 * 3600.0)

    def sweep(self) -> None:
        """Each scope loses what is too old; one that is too full, or had no room, its own worst."""
        self.store._sweeper.sweep()
        for scope, held in self.held.items():
            left = {index for index in held if exists(self.store, key(index), scope) is Outcome.HIT}
            old = {index for index, one in held.items() if self.is_old(scope, one)}
            assert not left & old
            lost = held.keys() - left - old
            quota = QUOTAS[scope]
            used = sum(held[index].num_bytes for index in held.keys() - old)
            is_wanted = quota is not None and (
                used > 0.75 * quota or 0 < self.refused[scope] <= quota < used + self.refused[scope]
            )
            assert bool(lost) == is_wanted, (scope, lost, used)
            if lost and quota is not None:
                assert sum(held[i].num_bytes for i in left) <= quota / 2
                worst = min((self.rank(held[i]) for i in left), default=float("inf"))
                assert max(self.rank(held[i]) for i in lost) <= 1.1 * worst
            self.held[scope] = {index: held[index] for index in left}
            self.refused[scope] = 0

    def rank(self, held: Held) -> float:
        return rank(Ranked(held.num_bytes, held.saves_s, self.time.steady_s - held.used_s))

    def check(self) -> None:
        """The store counts what there is, and a quota is never passed."""
        stats = self.store.stats().scopes
        for scope, quota in QUOTAS.items():
            assert stats[scope].used_bytes == self.used(scope)
            assert stats[scope].num_entries == len(self.held[scope])
            assert stats[scope].quota_bytes == quota
            assert quota is None or self.used(scope) <= quota


@settings(max_examples=30)
@given(st.lists(steps, min_size=20, max_size=60))
def test_scopes_keep_to_their_quotas_and_lose_nothing_to_each_other(
    ops: list[tuple[str, *tuple[object, ...]]],
) -> None:
    """Any order of storing, reading, waiting and sweeping, on three scopes, one without a quota: each store
    is accepted or refused as a model says that counts bytes, no scope is ever over its quota, and a sweep
    takes from a scope only its old entries, and its worst when that scope itself has too many."""
    time = ManualTime()
    with tempfile.TemporaryDirectory() as root, opened(Path(root) / "store", time) as store:
        model = Model(store, time)
        for name, *rest in ops:
            match name, *rest:
                case "put", str(scope), int(index), int(num_bytes), float(saves_s):
                    model.put(scope, index, num_bytes, saves_s)
                case "read", str(scope), int(index):
                    model.read(scope, index)
                case "pass", float(seconds):
                    time.go_on(seconds)
                case _:
                    model.sweep()
            model.check()


def test_a_sweep_takes_from_the_scope_that_is_over(tmp_path: Path) -> None:
    """One scope is nearly full of what is worth much; another one, and what nobody bounds, of what is worth
    nothing. A sweep takes the first one's, down to half of its quota, and nothing else."""
    with opened(tmp_path / "store", ManualTime()) as store:
        saves_s = {"small": 100.0, "large": 0.0, "free": 0.0}
        for scope, index in itertools.product(QUOTAS, range(4)):
            item = PutItem(key(index), memoryview(value(1_000)), saves_s[scope])
            assert store.put([item], scope=scope, timeout_s=TIMEOUT_S) == [Outcome.HIT]
        store._sweeper.sweep()
        stats = store.stats().scopes
        assert {scope: stats[scope].used_bytes for scope in QUOTAS} == {
            "small": 2_000,
            "large": 4_000,
            "free": 4_000,
        }
        assert [stats[scope].num_evicted for scope in QUOTAS] == [2, 0, 0]


def test_several_engines_share_one_quota(tmp_path: Path) -> None:
    """Two engines write to one scope in turn. Each counts what it wrote itself, and of the other's what its
    last look has seen: together they are over by no more than that, and a sweep brings them below."""
    time = ManualTime()
    root = tmp_path / "store"
    with opened(root, time) as one, opened(root, time) as other:
        for index in range(20):
            put(one, key(index), value(1_000), "large")
            put(other, key(100 + index), value(1_000), "large")
        assert sum(path.stat().st_size for path in root.rglob("*.kv")) == 18_000
        other._sweeper.sweep()
        assert other.stats().scopes["large"].used_bytes == 4_000
        assert put(one, key(50), value(1_000), "large") is Outcome.OVER_QUOTA
        one._sweeper.sweep()
        assert one.stats().scopes["large"].used_bytes == 4_000
        assert put(one, key(50), value(1_000), "large") is Outcome.HIT


def test_the_index_is_rebuilt_at_a_restart(tmp_path: Path) -> None:
    """An engine that starts on a full scope, under another model too, knows that it is full."""
    time = ManualTime()
    root = tmp_path / "store"
    with opened(root, time) as store:
        for index in range(4):
            assert put(store, key(index), value(1_000), "small") is Outcome.HIT
    high = Bounds(free_fraction=0.0, low_fraction=1.0, interval_s=3600.0, scopes=SCOPES)
    with opened(root, time, high, b"another model") as late:
        assert late.stats().scopes["small"].used_bytes == 4_000
        assert put(late, key(9), value(1_000), "small") is Outcome.OVER_QUOTA
        assert put(late, key(9), value(1_000), "large") is Outcome.HIT


def test_unlisted_scopes_have_each_the_default_quota(tmp_path: Path) -> None:
    """Scopes that nobody has named: each may hold 3,000 bytes, and none is told of in the statistics."""
    bounds = Bounds(
        free_fraction=0.0, interval_s=3600.0, scopes=Scopes(default=ScopeRules(quota_bytes=3_000))
    )
    with opened(tmp_path / "store", ManualTime(), bounds) as store:
        for scope, index in itertools.product(["", "one", "two"], range(5)):
            expected = Outcome.HIT if index < 3 else Outcome.OVER_QUOTA
            assert put(store, key(index), value(1_000), scope) is expected
        assert store.stats().scopes == {}
        store.delete_scope("one", timeout_s=TIMEOUT_S)
        store._sweeper.sweep()
        assert put(store, key(9), value(1_000), "one") is Outcome.HIT


def test_a_value_that_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    """The place of an entry is a directory: writing fails, and the quota is not used up by that."""
    with opened(tmp_path / "store", ManualTime()) as store:
        put(store, key(0), value(1_000), "small")
        (path,) = tmp_path.rglob("*.kv")
        store.delete([key(0)], scope="small", timeout_s=TIMEOUT_S)
        (path / "in the way").mkdir(parents=True)
        for _ in range(9):
            assert put(store, key(0), value(1_000), "small") is Outcome.ERROR
        assert store.stats().scopes["small"].used_bytes == 1_000


def test_full_is_told_apart(tmp_path: Path) -> None:
    """The whole store is full before the scope is: FULL, and the scope's bytes are what it holds."""
    bounds = Bounds(2_000, free_fraction=0.0, interval_s=3600.0, scopes=SCOPES)
    with opened(tmp_path / "store", ManualTime(), bounds) as store:
        found = [put(store, key(index), value(1_000), "small") for index in range(3)]
        assert found == [Outcome.HIT, Outcome.HIT, Outcome.FULL]
        assert store.stats().scopes["small"].used_bytes == 2_000


def test_what_can_never_fit_does_not_keep_out_what_fits() -> None:
    """A value above the quota is refused; room is made for a smaller one that was refused beside it."""
    ration = Ration(1_000, 0.9)
    assert ration.admits(0, 800)
    assert ration.wants_look()
    assert not ration.admits(0, 1_001)
    assert not ration.wants_look()
    assert not ration.admits(0, 600)
    assert not ration.admits(0, 1_001)
    assert ration.need(800, 1.0) >= 400
