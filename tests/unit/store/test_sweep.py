"""Keeping a directory of files within its bounds."""

import fcntl
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.adapters.store import sweep
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.layout import Layout, part_of
from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.stamp import from_ns, to_ns
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.sweep import Bounds, Sweeper
from anbar.testing.store_contract import TIMEOUT_S, exists, put
from anbar.tier.store import Outcome, PutItem
from tests.unit.store.settled import QUIET, ManualTime, settled

VALUE = bytes(1000 - HEADER_BYTES)
NAMESPACE = b"model"
BOUNDS = Bounds(capacity_bytes=10_000, low_fraction=0.5, free_fraction=0.0)


def key(index: int) -> bytes:
    return index.to_bytes(36, "big")


class Rig:
    """A store whose sweeps are made by hand, and whose time goes on by hand."""

    def __init__(self, root: Path, bounds: Bounds = BOUNDS) -> None:
        self.root = root
        self.time = ManualTime()
        self.bounds = bounds
        self.store = self.open(NAMESPACE)
        self.sweeper = self.new_sweeper()

    def open(self, namespace: bytes) -> FilesStore:
        quiet = replace(QUIET, ttl_s=self.bounds.ttl_s, scopes=self.bounds.scopes)
        return settled(FilesStore(FilesConfig(self.root, "id", quiet), namespace, self.time.source()))

    def new_sweeper(self) -> Sweeper:
        """As of another engine on the directory."""
        clock = StoreClock(self.root, self.time.source())
        return Sweeper(Layout(self.root, NAMESPACE), self.bounds, clock)

    def fill(self, num: int, saves_s: float = 0.0) -> None:
        """Entries of 1,000 bytes; the i-th was last used i minutes after the first."""
        for index in range(num):
            item = PutItem(key(index), memoryview(VALUE), saves_s)
            assert self.store.put([item], scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT]
            self.time.go_on(60)

    def path(self, index: int) -> Path:
        (path,) = self.root.rglob(f"{key(index).hex()}.kv")
        return path

    def read(self, index: int) -> Outcome:
        buffer = memoryview(bytearray(len(VALUE)))
        (outcome,) = self.store.get_into([key(index)], [buffer], scope="", timeout_s=TIMEOUT_S)
        return outcome

    def left(self) -> list[int]:
        return [index for index in range(20) if exists(self.store, key(index)) is Outcome.HIT]

    def sizes(self) -> tuple[int | None, int]:
        occupancy = self.sweeper.occupancy
        return occupancy.num_entries, occupancy.used_bytes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store")
    yield rig
    rig.store.close()


def test_below_the_bound_nothing_goes(rig: Rig) -> None:
    """Seven of ten thousand bytes, with an evicting sweep from 7,500 on: only counted."""
    rig.fill(7)
    rig.sweeper.sweep()
    assert rig.left() == list(range(7))
    assert rig.sizes() == (7, 7000)


def test_the_least_recently_used_go_first(rig: Rig) -> None:
    """Nine entries of equal worth, the first read just now: the oldest four others go, down to the low mark,
    and are reported."""
    rig.fill(9)
    assert rig.read(0) is Outcome.HIT
    rig.sweeper.sweep()
    assert rig.left() == [0, 5, 6, 7, 8]
    assert Counter(rig.sweeper.take_evicted()) == Counter(key(index) for index in (1, 2, 3, 4))
    assert rig.sweeper.take_evicted() == []
    assert rig.sizes() == (5, 5000)


def test_what_saves_more_stays_longer(rig: Rig) -> None:
    """The oldest entries save a thousand times what the later ones do: those go first, in order of use. Age
    counts too: months later it is they who go, for new ones that save little."""
    rig.fill(3, saves_s=10.0)
    for index in range(3, 9):
        item = PutItem(key(index), memoryview(VALUE), 0.01)
        rig.store.put([item], scope="", timeout_s=TIMEOUT_S)
        rig.time.go_on(60)
    rig.sweeper.sweep()
    assert rig.left() == [0, 1, 2, 7, 8]
    rig.time.go_on(90 * 86_400)
    for index in range(10, 15):
        rig.store.put([PutItem(key(index), memoryview(VALUE), 0.01)], scope="", timeout_s=TIMEOUT_S)
    rig.sweeper.sweep()
    assert rig.left() == [10, 11, 12, 13, 14]


