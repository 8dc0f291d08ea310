"""Stores made of stores, beyond the store contract: what is lost when what fails, and what is made good."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from anbar.adapters.store.composed import ComposedStore
from anbar.adapters.store.stamp import from_ns
from anbar.core.clock import ManualClock
from anbar.testing.memory_store import MemoryStore
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.breaker import BreakerState
from anbar.tier.composed import STAND_IN_S
from anbar.tier.placement import Rendezvous
from anbar.tier.store import Outcome, PutItem, Store, StoreStats
from tests.unit.store.composed import HungStore, directories, layered, replicated, settle
from tests.unit.store.encrypted import encrypted

KEYS = [bytes([number]) * 36 for number in range(40)]


@pytest.fixture
def members() -> list[MemoryStore]:
    return [MemoryStore(name) for name in ("a", "b", "c")]


@pytest.fixture
def store(members: list[MemoryStore]) -> Iterator[ComposedStore]:
    """Two copies on three members in memory."""
    store = replicated(members)
    yield store
    store.close()


def put_all(store: Store) -> None:
    """A value for each of KEYS."""
    items = [PutItem(key, memoryview(key * 8)) for key in KEYS]
    assert store.put(items, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)


def get_all(store: Store) -> list[Outcome]:
    """Read all of KEYS by one call; what is HIT is the right value."""
    buffers = [bytearray(36 * 8) for _ in KEYS]
    outcomes = store.get_into(KEYS, [memoryview(b) for b in buffers], scope="", timeout_s=TIMEOUT_S)
    for key, buffer, outcome in zip(KEYS, buffers, outcomes, strict=True):
        assert outcome is not Outcome.HIT or bytes(buffer) == key * 8
    return outcomes


def holders(stores: list[MemoryStore], key: bytes) -> list[str]:
    """Ids of the stores that hold a key."""
    return [store.id for store in stores if exists(store, key) is Outcome.HIT]


def test_each_entry_is_on_two_members(store: ComposedStore, members: list[MemoryStore]) -> None:
    """Forty entries by one put: one call on each member, two copies of each entry."""
    put_all(store)
    assert [member.num_calls for member in members] == [1, 1, 1]
    assert all(len(holders(members, key)) == 2 for key in KEYS)


def test_a_batch_makes_one_call_on_each_member(store: ComposedStore, members: list[MemoryStore]) -> None:
    """All entries are there: each member is asked once, for those that it is the first place of."""
    put_all(store)
    before = [member.num_calls for member in members]
    assert store.exists(KEYS, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    assert [member.num_calls - calls for member, calls in zip(members, before, strict=True)] == [2, 2, 2]


@pytest.mark.parametrize("down", ["a", "b", "c"])
def test_one_of_two_copies_may_be_lost(store: ComposedStore, members: list[MemoryStore], down: str) -> None:
    """One member refuses everything: lookups and reads find all entries, and new ones have one copy."""
    put_all(store)
    (lost,) = (member for member in members if member.id == down)
    lost.outcome = Outcome.ERROR
    assert store.exists(KEYS, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_what_a_lost_member_had_is_stored_anew() -> None:
    """One copy on three members, one of which is lost. When its breaker is open, what it had is written to
    others and found there. It comes back empty: what stood in for it is asked for some time, and what is read
    is copied back; later each key is looked for in one place again."""
    clock = ManualClock()
    members = [MemoryStore(name) for name in ("a", "b", "c")]
    store = replicated(members, copies=1, clock=clock)
    put_all(store)
    members[0].outcome = Outcome.ERROR
    while store.stats().parts[0].breaker == BreakerState.CLOSED.value:
        get_all(store)
    lost = [key for key, outcome in zip(KEYS, get_all(store), strict=True) if outcome is not Outcome.HIT]
    assert 5 < len(lost) < 25
    put_all(store)
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    members[0].outcome = None
    for key in lost:
        members[0].evict(key)
    clock.advance(60.0)
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    settle(store)
    assert all(exists(members[0], key) is Outcome.HIT for key in lost)
    places = Rendezvous(["a", "b", "c"], 1)
    unknown = next(key for key in (bytes([n]) * 36 for n in range(40, 256)) if places.of(key) == (0,))
    for later_s, num_asked in ((0.0, 2), (STAND_IN_S, 1)):
        clock.advance(later_s)
        before = sum(member.num_calls for member in members)
        assert exists(store, unknown) is Outcome.MISS
        assert sum(member.num_calls for member in members) - before == num_asked
    store.close()


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
def test_damage_in_one_copy_is_served_and_repaired(tmp_path: Path, how: str) -> None:
    """Every file of one directory is damaged: each entry is read all the same, and what was read from the
    other directory is good here again, and served when that one is gone."""
    store = replicated(directories(tmp_path, ["a", "b"]))
    put_all(store)
    for path in (tmp_path / "a").rglob("*.kv"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        if how == "delete":
            path.unlink()
        else:
            path.write_bytes(data if how == "flip" else data[:-5])
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    settle(store)
    # Where the damaged copy was the second one, nobody has read it yet.
    places = Rendezvous(["a", "b"], 2)
    first = [key for key in KEYS if places.of(key)[0] == 0]
    assert 10 < len(first) < 30
    shutil.rmtree(tmp_path / "b")
    outcomes = dict(zip(KEYS, get_all(store), strict=True))
    assert [outcomes[key] for key in first] == [Outcome.HIT] * len(first)
    store.close()


def test_a_directory_that_comes_back_empty_is_filled_by_reading(tmp_path: Path) -> None:
    """One of three directories vanishes, and an empty one takes its place: what is read from the others is
    written there again."""
    store = replicated(directories(tmp_path, ["a", "b", "c"]))
    put_all(store)
    shutil.rmtree(tmp_path / "a")
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    (tmp_path / "a").mkdir()
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    settle(store)
    assert list((tmp_path / "a").rglob("*.kv"))
    store.close()


def test_a_hung_member_costs_half_a_deadline_once() -> None:
    """One of two members hangs. The first call that asks it waits half of its time and is answered by the
    other; then its breaker is open, and nothing waits until the pause is over, when one call does again."""
    clock = ManualClock()
    hung, well = HungStore("hung", clock), MemoryStore("well")
    store = replicated([hung, well], clock=clock)
    for key in KEYS:
        put(well, key, key * 8)
    for _ in range(10):
        assert get_all(store) == [Outcome.HIT] * len(KEYS)
        assert store.exists(KEYS, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)
    assert hung.timeouts_s == [TIMEOUT_S / 2]
    assert clock.now_s() == TIMEOUT_S / 2
    clock.advance(1.0)
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    assert hung.timeouts_s == [TIMEOUT_S / 2] * 2
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    assert len(hung.timeouts_s) == 2
    store.close()


def test_a_write_waits_for_a_hung_member_once() -> None:
    """One of two members hangs: the first write takes its deadline and is a success, by the other copy; the
    next ones take no time."""
    clock = ManualClock()
    hung, well = HungStore("hung", clock), MemoryStore("well")
    store = replicated([hung, well], clock=clock)
    put_all(store)
    put_all(store)
    assert clock.now_s() == TIMEOUT_S
    assert hung.timeouts_s == [TIMEOUT_S]
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    (of_hung,) = (part for part in store.stats().parts if part.id == "hung")
    assert of_hung.breaker == BreakerState.OPEN.value
    assert of_hung.keys["store", "timeout"] == len(KEYS)
    assert of_hung.keys["store", "refused"] == len(KEYS)
    store.close()


def test_a_slow_nearer_layer_leaves_time_for_the_next() -> None:
    """The nearer two of three layers hang: a third of the time each, and the last one answers."""
    clock = ManualClock()
    hung = [HungStore("one", clock), HungStore("two", clock)]
    far = MemoryStore("far")
    store = layered([*hung, far], clock)
    put(far, KEY, VALUE)
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert [layer.timeouts_s for layer in hung] == [[TIMEOUT_S / 3], [TIMEOUT_S / 3]]
    store.close()


def test_a_call_without_time_blames_nobody(store: ComposedStore, members: list[MemoryStore]) -> None:
    """Calls with no time left are late, and no breaker opens for it."""
    put_all(store)
    item = PutItem(KEY, memoryview(VALUE))
    assert store.put([item], scope="", timeout_s=0.0) == [Outcome.TIMEOUT]
    assert store.exists([KEYS[0]], scope="", timeout_s=-1.0) == [Outcome.TIMEOUT]
    assert [part.breaker for part in store.stats().parts] == [BreakerState.CLOSED.value] * 3
    assert get_all(store) == [Outcome.HIT] * len(KEYS)


def test_all_members_down_is_an_error(store: ComposedStore, members: list[MemoryStore]) -> None:
    """Every member is late, then passed over: the whole says so, so that the breaker before it opens."""
    for member in members:
        member.outcome = Outcome.TIMEOUT
    assert set(store.exists(KEYS, scope="", timeout_s=TIMEOUT_S)) == {Outcome.TIMEOUT}
    assert set(store.exists(KEYS, scope="", timeout_s=TIMEOUT_S)) == {Outcome.ERROR}
    assert put(store, KEY, VALUE) is Outcome.ERROR


class ForgetfulStore(MemoryStore):
    """Answers for one key less than it was asked for, against its contract."""

    def exists(self, keys: Sequence[bytes], *, scope: str, timeout_s: float) -> list[Outcome]:
        return super().exists(keys, scope=scope, timeout_s=timeout_s)[1:]


def test_a_defective_member_takes_nobody_down() -> None:
    """One member raises, or leaves a key out of its answer: errors of its own, and the other one answers."""
    bad, well = ForgetfulStore("bad"), MemoryStore("well")
    store = replicated([bad, well])
    put_all(store)
    assert store.exists(KEYS, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(KEYS)
    bad.raises = ZeroDivisionError()
    assert get_all(store) == [Outcome.HIT] * len(KEYS)
    assert put(store, KEY, VALUE) is Outcome.HIT
    (part, _) = store.stats().parts
    assert part.keys["lookup", "error"] > 0
    assert part.keys["load", "error"] > 0
    store.close()


def test_a_removal_that_one_member_missed_is_not_done(
    store: ComposedStore, members: list[MemoryStore]
) -> None:
    """A member cannot be reached: neither keys nor a scope count as removed, whatever the others did. When
    it is back the removal succeeds."""
    put_all(store)
    members[0].outcome = Outcome.ERROR
    assert store.delete(KEYS, scope="", timeout_s=TIMEOUT_S) == [Outcome.ERROR] * len(KEYS)
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.ERROR
    members[0].outcome = None
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert not any(holders(members, key) for key in KEYS)


class SlowWriter(MemoryStore):
    """Writes wait until `may_write` is set, and say with `begun` that they do."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.may_write = threading.Event()
        self.begun = threading.Event()

    def put(self, items: Sequence[PutItem], *, scope: str, timeout_s: float) -> list[Outcome]:
        self.begun.set()
        self.may_write.wait()
        return super().put(items, scope=scope, timeout_s=timeout_s)


