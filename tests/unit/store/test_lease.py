"""A caller's memory while threads of the store work on it, and afterwards."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.adapters.store.entries import Value
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.lease import Lease, LeaseEnded
from anbar.testing.store_contract import KEY, VALUE, exists, get, put
from anbar.tier.store import Outcome, PutItem
from tests.unit.store.settled import QUIET, settled
from tests.waiting import PATIENCE_S

LARGE = bytes(range(251)) * 2600
"""Several pieces, the last of which is short."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FilesStore]:
    opened = settled(FilesStore(FilesConfig(tmp_path / "store", "lease-test", QUIET), b"model"))
    yield opened
    opened.close()


def ended(buffer: bytearray) -> Lease:
    """Of a call that is over."""
    lease = Lease(memoryview(buffer))
    lease.end()
    return lease


def test_nothing_is_copied_after_the_end() -> None:
    """A thread comes late with a piece that it has read, another wants to read: both are told, and the memory
    is as the caller left it; it may be unmapped, too, for nobody refers to it."""
    buffer = bytearray(b"caller's")
    lease = ended(buffer)
    buffer.extend(b" own")
    del buffer[-4:]
    piece = np.zeros(4, dtype=np.uint8)
    with pytest.raises(LeaseEnded):
        lease.write(0, piece)
    with pytest.raises(LeaseEnded):
        lease.read(0, piece)
    assert bytes(buffer) == b"caller's"
    assert not piece.any()


def test_threads_and_the_end_race() -> None:
    """A thread writes again and again until it is told that the call is over: what the memory holds when
    `end` has returned is what it holds for good."""
    for _ in range(20):
        buffer = bytearray(64 * 1024)
        lease = Lease(memoryview(buffer))

        def write(lease: Lease = lease) -> None:
            number = 0
            while True:
                number = (number + 1) % 251
                try:
                    lease.write(0, np.full(lease.num_bytes, number, dtype=np.uint8))
                except LeaseEnded:
                    return

        thread = threading.Thread(target=write)
        thread.start()
        lease.end()
        left = bytes(buffer)
        thread.join(PATIENCE_S)
        assert bytes(buffer) == left


def test_a_late_read_says_nothing_of_the_file(store: FilesStore, tmp_path: Path) -> None:
    """The call is over before the file was read: TIMEOUT, not damage, and the file stays for the next one."""
    put(store, KEY, VALUE)
    buffer = bytearray(b"x" * len(VALUE))
    assert store._entries.read(Value(KEY, "", ended(buffer))) is Outcome.TIMEOUT
    assert bytes(buffer) == b"x" * len(VALUE)
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_a_late_write_leaves_nothing(store: FilesStore, tmp_path: Path) -> None:
    """The call is over before the value was copied: no entry, and no half of one."""
    assert store._entries.write(Value(KEY, "", ended(bytearray(VALUE)), 0.0)) is Outcome.TIMEOUT
    assert exists(store, KEY) is Outcome.MISS
    assert list(tmp_path.rglob("*.tmp")) == []


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(0, 300_000), min_size=1, max_size=12))
def test_values_of_any_sizes_in_one_call(tmp_path_factory: pytest.TempPathFactory, sizes: list[int]) -> None:
    """Empty ones, ones of many pieces, and small ones that share an operation: each comes back as it was."""
    root = tmp_path_factory.mktemp("any")
    store = settled(FilesStore(FilesConfig(root, "lease-test", QUIET), b"model"))
    values = [LARGE[number : number + size] for number, size in enumerate(sizes)]
    keys = [b"key %d" % number for number in range(len(values))]
    items = [PutItem(key, memoryview(value)) for key, value in zip(keys, values, strict=True)]
    assert set(store.put(items, scope="", timeout_s=PATIENCE_S)) == {Outcome.HIT}
    buffers = [memoryview(bytearray(len(value))) for value in values]
    assert set(store.get_into(keys, buffers, scope="", timeout_s=PATIENCE_S)) == {Outcome.HIT}
    assert [bytes(buffer) for buffer in buffers] == values
    store.close()


@pytest.mark.parametrize("offset", [0, 96, 96 + 256 * 1024, -1])
def test_damage_in_any_piece_is_found(store: FilesStore, tmp_path: Path, offset: int) -> None:
    """One bit of the header, or of the first, the second or the last piece."""
    put(store, KEY, LARGE)
    (path,) = tmp_path.rglob("*.kv")
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    assert get(store, KEY, len(LARGE))[0] is Outcome.CORRUPT
    assert exists(store, KEY) is Outcome.MISS


def test_nothing_is_written_after_close(tmp_path: Path) -> None:
    """A store is closed while its sweep is at work, and its directory removed at once: it is not made again,
    nor is anything put into it."""
    for number in range(20):
        root = tmp_path / str(number)
        store = FilesStore(FilesConfig(root, "lease-test", replace(QUIET, interval_s=0.0)), b"model")
        store.open()
        put(store, KEY, VALUE)
        store.close()
        names = {thread.name for thread in threading.enumerate()}
        assert not any(name.startswith("anbar-files") for name in names)
        shutil.rmtree(root)