def test_a_hit_keeps_what_an_entry_saves(rig: Rig) -> None:
    """Reading dates the file anew; a put of what is there raises what it saves, and never lowers it."""
    rig.fill(1, saves_s=3.0)
    assert rig.read(0) is Outcome.HIT
    stamp = from_ns(rig.path(0).stat().st_mtime_ns)
    assert stamp.used_s == int(rig.time.wall_s)
    assert stamp.saves_s == pytest.approx(3.0, rel=0.03)
    for saves_s, most_s in [(9.0, 9.0), (1.0, 9.0)]:
        rig.store.put([PutItem(key(0), memoryview(VALUE), saves_s)], scope="", timeout_s=TIMEOUT_S)
        assert from_ns(rig.path(0).stat().st_mtime_ns).saves_s == pytest.approx(most_s, rel=0.03)


def test_a_reader_may_know_more_of_what_an_entry_saves(rig: Rig) -> None:
    """A longer prompt with the same beginning reads it: it saves more from then on, and never less."""
    rig.fill(1, saves_s=3.0)
    buffer = memoryview(bytearray(len(VALUE)))
    for saves_s, most_s in [(9.0, 9.0), (1.0, 9.0)]:
        found = rig.store.get_into([key(0)], [buffer], scope="", timeout_s=TIMEOUT_S, saves_s=[saves_s])
        assert found == [Outcome.HIT]
        assert from_ns(rig.path(0).stat().st_mtime_ns).saves_s == pytest.approx(most_s, rel=0.03)


def test_other_models_entries_go_too_but_are_not_reported(rig: Rig) -> None:
    """One bound for the directory: an old entry of another model is evicted, but its key means nothing
    here."""
    other = rig.open(b"another model")
    put(other, key(30), VALUE)
    rig.time.go_on(3600)
    rig.fill(8)
    rig.sweeper.sweep()
    assert exists(other, key(30)) is Outcome.MISS
    assert key(30) not in rig.sweeper.take_evicted()
    other.close()


def test_the_share_kept_free_is_kept(tmp_path: Path) -> None:
    """A file system with less space free than must stay so: everything goes, and nothing more is written."""
    rig = Rig(tmp_path / "store", Bounds(free_fraction=0.999999))
    rig.fill(3)
    assert not rig.sweeper.has_room(1)
    rig.sweeper.sweep()
    assert rig.left() == []
    rig.store.close()


def test_a_store_of_few_entries_makes_room(tmp_path: Path) -> None:
    """Nine entries are 94 % of the capacity, which evicts nothing by itself, and a tenth does not fit: it is
    refused once, then there is room. A value that could never fit evicts nothing."""
    rig = Rig(tmp_path / "store", Bounds(capacity_bytes=9_500, free_fraction=0.0))
    rig.fill(9)
    rig.sweeper.sweep()
    assert rig.left() == list(range(9))
    assert not rig.sweeper.has_room(20_000)
    rig.sweeper.sweep()
    assert rig.left() == list(range(9))
    assert not rig.sweeper.has_room(1000)
    rig.sweeper.sweep()
    assert rig.left() == list(range(1, 9))
    assert rig.sweeper.has_room(1000)
    rig.store.close()


