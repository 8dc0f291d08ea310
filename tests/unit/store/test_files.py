"""The directory of files beyond the store contract: damage, faults of the file system, bounds, other
engines."""

import errno
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anbar.adapters.store.entries import Entries, Value
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.record import HEADER_BYTES
from anbar.core.errors import StoreError
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.store import Outcome
from tests.unit.store.settled import QUIET, settled

Opener = Callable[..., FilesStore]


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    """Opens stores on one directory; all are closed at the end."""
    opened: list[FilesStore] = []

    def open_store(namespace: bytes = b"model", num_threads: int = 8) -> FilesStore:
        config = FilesConfig(tmp_path / "store", "files-test", QUIET, num_threads)
        opened.append(settled(FilesStore(config, namespace)))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


def files(root: Path) -> list[Path]:
    """All entries below a store's root."""
    return sorted(root.rglob("*.kv"))


def the_file(root: Path) -> Path:
    (path,) = files(root)
    return path


@pytest.mark.parametrize("offset", [*range(HEADER_BYTES), HEADER_BYTES, HEADER_BYTES + 9, -1])
def test_a_flipped_bit_is_damage(opener: Opener, tmp_path: Path, offset: int) -> None:
    """One bit of any header byte, or of the payload's first, some, or last byte: CORRUPT, removed, and
    the key can be stored again."""
    store = opener()
    put(store, KEY, VALUE)
    path = the_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert files(tmp_path) == []
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + len(VALUE) - 1])
def test_a_truncated_file_is_damage(opener: Opener, tmp_path: Path, size: int) -> None:
    """What a crash of the machine leaves: a file that ends early. Lookups still say HIT, the read finds
    it."""
    store = opener()
    put(store, KEY, VALUE)
    os.truncate(the_file(tmp_path), size)
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert files(tmp_path) == []


def test_zeros_are_damage(opener: Opener, tmp_path: Path) -> None:
    """The right length, but nothing was written to the disk."""
    store = opener()
    put(store, KEY, VALUE)
    path = the_file(tmp_path)
    path.write_bytes(bytes(path.stat().st_size))
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT


def test_another_entrys_file_is_damage(opener: Opener, tmp_path: Path) -> None:
    """A whole, valid file copied over another key's: its payload is right, but not for this key."""
    store = opener()
    put(store, KEY, VALUE)
    source = the_file(tmp_path)
    put(store, OTHER, VALUE[::-1])
    (target,) = set(files(tmp_path)) - {source}
    shutil.copyfile(source, target)
    assert get(store, OTHER, len(VALUE))[0] is Outcome.CORRUPT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_another_scopes_file_is_damage(opener: Opener, tmp_path: Path) -> None:
    """A tenant's file moved into another tenant's directory does not verify there."""
    store = opener()
    put(store, KEY, b"a" * 64, "tenant-a")
    source = the_file(tmp_path)
    put(store, KEY, b"b" * 64, "tenant-b")
    (target,) = set(files(tmp_path)) - {source}
    shutil.copyfile(source, target)
    assert get(store, KEY, 64, "tenant-b")[0] is Outcome.CORRUPT