def test_a_removal_waits_for_a_copy_that_is_being_written() -> None:
    """An entry is being copied into the further layer when it is removed: without the time to wait for that
    the removal is not done, for the copy comes after it. Once more, when the copy has come: it is."""
    near, far = MemoryStore("near"), SlowWriter("far")
    store = layered([near, far], write_back=True)
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert far.begun.wait(TIMEOUT_S)
    assert store.delete([KEY], scope="", timeout_s=0.001) == [Outcome.TIMEOUT]
    far.may_write.set()
    settle(store)
    assert exists(store, KEY) is Outcome.HIT
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert exists(store, KEY) is Outcome.MISS
    store.close()


def test_what_a_further_layer_has_is_copied_into_the_nearer_one() -> None:
    """An entry is only in the last of three layers: one read, and the two others have it."""
    layers = [MemoryStore("one"), MemoryStore("two"), MemoryStore("far")]
    store = layered(layers)
    put(layers[2], KEY, VALUE)
    assert exists(store, KEY) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    settle(store)
    assert holders(layers, KEY) == ["one", "two", "far"]
    assert store.stats().parts[0].keys["repair", "hit"] == 1
    store.close()


def test_a_copy_is_worth_what_its_reader_says() -> None:
    """Three entries are in the further layer alone; what each saves is told by who reads them, and stands
    beside the copies in the nearer one. A reader that does not know says nothing."""
    layers = [MemoryStore("near"), MemoryStore("far")]
    store = layered(layers)
    for key in KEYS[:3]:
        put(layers[1], key, VALUE)
    buffers = [memoryview(bytearray(len(VALUE))) for _ in range(3)]
    found = store.get_into(KEYS[:2], buffers[:2], scope="", timeout_s=TIMEOUT_S, saves_s=[7.0, 3.0])
    assert found == store.get_into(KEYS[1:3], buffers[1:], scope="", timeout_s=TIMEOUT_S)[::-1]
    settle(store)
    assert layers[0].saves_s == {KEYS[0]: 7.0, KEYS[1]: 3.0, KEYS[2]: 0.0}
    store.close()


