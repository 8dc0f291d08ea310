"""The file operations on one entry. They may hang, so they run on the store's threads, on bounce buffers.

Every `OSError` becomes an outcome here; nothing raises.
"""

import errno
import itertools
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from anbar.adapters.store.buffers import BufferPool, Bytes
from anbar.adapters.store.layout import TEMP_SUFFIX, Layout
from anbar.adapters.store.record import HEADER_BYTES, RecordFormat
from anbar.adapters.store.sweep import Sweeper, remove_tree, trash_path
from anbar.tier.store import Outcome, Scope

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TOUCH_AFTER_S = 30.0
"""A hit renews a file's time stamp if it is older than this: exact enough to evict by, and cheap."""


class Entries:
    """Operations on the entries of one namespace. `writer` must differ for every live process and machine."""

    def __init__(self, layout: Layout, buffers: BufferPool, sweeper: Sweeper, writer: str) -> None:
        self._layout = layout
        self._format = RecordFormat(layout.namespace)
        self._buffers = buffers
        self._sweeper = sweeper
        self._writer = writer
        self._numbers = itertools.count()

    def exist(self, keys: Sequence[bytes], scope: Scope) -> list[Outcome]:
        """HIT, MISS or ERROR per key."""
        outcomes = []
        for key in keys:
            try:
                os.stat(self._layout.entry(key, scope))
                outcomes.append(Outcome.HIT)
            except OSError as error:
                outcomes.append(self._missing(error))
        return outcomes

    def read(self, key: bytes, scope: Scope, num_bytes: int) -> tuple[Outcome, Bytes | None]:
        """The verified value in a bounce buffer, or why there is none."""
        path = self._layout.entry(key, scope)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return self._missing(error), None
        payload = self._buffers.take(num_bytes)
        try:
            status = os.fstat(fd)
            header = bytearray(HEADER_BYTES)
            is_whole = status.st_size == HEADER_BYTES + num_bytes and _read_all(fd, header, payload)
            if is_whole and self._format.verifies(bytes(header), key, scope, payload):
                _touch(path, status)
                return Outcome.HIT, payload
            _remove_if_same(path, status)
        except OSError:
            return Outcome.ERROR, None
        finally:
            os.close(fd)
        self._buffers.give(payload)
        return Outcome.CORRUPT, None

    def write(self, key: bytes, scope: Scope, payload: Bytes) -> Outcome:
        """Store a value unless it is there; HIT, FULL or ERROR."""
        path = self._layout.entry(key, scope)
        temp = path.with_name(f".{self._writer}-{next(self._numbers)}{TEMP_SUFFIX}")
        size = HEADER_BYTES + payload.nbytes
        try:
            if _is_there(path, size):
                return Outcome.HIT
            if not self._sweeper.has_room(size):
                return Outcome.FULL
            header = self._format.header(key, scope, payload)
            self._write_file(temp, header, payload)
            os.rename(temp, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temp)
            return Outcome.FULL if error.errno in _FULL else Outcome.ERROR
        self._sweeper.wrote(size)
        return Outcome.HIT

    def delete(self, key: bytes, scope: Scope) -> Outcome:
        """HIT when it was there, MISS when not, else ERROR."""
        try:
            os.unlink(self._layout.entry(key, scope))
        except OSError as error:
            return self._missing(error)
        return Outcome.HIT

    def delete_scope(self, scope_dir: str) -> Outcome:
        """Remove a scope's directory in every namespace."""
        removed = False
        try:
            for namespace in os.listdir(self._layout.version_dir):
                trash = trash_path(self._layout.version_dir, f"{self._writer}-{next(self._numbers)}")
                path = self._layout.version_dir / namespace / scope_dir
                removed |= remove_tree(path, trash)
        except OSError as error:
            return self._missing(error)
        return Outcome.HIT if removed else Outcome.MISS

    def _missing(self, error: OSError) -> Outcome:
        """MISS when just the entry is not there; ERROR when the root is not, or for any other reason."""
        if error.errno != errno.ENOENT:
            return Outcome.ERROR
        try:
            os.listdir(self._layout.root)
        except OSError:
            return Outcome.ERROR
        return Outcome.MISS

    def _write_file(self, path: Path, header: bytes, payload: Bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self._make_dirs(path.parent)
            fd = os.open(path, flags, 0o600)
        try:
            _write_all(fd, header, payload)
        finally:
            os.close(fd)

    def _make_dirs(self, path: Path) -> None:
        """Make the directories between the root and `path`, but never the root."""
        for name in reversed(path.parents):
            if len(name.parts) > len(self._layout.root.parts):
                _make_dir(name)
        _make_dir(path)


def _make_dir(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


def _is_there(path: Path, size: int) -> bool:
    """Whether an entry of the right size exists; it counts as used."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    _touch(path, status)
    return status.st_size == size


def _touch(path: Path, status: os.stat_result) -> None:
    if time.time() - status.st_mtime > _TOUCH_AFTER_S:
        # On a read-only file system hits count all the same.
        with suppress(OSError):
            os.utime(path)


def _remove_if_same(path: Path, status: os.stat_result) -> None:
    """Remove a damaged file, unless someone replaced it meanwhile."""
    with suppress(OSError):
        if os.stat(path).st_ino == status.st_ino:
            os.unlink(path)


def _read_all(fd: int, header: bytearray, payload: Bytes) -> bool:
    """Fill both; False at a premature end of the file."""
    views = [memoryview(header), payload.data]
    while views:
        count = os.readv(fd, views)
        if count == 0:
            return False
        views = _after(views, count)
    return True


def _write_all(fd: int, header: bytes, payload: Bytes) -> None:
    views = [memoryview(header), payload.data]
    while views:
        views = _after(views, os.writev(fd, views))


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of `views` after their first `count` bytes."""
    rest = []
    for view in views:
        if count >= view.nbytes:
            count -= view.nbytes
        else:
            rest.append(view[count:])
            count = 0
    return rest