def test_namespaces_never_meet(opener: Opener, tmp_path: Path) -> None:
    """Two models in one directory: each misses what the other stored; a file moved across does not verify."""
    one, two = opener(b"one"), opener(b"two")
    put(one, KEY, VALUE)
    assert exists(two, KEY) is Outcome.MISS
    assert get(two, KEY, len(VALUE))[0] is Outcome.MISS
    source = the_file(tmp_path)
    put(two, KEY, VALUE)
    (target,) = set(files(tmp_path)) - {source}
    shutil.copyfile(source, target)
    assert get(two, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert get(one, KEY, len(VALUE))[0] is Outcome.HIT


def test_an_entry_of_the_wrong_size_is_replaced_by_a_put(opener: Opener, tmp_path: Path) -> None:
    """A truncated file must not stand in the way of the whole value."""
    store = opener()
    put(store, KEY, VALUE)
    os.truncate(the_file(tmp_path), 5)
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_two_engines_share(opener: Opener) -> None:
    """What one store object wrote, another one on the same directory reads."""
    one, two = opener(), opener()
    put(one, KEY, VALUE, "tenant")
    assert get(two, KEY, len(VALUE), "tenant") == (Outcome.HIT, VALUE)


def test_a_scope_is_purged_for_all_models(opener: Opener, tmp_path: Path) -> None:
    """Removing a tenant removes what every model stored for it, and nothing of others."""
    one, two = opener(b"one"), opener(b"two")
    for store in (one, two):
        put(store, KEY, VALUE, "tenant")
        put(store, KEY, VALUE, "other")
    assert one.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert len(files(tmp_path)) == 2
    assert exists(two, KEY, "tenant") is Outcome.MISS
    assert exists(two, KEY, "other") is Outcome.HIT


def test_a_vanished_root_is_an_error_until_it_is_back(opener: Opener, tmp_path: Path) -> None:
    """The mount goes away: every operation is an ERROR and nothing is made in its place; it comes back."""
    store = opener()
    put(store, KEY, VALUE)
    root, aside = tmp_path / "store", tmp_path / "aside"
    root.rename(aside)
    assert exists(store, KEY) is Outcome.ERROR
    assert get(store, KEY, len(VALUE))[0] is Outcome.ERROR
    assert put(store, OTHER, VALUE) is Outcome.ERROR
    assert store.delete([KEY], scope="", timeout_s=TIMEOUT_S) == [Outcome.ERROR]
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.ERROR
    assert not root.exists()
    aside.rename(root)
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert put(store, OTHER, VALUE) is Outcome.HIT


def test_emptied_directories_are_made_again(opener: Opener, tmp_path: Path) -> None:
    """Someone removed everything below the root: a miss, and the store goes on."""
    store = opener()
    put(store, KEY, VALUE)
    shutil.rmtree(tmp_path / "store" / "v1")
    assert exists(store, KEY) is Outcome.MISS
    assert put(store, KEY, VALUE) is Outcome.HIT


def test_a_file_where_a_directory_belongs(opener: Opener, tmp_path: Path) -> None:
    """Below the root: an ERROR of every operation. At the root: the store does not open."""
    store = opener()
    (tmp_path / "store" / "v1").write_text("in the way")
    assert exists(store, KEY) is Outcome.ERROR
    assert put(store, KEY, VALUE) is Outcome.ERROR
    path = tmp_path / "file"
    path.write_text("not a directory")
    for wrong in (path, path / "below"):
        with pytest.raises(StoreError, match="not a directory"):
            FilesStore(FilesConfig(wrong, "id"), b"").open()


def test_modes_keep_others_out(opener: Opener, tmp_path: Path) -> None:
    """Directories 0700, files 0600: KV can be turned back into text."""
    put(opener(), KEY, VALUE)
    root = tmp_path / "store"
    directories = [root, *(path for path in root.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in directories} == {0o700}
    assert the_file(root).stat().st_mode & 0o777 == 0o600


@contextmanager
def as_nobody() -> Iterator[None]:
    """Run as a user without rights; all threads of the process do."""
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def public_dir() -> Iterator[Path]:
    """A directory that every user may reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="anbar-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.parametrize(
    ("entry_mode", "expected"),
    [
        (0o600, [Outcome.HIT, Outcome.ERROR, Outcome.FULL]),
        (0o644, [Outcome.HIT, Outcome.HIT, Outcome.FULL]),
    ],
)
def test_permissions_are_outcomes(public_dir: Path, entry_mode: int, expected: list[Outcome]) -> None:
    """A directory of another user, with files that may not or may be read, but never written. The statistics
    tell this from a full disk."""
    store = settled(FilesStore(FilesConfig(public_dir / "store", "id", QUIET), b"model"))
    put(store, KEY, VALUE)
    for path in [public_dir / "store", *(public_dir / "store").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else entry_mode)
    with as_nobody():
        found = [exists(store, KEY), get(store, KEY, len(VALUE))[0], put(store, OTHER, VALUE)]
    assert found == expected
    assert store.stats().is_writable is False
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_directory_that_may_not_be_listed_is_refused(public_dir: Path) -> None:
    """At the start this is a mistake to be told, not a store without hits."""
    root = public_dir / "store"
    root.mkdir(mode=0o700)
    with as_nobody(), pytest.raises(StoreError, match="Permission denied"):
        FilesStore(FilesConfig(root, "id"), b"model").open()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_full(
    opener: Opener, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while a value is written: FULL, no half-written file is left, reads go on."""
    store = opener()
    put(store, KEY, VALUE)

    def no_space(self: Entries, path: str, value: Value) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(b"half a header")
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Entries, "_write_file", no_space)
    assert put(store, OTHER, VALUE) is Outcome.FULL
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"] == []
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert store.stats().is_writable is True


def num_reading() -> int:
    """How many threads of stores are at a file's content now; a thread that hangs at one is."""
    return sum(frame.f_code is Entries.read.__code__ for frame in sys._current_frames().values())


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_nothing_is_touched_after_the_deadline(opener: Opener, tmp_path: Path) -> None:
    """The file is a pipe that nobody writes to, as slow as a dead NFS server: the read returns TIMEOUT in
    time, and the buffer stays as it was when data comes at last."""
    store = opener()
    put(store, KEY, VALUE)
    path = the_file(tmp_path)
    path.unlink()
    os.mkfifo(path)
    buffer = bytearray(b"x" * len(VALUE))
    started_s = time.monotonic()
    found = store.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=0.2)
    assert found == [Outcome.TIMEOUT]
    assert 0.2 <= time.monotonic() - started_s < 30.0
    pipe = os.open(path, os.O_RDWR)  # a reader too, since the store's may be gone before we write
    os.write(pipe, b"late" * 64)
    until(lambda: num_reading() == 0)
    os.close(pipe)
    assert bytes(buffer) == b"x" * len(VALUE)