def test_a_repaired_file_is_worth_what_its_reader_says(tmp_path: Path) -> None:
    """One of two copies, sealed in each directory by itself, is gone: what is written there again is dated
    with what the reader said that it saves, so that eviction knows it."""
    store = replicated([encrypted(inner) for inner in directories(tmp_path, ["a", "b"])])
    assert put(store, KEY, VALUE) is Outcome.HIT
    first = "ab"[Rendezvous(["a", "b"], 2).of(KEY)[0]]
    (path,) = (tmp_path / first).rglob("*.kv")
    path.unlink()
    buffer = memoryview(bytearray(len(VALUE)))
    assert store.get_into([KEY], [buffer], scope="", timeout_s=TIMEOUT_S, saves_s=[5.0]) == [Outcome.HIT]
    settle(store)
    assert from_ns(path.stat().st_mtime_ns).saves_s == pytest.approx(5.0, rel=0.03)
    store.close()


def test_copies_that_find_no_room_are_dropped() -> None:
    """No memory for copies: the read is answered, nothing is copied, and that is counted."""
    layers = [MemoryStore("near"), MemoryStore("far")]
    store = layered(layers, max_waiting_bytes=len(VALUE) - 1)
    put(layers[1], KEY, VALUE)
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    settle(store)
    assert holders(layers, KEY) == ["far"]
    assert store.stats().parts[0].keys["repair", "dropped"] == 1
    store.close()


