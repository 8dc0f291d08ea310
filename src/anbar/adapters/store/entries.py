"""The file operations on one entry. They may hang, so they run on the store's threads, on bounce buffers.

Every `OSError` becomes an outcome here; nothing raises.
"""

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anbar.adapters.store.buffers import BufferPool, Bytes
from anbar.adapters.store.file_io import open_new, read_all, write_all
from anbar.adapters.store.layout import TEMP_SUFFIX, Layout, part_of
from anbar.adapters.store.quarantine import Quarantine
from anbar.adapters.store.record import HEADER_BYTES, RecordFormat
from anbar.adapters.store.rubbish import remove_some, trash_path
from anbar.adapters.store.stamp import from_ns, to_ns
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.sweep import Sweeper
from anbar.adapters.store.writable import Writable
from anbar.tier.store import Outcome, Scope

_TOUCH_AFTER_S = 30.0
"""A hit renews a file's time stamp if it is older than this: exact enough to evict by, and cheap."""
_TOUCHES_PER_TTL = 4
_REMOVED_AT_ONCE = 10_000
"""Files of a removed scope that are deleted before the call returns; more are left to the sweep. None can be
read any more."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is to be written."""

    key: bytes
    scope: Scope
    payload: Bytes
    saves_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """A store's directory and its parts. `writer` must differ for every live process and machine."""

    layout: Layout
    clock: StoreClock
    sweeper: Sweeper
    writable: Writable
    writer: str
    ttl_s: Callable[[Scope], float | None]


class Entries:
    """Operations on the entries of one namespace."""

    def __init__(self, place: Place, buffers: BufferPool) -> None:
        self._place = place
        self._layout = place.layout
        self._clock = place.clock
        self._format = RecordFormat(place.layout.namespace)
        self._quarantine = Quarantine(place.layout.version_dir, place.clock)
        self._buffers = buffers
        self._numbers = itertools.count()

    def exist(self, keys: Sequence[bytes], scope: Scope) -> list[Outcome]:
        """HIT, MISS or ERROR per key."""
        outcomes = []
        for key in keys:
            try:
                status = os.stat(self._layout.entry(key, scope))
                outcomes.append(Outcome.MISS if self._is_expired(status, scope) else Outcome.HIT)
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
            if self._is_expired(status, scope):
                return Outcome.MISS, None
            header = bytearray(HEADER_BYTES)
            is_whole = status.st_size == HEADER_BYTES + num_bytes and read_all(fd, header, payload)
            if is_whole and self._format.verifies(bytes(header), key, scope, payload):
                self._touch(path, status, scope)
                return Outcome.HIT, payload
            with suppress(OSError):
                self._quarantine.take(path, status, "content" if is_whole else "length")
        except OSError:
            return Outcome.ERROR, None
        finally:
            os.close(fd)
        self._buffers.give(payload)
        return Outcome.CORRUPT, None

    def write(self, value: Value) -> Outcome:
        """Store a value unless it is there; HIT, FULL, OVER_QUOTA or ERROR."""
        path = self._layout.entry(value.key, value.scope)
        size = HEADER_BYTES + value.payload.nbytes
        temp = path.with_name(f".{self._token()}{TEMP_SUFFIX}")
        try:
            if self._is_there(path, size, value):
                return Outcome.HIT
            if not self._place.sweeper.has_room(size):
                return Outcome.FULL
            if not self._place.sweeper.admits(value.scope, part_of(path), size):
                return Outcome.OVER_QUOTA
        except OSError as error:
            return Outcome.FULL if self._place.writable.refused(error) else Outcome.ERROR
        try:
            self._write_file(temp, value)
            os.rename(temp, path)
        except OSError as error:
            self._place.sweeper.withdrew(value.scope, part_of(path), size)
            with suppress(OSError):
                os.unlink(temp)
            return Outcome.FULL if self._place.writable.refused(error) else Outcome.ERROR
        self._place.writable.accepted()
        self._place.sweeper.wrote(path, size)
        return Outcome.HIT

    def delete(self, key: bytes, scope: Scope) -> Outcome:
        """HIT when it was there, MISS when not, else ERROR."""
        try:
            os.unlink(self._layout.entry(key, scope))
        except OSError as error:
            return self._missing(error)
        return Outcome.HIT

    def delete_scope(self, scope_dir: str) -> Outcome:
        """Remove a scope's directory in every namespace, and what is quarantined of it."""
        budget = _REMOVED_AT_ONCE
        removed = False
        try:
            for namespace in os.listdir(self._layout.version_dir):
                trash = trash_path(self._layout.version_dir, self._token())
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.rename(self._layout.version_dir / namespace / scope_dir, trash)
                    removed = True
                    budget = remove_some(trash, budget)
            self._quarantine.forget(scope_dir)
        except OSError as error:
            return self._missing(error)
        if budget <= 0:
            self._place.sweeper.wake()
        return Outcome.HIT if removed else Outcome.MISS

    def _token(self) -> str:
        return f"{self._place.writer}-{next(self._numbers)}"

    def _missing(self, error: OSError) -> Outcome:
        """MISS when just the entry is not there; ERROR when the root is not, or for any other reason."""
        if error.errno != errno.ENOENT:
            return Outcome.ERROR
        try:
            os.listdir(self._layout.root)
        except OSError:
            return Outcome.ERROR
        return Outcome.MISS

    def _write_file(self, path: Path, value: Value) -> None:
        """The checksum comes after opening: what cannot be written need not be computed."""
        fd = open_new(path, self._layout.root)
        try:
            header = self._format.header(value.key, value.scope, value.payload)
            write_all(fd, header, value.payload)
            self._date(fd, value.saves_s)
        finally:
            os.close(fd)

    def _is_there(self, path: Path, size: int, value: Value) -> bool:
        """Whether an entry of the right size exists; it counts as used, and for the most it was worth."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        self._touch(path, status, value.scope, value.saves_s)
        return status.st_size == size

    def _is_expired(self, status: os.stat_result, scope: Scope) -> bool:
        ttl_s = self._place.ttl_s(scope)
        return ttl_s is not None and self._clock.now_s() - from_ns(status.st_mtime_ns).used_s > ttl_s

    def _touch(self, path: Path, status: os.stat_result, scope: Scope, saves_s: float = 0.0) -> None:
        stamp = from_ns(status.st_mtime_ns)
        is_worth_more = saves_s > 1.1 * stamp.saves_s
        ttl_s = self._place.ttl_s(scope)
        touch_after_s = _TOUCH_AFTER_S if ttl_s is None else min(_TOUCH_AFTER_S, ttl_s / _TOUCHES_PER_TTL)
        if is_worth_more or self._clock.now_s() - stamp.used_s > touch_after_s:
            # On a read-only file system hits count all the same.
            with suppress(OSError):
                self._date(path, max(saves_s, stamp.saves_s))

    def _date(self, target: Path | int, saves_s: float) -> None:
        stamp = to_ns(self._clock.now_s(), saves_s)
        os.utime(target, ns=(stamp, stamp))
