"""The store of files beside `pwrite` and `pread` of the same values, opened with the same flags."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from anbar.adapters.store.files import FilesConfig, FilesStore
from benchmarks.transfer.loop import EngineCalls, Loop, Pair, Rows, on_threads

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC


def pairs(rows: Rows, directory: Path, name: str, stack: ExitStack) -> Iterator[Pair]:
    """Into a directory and back, each value a file."""
    config = FilesConfig(directory / "store", name)
    store = FilesStore(config, b"bench")
    store.open()
    calls = EngineCalls(store, rows)
    stack.callback(calls.close)
    bare = directory / "bare"
    bare.mkdir()
    paths = [f"{bare}/{number}" for number in range(len(rows.rows))]

    def forget() -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def write(index: int) -> None:
        fd = os.open(paths[index], _WRITE, 0o600)
        done = os.pwrite(fd, rows.rows[index], 0)
        os.close(fd)
        assert done == rows.num_bytes

    def read(index: int) -> None:
        fd = os.open(paths[index], _READ)
        done = os.preadv(fd, [rows.rows[index]], 0)
        os.close(fd)
        assert done == rows.num_bytes

    count = len(rows.rows)
    stored = Loop(calls.store, calls.forget)
    written = Loop(on_threads(config.num_threads, write, count), forget)
    yield Pair(f"{name}: put of pwrite", stored, written)
    yield Pair(
        f"{name}: get_into of pread", Loop(calls.load), Loop(on_threads(config.num_threads, read, count))
    )
