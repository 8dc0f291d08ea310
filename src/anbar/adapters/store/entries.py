"""The file operations on one entry. They may hang, so they run on the store's threads, on memory of these.

A value goes through that memory in pieces that stay in the processor's cache: each is copied, checked and
read or written while it lies there, so that the value itself is moved once, as without any check.

Every `OSError` becomes an outcome here; nothing raises.
"""

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from anbar.adapters.store.buffers import Bytes
from anbar.adapters.store.file_io import open_new, read_all, write_all
from anbar.adapters.store.layout import TEMP_SUFFIX, Layout, part_of
from anbar.adapters.store.lease import Lease, LeaseEnded
from anbar.adapters.store.quarantine import Quarantine
from anbar.adapters.store.record import HEADER_BYTES, RecordFormat
from anbar.adapters.store.scope_removal import Removal, ScopeRemoval
from anbar.adapters.store.stamp import from_ns, to_ns
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.sweep import Sweeper
from anbar.adapters.store.writable import Writable
from anbar.tier.store import Outcome, Scope

_TOUCH_AFTER_S = 30.0
"""A hit renews a file's time stamp if it is older than this: exact enough to evict by, and cheap."""
_TOUCHES_PER_TTL = 4
_PIECE_BYTES = 256 * 1024
"""An eighth of a core's cache (2 MiB) on what it was measured on; half and twice as much are as fast."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is to be written, or read; `saves_s`: what whoever asks says that it saves, 0.0: not known."""

    key: bytes
    scope: Scope
    row: Lease
    saves_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """A store's directory and its parts. `writer` must differ for every live process and machine."""

    layout: Layout
    clock: StoreClock
    sweeper: Sweeper
    writable: Writable
    writer: str
    ttl_s: Callable[[Scope], float | None]


class _Memory(threading.local):
    """What a thread's file operations touch: one that hangs keeps its own for ever, and no other's."""

    def __init__(self) -> None:
        self.piece: Bytes = np.empty(_PIECE_BYTES, dtype=np.uint8)


class Entries:
    """Operations on the entries of one namespace."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._layout = place.layout
        self._clock = place.clock
        self._format = RecordFormat(place.layout.namespace)
        self._quarantine = Quarantine(place.layout.version_dir, place.clock)
        self._memory = _Memory()
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

    def read(self, value: Value) -> Outcome:
        """HIT when the row has the value, verified; or why not: TIMEOUT when the call was over before."""
        key, scope, row = value.key, value.scope, value.row
        path = self._layout.entry(key, scope)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return self._missing(error)
        try:
            status = os.fstat(fd)
            if self._is_expired(status, scope):
                return Outcome.MISS
            is_whole = status.st_size == HEADER_BYTES + row.num_bytes
            if is_whole and self._load(fd, key, scope, row):
                self._touch(path, status, scope, value.saves_s)
                return Outcome.HIT
            with suppress(OSError):
                self._quarantine.take(path, status, "content" if is_whole else "length")
        except OSError:
            return Outcome.ERROR
        except LeaseEnded:
            return Outcome.TIMEOUT
        finally:
            os.close(fd)
        return Outcome.CORRUPT

    def write(self, value: Value) -> Outcome:
        """Store a value unless it is there; HIT, FULL, OVER_QUOTA or ERROR; TIMEOUT: the call is over."""
        path = self._layout.entry(value.key, value.scope)
        size = HEADER_BYTES + value.row.num_bytes
        temp = f"{os.path.dirname(path)}/.{self._token()}{TEMP_SUFFIX}"
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
        except LeaseEnded:
            self._place.sweeper.withdrew(value.scope, part_of(path), size)
            with suppress(OSError):
                os.unlink(temp)
            return Outcome.TIMEOUT
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

    def delete_scope(self, scope_dir: str, may_go_on: Callable[[], bool]) -> Removal:
        """Remove a scope's directory in every namespace, and what is quarantined of it."""
        version_dir = self._layout.version_dir
        try:
            os.listdir(version_dir)
            removal = ScopeRemoval(version_dir, scope_dir, self._token())
            self._quarantine.forget(scope_dir, removal.failures)
            return removal.run(may_go_on)
        except OSError as error:
            return Removal(self._missing(error), f"{version_dir}: {error.strerror}")

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

    def _load(self, fd: int, key: bytes, scope: Scope, row: Lease) -> bool:
        """Fill the row from a file; whether that is what was stored. Raises LeaseEnded."""
        header = bytearray(HEADER_BYTES)
        running = self._format.begin(key, scope, row.num_bytes)
        for start, piece in self._pieces(row):
            views = [piece.data] if start else [memoryview(header), piece.data]
            if not read_all(fd, views):
                return False
            running.add(piece.data)
            row.write(start, piece)
        return running.header() == header

    def _write_file(self, path: str, value: Value) -> None:
        """The header comes last, since the checksum is in it. Raises LeaseEnded."""
        fd = open_new(path, self._layout.root)
        try:
            running = self._format.begin(value.key, value.scope, value.row.num_bytes)
            for start, piece in self._pieces(value.row):
                value.row.read(start, piece)
                running.add(piece.data)
                write_all(fd, [piece.data], HEADER_BYTES + start)
            write_all(fd, [memoryview(running.header())], 0)
            self._date(fd, value.saves_s)
        finally:
            os.close(fd)

    def _pieces(self, row: Lease) -> Iterator[tuple[int, Bytes]]:
        """Where each piece of a row starts, and the thread's memory for it; one that is empty of an empty
        row."""
        for start in range(0, max(1, row.num_bytes), _PIECE_BYTES):
            yield start, self._memory.piece[: row.num_bytes - start]

    def _is_there(self, path: str, size: int, value: Value) -> bool:
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

    def _touch(self, path: str, status: os.stat_result, scope: Scope, saves_s: float) -> None:
        stamp = from_ns(status.st_mtime_ns)
        is_worth_more = saves_s > 1.1 * stamp.saves_s
        ttl_s = self._place.ttl_s(scope)
        touch_after_s = _TOUCH_AFTER_S if ttl_s is None else min(_TOUCH_AFTER_S, ttl_s / _TOUCHES_PER_TTL)
        if is_worth_more or self._clock.now_s() - stamp.used_s > touch_after_s:
            # On a read-only file system hits count all the same.
            with suppress(OSError):
                self._date(path, max(saves_s, stamp.saves_s))

    def _date(self, target: str | int, saves_s: float) -> None:
        stamp = to_ns(self._clock.now_s(), saves_s)
        os.utime(target, ns=(stamp, stamp))
