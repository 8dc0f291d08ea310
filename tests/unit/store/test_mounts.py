"""A disk that is full and one that may only be read: real file systems, mounted by the test."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.sweep import Bounds
from anbar.testing.store_contract import exists, get, put
from anbar.tier.store import Outcome
from tests.unit.store.settled import ManualTime, settled
from tests.unit.store.test_sweep import key

SIZE = 1024 * 1024
VALUE = bytes(100_000)
UNBOUNDED = Bounds(free_fraction=0.0, interval_s=3600.0)


def mount(*args: str) -> str:
    """What is wrong, or nothing."""
    done = subprocess.run(["mount", *args], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    path = tmp_path / "disk"
    path.mkdir()
    problem = mount("-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "anbar-test", str(path))
    if problem:
        pytest.skip(f"no file system can be mounted here: {problem}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def open_store(disk: Path, time: ManualTime) -> Iterator[Callable[[Bounds], FilesStore]]:
    opened: list[FilesStore] = []

    def open_it(bounds: Bounds) -> FilesStore:
        config = FilesConfig(disk, "files-test", bounds)
        opened.append(settled(FilesStore(config, b"model", time.source())))
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


Opener = Callable[[Bounds], FilesStore]


def fill(store: FilesStore) -> int:
    """Entries that went in until one did not."""
    for index in range(100):
        if put(store, key(index), VALUE) is not Outcome.HIT:
            return index
    raise AssertionError("the disk never fills up")


def other_file(disk: Path) -> Path:
    """Someone else's data, which leaves room for less than a value."""
    path = disk / "others"
    path.write_bytes(bytes(SIZE - len(VALUE) // 2))
    return path


def test_a_disk_that_others_have_filled(open_store: Opener, disk: Path, time: ManualTime) -> None:
    """The store's own entries go as far as they go, then writes are FULL, and nothing is left half written;
    what is there is read. When there is space again writes go on within a second."""
    store = open_store(UNBOUNDED)
    num = fill(store)
    assert 0 < num < 11
    assert put(store, key(50), VALUE) is Outcome.FULL
    assert not [path for path in disk.rglob("*") if path.suffix == ".tmp"]
    assert get(store, key(0), len(VALUE)) == (Outcome.HIT, VALUE)
    assert store.stats().is_writable is True
    for path in list(disk.rglob("*.kv"))[:3]:
        path.unlink()
    time.go_on(1.5)
    assert put(store, key(50), VALUE) is Outcome.HIT
    assert get(store, key(50), len(VALUE)) == (Outcome.HIT, VALUE)


def test_room_is_asked_for_before_writing(open_store: Opener, disk: Path) -> None:
    """A value for which there is no space by the file system's own account is FULL without being begun, so
    that others' writes do not fail for it meanwhile."""
    store = open_store(UNBOUNDED)
    other_file(disk)
    assert put(store, key(1), VALUE) is Outcome.FULL
    assert not list(disk.rglob("*.tmp"))
    assert not (disk / "v1").exists()


def test_a_disk_that_may_only_be_read(open_store: Opener, disk: Path, time: ManualTime) -> None:
    """Mounted read-only while engines run, as a kernel does after an error: reads and lookups go on, also of
    an entry whose time cannot be renewed; writes are FULL and told apart from a full disk; sweeps count.
    Mounted for writing again, writes go on within a second."""
    store = open_store(UNBOUNDED)
    assert put(store, key(1), VALUE) is Outcome.HIT
    time.go_on(3600)
    assert mount("-o", "remount,ro", str(disk)) == ""
    assert exists(store, key(1)) is Outcome.HIT
    assert get(store, key(1), len(VALUE)) == (Outcome.HIT, VALUE)
    assert put(store, key(2), VALUE) is Outcome.FULL
    assert store.stats().is_writable is False
    late = open_store(UNBOUNDED)
    assert late.stats().num_entries == 1
    assert get(late, key(1), len(VALUE)) == (Outcome.HIT, VALUE)
    assert mount("-o", "remount,rw", str(disk)) == ""
    assert put(store, key(2), VALUE) is Outcome.FULL  # not tried again yet
    time.go_on(1.5)
    assert put(store, key(2), VALUE) is Outcome.HIT
    assert store.stats().is_writable is True


def test_damage_on_a_disk_that_may_only_be_read(open_store: Opener, disk: Path) -> None:
    """It cannot be put aside; it is damage each time that it is read, and never a hit."""
    store = open_store(UNBOUNDED)
    put(store, key(1), VALUE)
    (path,) = disk.rglob("*.kv")
    os.truncate(path, 100)
    assert mount("-o", "remount,ro", str(disk)) == ""
    assert get(store, key(1), len(VALUE))[0] is Outcome.CORRUPT
    assert get(store, key(1), len(VALUE))[0] is Outcome.CORRUPT
