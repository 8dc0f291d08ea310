"""Keeping a directory of files within its bounds."""

import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.layout import Layout
from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.sweep import Bounds, Sweeper, is_older, oldest
from anbar.testing.store_contract import TIMEOUT_S, exists, put
from anbar.tier.store import Outcome
from tests.unit.store.settled import QUIET, settled

VALUE = bytes(1000 - HEADER_BYTES)
NAMESPACE = b"model"


def key(index: int) -> bytes:
    return bytes([index]) * 36


class Rig:
    """A store whose sweeps are made by hand, and its entries with made-up times of last use."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self.root = root
        self.store = settled(FilesStore(FilesConfig(root, "id", QUIET), NAMESPACE))
        self.sweeper = Sweeper(Layout(root, NAMESPACE), bounds)

    def fill(self, num: int) -> None:
        """Entries of 1,000 bytes; the i-th was last used i minutes after the first, long ago."""
        for index in range(num):
            put(self.store, key(index), VALUE)
            self.use(index, time.time() - 36_000 + 60 * index)

    def use(self, index: int, when_s: float) -> None:
        (path,) = self.root.rglob(f"{key(index).hex()}.kv")
        os.utime(path, (when_s, when_s))

    def left(self) -> list[int]:
        return [index for index in range(20) if exists(self.store, key(index)) is Outcome.HIT]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store", Bounds(capacity_bytes=10_000, low_fraction=0.5, free_fraction=0.0))
    yield rig
    rig.store.close()


@given(st.dictionaries(st.integers(0, 50), st.integers(1, 100), max_size=20), st.integers(-5, 1500))
def test_the_cutoff_is_the_earliest_that_frees_enough(seconds: dict[int, int], need: int) -> None:
    """Against the definition: everything up to the cutoff suffices, everything before it does not."""
    cutoff = oldest(seconds, need)
    if need <= 0 or not seconds:
        assert cutoff is None
        return
    assert cutoff is not None
    assert sum(n for second, n in seconds.items() if second < cutoff) < need
    freed = sum(n for second, n in seconds.items() if second <= cutoff)
    assert freed >= need or freed == sum(seconds.values())


def test_below_the_bound_nothing_goes(rig: Rig) -> None:
    """Seven of ten thousand bytes, with an evicting sweep from 7,500 on: only counted."""
    rig.fill(7)
    rig.sweeper.sweep()
    assert rig.left() == list(range(7))
    stats = rig.sweeper.stats()
    assert (stats.num_entries, stats.used_bytes, stats.capacity_bytes) == (7, 7000, 10_000)


def test_the_least_recently_used_go_first(rig: Rig) -> None:
    """Nine entries, the first used just now: the oldest four go, down to the low mark, and are reported."""
    rig.fill(9)
    rig.use(0, time.time())
    rig.sweeper.sweep()
    assert rig.left() == [0, 5, 6, 7, 8]
    assert Counter(rig.sweeper.take_evicted()) == Counter(key(index) for index in (1, 2, 3, 4))
    assert rig.sweeper.take_evicted() == []
    assert rig.sweeper.stats().used_bytes == 5000


def test_a_hit_counts_as_use(rig: Rig) -> None:
    """Reading an entry renews it: it outlives those that were written later."""
    rig.fill(9)
    buffer = bytearray(len(VALUE))
    assert rig.store.get_into([key(0)], [memoryview(buffer)], scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT]
    rig.sweeper.sweep()
    assert 0 in rig.left()


def test_other_models_entries_go_too_but_are_not_reported(rig: Rig) -> None:
    """One bound for the directory: an old entry of another model is evicted, but its key means nothing
    here."""
    other = settled(FilesStore(FilesConfig(rig.root, "id", QUIET), b"another model"))
    put(other, key(30), VALUE)
    os.utime(next(rig.root.rglob("*.kv")), (1, 1))
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


def test_what_dead_writers_left_goes(rig: Rig) -> None:
    """An old temporary file and an old half-removed scope go; young ones may still be in use."""
    rig.fill(1)
    directory = next(rig.root.rglob("*.kv")).parent
    old, young = directory / ".dead-0.tmp", directory / ".alive-0.tmp"
    trash = rig.root / "v1" / ".trash-dead-1"
    (trash / "00").mkdir(parents=True)
    for path in (old, young):
        path.write_bytes(b"half")
    for path in (old, trash):
        os.utime(path, (time.time() - 601, time.time() - 601))
    rig.sweeper.sweep()
    assert [path.exists() for path in (old, young, trash)] == [False, True, False]
    assert rig.left() == [0]


def test_one_engine_sweeps_at_a_time(rig: Rig) -> None:
    """While another engine sweeps, this one only counts."""
    rig.fill(9)
    other = Sweeper(Layout(rig.root, NAMESPACE), Bounds())
    with other._exclusively() as alone:
        assert alone
        rig.sweeper.sweep()
        assert rig.left() == list(range(9))
    assert rig.sweeper.stats().num_entries == 9
    rig.sweeper.sweep()
    assert len(rig.left()) == 5


def test_a_vanished_root_is_an_os_error(rig: Rig) -> None:
    """The sweeping thread looks again later; it must not make the root."""
    rig.store.close()
    for path in sorted(rig.root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    rig.root.rmdir()
    with pytest.raises(FileNotFoundError):
        rig.sweeper.sweep()
    assert not rig.root.exists()


class SweptMeanwhile(Sweeper):
    """Another thread writes an entry of 1,000 bytes while this one has counted and not yet evicted."""

    def _need(self, used: int) -> int:
        self.wrote(1000)
        return super()._need(used)


def test_what_is_written_during_a_sweep_counts(rig: Rig) -> None:
    """As bytes and as an entry, also in the first sweep of all; then what is written after it too."""
    rig.fill(3)
    sweeper = SweptMeanwhile(Layout(rig.root, NAMESPACE), Bounds(capacity_bytes=10_000, free_fraction=0.0))
    assert sweeper.stats().num_entries is None
    for _ in range(2):
        sweeper.sweep()
        assert (sweeper.stats().num_entries, sweeper.stats().used_bytes) == (4, 4000)
    sweeper.wrote(500)
    assert (sweeper.stats().num_entries, sweeper.stats().used_bytes) == (5, 4500)


def test_a_sweep_that_fails_forgets_nothing(tmp_path: Path) -> None:
    """The root cannot be read for a moment: what was written before still counts towards the twentieth of the
    capacity that wakes the sweep."""
    sweeper = Sweeper(Layout(tmp_path / "root", NAMESPACE), Bounds(capacity_bytes=10_000))
    sweeper.wrote(400)
    with pytest.raises(FileNotFoundError):
        sweeper.sweep()
    assert not sweeper._wake.is_set()
    sweeper.wrote(200)
    assert sweeper._wake.is_set()


def test_what_vanished_is_not_old(tmp_path: Path) -> None:
    """Another engine's sweep removes a directory between the listing and the look at its age: this must not
    end our sweep."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "gone").mkdir()
    entries = {entry.name: entry for entry in os.scandir(tmp_path)}
    (tmp_path / "gone").rmdir()
    later_s = time.time() + 100
    assert is_older(entries["kept"], 10, later_s)
    assert not is_older(entries["kept"], 1000, later_s)
    assert not is_older(entries["gone"], 10, later_s)