def test_write_back_does_not_wait_for_the_further_layer() -> None:
    """The further layer stands still: a write is done as soon as the nearer has it. When it moves again it
    gets the entry, with what that is worth, and `close` waits for it."""
    layers = [MemoryStore("near"), MemoryStore("far")]
    store = layered(layers, write_back=True)
    layers[1].gate.clear()
    item = PutItem(KEY, memoryview(VALUE), saves_s=7.0)
    assert store.put([item], scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT]
    layers[1].gate.set()
    store.close()
    assert get(_reopened(layers[1]), KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert layers[1].saves_s == {KEY: 7.0}


def _reopened(store: MemoryStore) -> MemoryStore:
    store._closed = False
    return store


def test_write_back_that_finds_no_memory_writes_through() -> None:
    """No memory for copies: the write goes to both layers before it is done."""
    layers = [MemoryStore("near"), MemoryStore("far")]
    store = layered(layers, write_back=True, max_waiting_bytes=len(VALUE) - 1)
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert holders(layers, KEY) == ["near", "far"]
    store.close()


@pytest.mark.parametrize("outcome", [Outcome.FULL, Outcome.ERROR, Outcome.TIMEOUT])
def test_write_back_goes_to_the_further_layer_when_the_nearer_fails(outcome: Outcome) -> None:
    """The nearer layer is full, refuses or is late: the further one has the entry when the write is done."""
    layers = [MemoryStore("near"), MemoryStore("far")]
    store = layered(layers, write_back=True)
    layers[0].outcome = outcome
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert exists(layers[1], KEY) is Outcome.HIT
    store.close()


def test_an_evicted_key_is_told_when_no_layer_has_it() -> None:
    """Both layers drop an entry, one after the other: it is told with the second. One that was written again
    in between is not."""
    layers = [MemoryStore("near"), MemoryStore("far")]
    store = layered(layers)
    for key in (KEY, OTHER):
        put(store, key, VALUE)
        layers[0].evict(key)
    assert store.take_evicted() == []
    put(store, OTHER, VALUE)
    for key in (KEY, OTHER):
        layers[1].evict(key)
    assert store.take_evicted() == [KEY]
    store.close()


def test_occupancy_of_copies_and_layers() -> None:
    """Copies count as they are stored; of layers the last one counts; the parts are told by name, and those
    of a part after it, each with what it holds, may hold and has evicted."""
    members = [MemoryStore("a", capacity_bytes=10**6), MemoryStore("b", capacity_bytes=10**6)]
    copies = replicated(members)
    store = layered([MemoryStore("near", capacity_bytes=1), copies])
    assert put(store, KEY, VALUE) is Outcome.HIT
    stats = store.stats()
    assert stats.num_entries == 2
    assert stats.used_bytes == 2 * len(VALUE)
    assert stats.capacity_bytes == 2 * 10**6
    assert [part.id for part in stats.parts] == ["near", "replicated-test", "a", "b"]
    assert stats.parts[0].keys["store", "full"] == 1
    size = len(VALUE)
    assert [part.used_bytes for part in stats.parts] == [0, 2 * size, size, size]
    assert [part.capacity_bytes for part in stats.parts] == [1, 2 * 10**6, 10**6, 10**6]
    members[0].evict(KEY)
    assert store.take_evicted() == []
    assert [part.num_evicted for part in store.stats().parts] == [0, 0, 1, 0]
    assert StoreStats(None, None, None).parts == ()
    store.close()


def test_closing_closes_every_member(store: ComposedStore, members: list[MemoryStore]) -> None:
    """After `close` the members answer ERROR too."""
    put(store, KEY, VALUE)
    store.close()
    assert [exists(member, KEY) for member in members] == [Outcome.ERROR] * 3