def test_a_hung_thread_does_not_stop_the_others(opener: Opener, tmp_path: Path) -> None:
    """One read hangs for ever; reads of other keys by the same store go on. When every thread hangs, further
    calls end in time as well."""
    store = opener(num_threads=2)
    put(store, KEY, VALUE)
    pipe = the_file(tmp_path)
    pipe.unlink()
    os.mkfifo(pipe)
    put(store, OTHER, VALUE)
    hung = [
        threading.Thread(
            target=store.get_into,
            args=([KEY], [memoryview(bytearray(64))]),
            kwargs={"scope": "", "timeout_s": 600.0},
        )
        for _ in range(2)
    ]
    hung[0].start()
    until(lambda: num_reading() == 1)
    assert get(store, OTHER, len(VALUE)) == (Outcome.HIT, VALUE)
    hung[1].start()
    until(lambda: num_reading() == 2)
    assert store.exists([OTHER], scope="", timeout_s=0.05) == [Outcome.TIMEOUT]
    writer = os.open(pipe, os.O_RDWR)  # what they wait for
    for thread in hung:
        thread.join(timeout=120)
    os.close(writer)
    assert exists(store, OTHER) is Outcome.HIT


def test_the_caller_may_reuse_its_buffer_after_a_put(opener: Opener) -> None:
    """Rows are reused as soon as the call returned: what is stored is what they held before."""
    store = opener()
    buffer = bytearray(VALUE)
    assert put(store, KEY, buffer) is Outcome.HIT
    buffer[:] = b"\x00" * len(buffer)
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_racing_writers_leave_one_whole_entry(opener: Opener, tmp_path: Path) -> None:
    """Eight threads of two stores put the same key at once: all succeed, one file, no temporary ones."""
    stores = [opener(), opener()]
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda i=i: outcomes.append(put(stores[i % 2], KEY, VALUE))) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert outcomes == [Outcome.HIT] * 8
    assert get(stores[0], KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".tmp"] == []
    assert len(files(tmp_path)) == 1