def test_a_full_store_says_so_and_makes_room(tmp_path: Path) -> None:
    """Capacity for three entries: while another engine holds the sweep's lock nothing goes, and a fourth is
    told FULL; when it lets go, the sweep that this woke makes room by itself."""
    bounds = Bounds(capacity_bytes=3500, low_fraction=0.5, free_fraction=0.0, interval_s=0.05)
    store = FilesStore(FilesConfig(tmp_path / "store", "id", bounds), NAMESPACE)
    store.open()

    def put_until_it_fits(index: int) -> None:
        """What is written while a sweep runs may be counted twice, until the next sweep."""
        deadline_s = time.monotonic() + 120
        while put(store, key(index), VALUE) is not Outcome.HIT:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)

    with (tmp_path / "store" / ".sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for index in range(3):
            put_until_it_fits(index)
        assert put(store, key(3), VALUE) is Outcome.FULL
        assert not store.take_evicted()
    put_until_it_fits(3)
    assert store.take_evicted()
    store.close()


def test_one_engine_sweeps_at_a_time(rig: Rig) -> None:
    """While another engine sweeps, this one only counts."""
    rig.fill(9)
    with rig.new_sweeper()._exclusively() as alone:
        assert alone
        rig.sweeper.sweep()
        assert rig.left() == list(range(9))
    assert rig.sizes()[0] == 9
    rig.sweeper.sweep()
    assert len(rig.left()) == 5


def test_a_vanished_root_is_an_os_error(rig: Rig) -> None:
    """The sweeping thread looks again later; it must not make the root."""
    rig.store.close()
    shutil.rmtree(rig.root)
    with pytest.raises(FileNotFoundError):
        rig.sweeper.sweep()
    assert not rig.root.exists()


class SweptMeanwhile(Sweeper):
    """Another thread writes an entry of 1,000 bytes while this one has counted and not yet evicted."""

    def _need(self, num_bytes: int, share: float) -> int:
        self.wrote("/root/v1/namespace/scope/00/key.kv", 1000)
        return super()._need(num_bytes, share)


def test_what_is_written_during_a_sweep_counts(rig: Rig) -> None:
    """As bytes and as an entry, also in the first sweep of all; then what is written after it too."""
    rig.fill(3)
    bounds = Bounds(capacity_bytes=10_000, free_fraction=0.0)
    rig.sweeper = SweptMeanwhile(Layout(rig.root, NAMESPACE), bounds, StoreClock(rig.root))
    assert rig.sizes() == (None, 0)
    for _ in range(2):
        rig.sweeper.sweep()
        assert rig.sizes() == (4, 4000)
    rig.sweeper.wrote(str(rig.path(0)), 500)
    assert rig.sizes() == (5, 4500)


def test_a_sweep_that_fails_forgets_nothing(tmp_path: Path) -> None:
    """The root cannot be read for a moment: what was written before still counts towards the twentieth of the
    capacity that wakes the sweep."""
    root = tmp_path / "root"
    sweeper = Sweeper(Layout(root, NAMESPACE), Bounds(capacity_bytes=10_000), StoreClock(root))
    path = Layout(root, NAMESPACE).entry(key(1), "")
    sweeper.wrote(path, 400)
    with pytest.raises(FileNotFoundError):
        sweeper.sweep()
    assert not sweeper._wake.is_set()
    sweeper.wrote(path, 200)
    assert sweeper._wake.is_set()


def test_a_large_store_is_swept_in_parts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look ends after 600 files and directories, of which the store has twice as many: the first tells
    nearly how much there will be, the others come to the rest, and after two rounds the bound is kept, by the
    oldest of every part, though no look has seen them all."""
    monkeypatch.setattr(sweep, "_LOOK_UNITS", 600)
    rig.bounds = Bounds(capacity_bytes=500_000, free_fraction=0.0)
    rig.sweeper = rig.new_sweeper()
    items = [PutItem(key(index), memoryview(VALUE)) for index in range(700)]
    for start in range(0, 700, 10):
        rig.store.put(items[start : start + 10], scope="", timeout_s=TIMEOUT_S)
        rig.time.go_on(60)
    looks = [rig.sweeper.sweep()]
    assert rig.sizes()[1] == pytest.approx(450_000, rel=0.2)
    while sum(looks) < 512:
        looks.append(rig.sweeper.sweep())
    assert len(looks) >= 4
    found = rig.store.exists([item.key for item in items], scope="", timeout_s=TIMEOUT_S)
    assert 400 < found.count(Outcome.HIT) <= 500
    assert found[:100].count(Outcome.HIT) < 20
    assert found[-100:].count(Outcome.HIT) > 80


def test_what_others_wrote_is_found_in_parts_not_seen_yet(rig: Rig) -> None:
    """A new engine on a full directory knows after its first look that there is no room, though it has seen
    only some of the parts."""
    rig.fill(9)
    part = part_of(str(rig.path(0)))
    rig.sweeper.occupancy.begin()
    rig.sweeper.occupancy.counted({part: (1000, 1)})
    assert rig.sizes() == (256, 256_000)
    assert not rig.sweeper.has_room(1000)


def test_from_the_future_is_dated_anew(rig: Rig) -> None:
    """An entry dated by a clock that was years ahead would never be the oldest: it counts as used now, and
    keeps what it saves."""
    rig.fill(2, saves_s=3.0)
    ahead = to_ns(rig.time.wall_s + 10 * 365 * 86_400, 3.0)
    os.utime(rig.path(0), ns=(ahead, ahead))
    rig.sweeper.sweep()
    stamp = from_ns(rig.path(0).stat().st_mtime_ns)
    assert stamp.used_s == int(rig.time.wall_s)
    assert stamp.saves_s == pytest.approx(3.0, rel=0.03)
