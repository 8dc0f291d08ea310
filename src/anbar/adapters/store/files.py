"""A store that is a directory of files: on a local disk, or on a file system that several machines mount.

- A value is written to a temporary file beside its place and renamed: a reader sees all of it or nothing.
- Nothing is synced to the disk. After a crash of the *machine* a renamed file may be short or hold zeros: it
  fails verification, counts as damaged and is removed. That loses one entry of a cache; syncing every write
  would cost each of them milliseconds. A crash of the *process* loses nothing, the kernel has the pages.
- File operations cannot be cancelled, so they run on threads of the store, on memory of these: when the
  deadline passes, the caller goes on and nothing touches its memory any more (`lease`). A value that is half
  written then is given up.
- A vanished root (a mount that went away) is an ERROR and is not made again, or values would be written below
  the mount point. It is used again as soon as it is back.
- A directory that is full or may not be written to is FULL for writes; reads go on. It is tried again once a
  second.
- Several engines may use one directory. Each keeps it within its bounds (see `sweep`).
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from anbar.adapters.store.deadline import DeadlineRunner
from anbar.adapters.store.entries import Entries, Place, Value
from anbar.adapters.store.layout import Layout, scope_dir
from anbar.adapters.store.lease import Lease
from anbar.adapters.store.scope_removal import Removal
from anbar.adapters.store.store_clock import StoreClock, TimeSource
from anbar.adapters.store.sweep import Bounds, Sweeper
from anbar.adapters.store.writable import Writable
from anbar.core.errors import StoreError
from anbar.tier.store import Outcome, PutItem, Scope, StoreStats

T = TypeVar("T")

_KEYS_PER_STAT = 32
"""Keys that one operation of `exists` looks up: enough to outweigh handing it to a thread."""
_END_S = 2.0
"""How long closing waits for threads; the rest hang in the file system, and end with what they wait for."""
_REMOVING = 0.9
"""Share of its time in which a removal of a scope removes."""
_BYTES_PER_TASK = 512 * 1024
"""Values that are so small together are one operation, for the same reason."""


@dataclass(frozen=True, slots=True)
class FilesConfig:
    """A directory of files."""

    path: Path
    """Root of the store; made with mode 0700 when missing."""
    id: str
    """Name of the store in KV events; equal on all machines that share it."""
    bounds: Bounds = field(default_factory=Bounds)
    """How much it may hold."""
    num_threads: int = 8
    """File operations at a time; a hung one occupies its thread."""


class FilesStore:
    """See `anbar.tier.store.Store`. Call `open` before anything else; until then every outcome is ERROR."""

    def __init__(self, config: FilesConfig, namespace: bytes, source: TimeSource | None = None) -> None:
        self._config = config
        layout = Layout(config.path, namespace)
        source = source or TimeSource()
        self._clock = StoreClock(config.path, source)
        self._writable = Writable(source.steady_s)
        self._runner = DeadlineRunner(config.num_threads, "anbar-files")
        self._sweeper = Sweeper(layout, config.bounds, self._clock)
        writer = secrets.token_hex(8)
        place = Place(layout, self._clock, self._sweeper, self._writable, writer, config.bounds.ttl_of)
        self._entries = Entries(place)
        self._is_open = False

    def open(self) -> None:
        """Make the directory if it is missing and start the threads.

        Raises StoreError when the path is not a directory, or cannot be made or listed.
        """
        path = self._config.path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.listdir(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"store path {path} is not a directory") from error
        except OSError as error:
            raise StoreError(f"store directory {path} cannot be used: {error.strerror}") from error
        self._clock.sync(write=False)
        self._runner.start()
        self._sweeper.start()
        self._is_open = True

    @property
    def id(self) -> str:
        return self._config.id

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        starts = range(0, len(keys), _KEYS_PER_STAT)
        works = [partial(self._entries.exist, keys[i : i + _KEYS_PER_STAT], scope) for i in starts]
        outcomes = self._unknown(len(keys))
        for index, found in self._run(works, timeout_s):
            start = index * _KEYS_PER_STAT
            outcomes[start : start + len(found)] = found
        return outcomes

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        with _lent(buffers) as rows:
            wanted = zip(keys, rows, saves_s or [0.0] * len(keys), strict=True)
            works = [partial(self._entries.read, Value(key, scope, row, saves)) for key, row, saves in wanted]
            return self._move(works, rows, timeout_s)

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        if self._is_open and self._writable.refuses():
            return [Outcome.FULL] * len(items)
        with _lent([item.data for item in items]) as rows:
            pairs = zip(items, rows, strict=True)
            values = [Value(item.key, scope, row, item.saves_s) for item, row in pairs]
            return self._move([partial(self._entries.write, value) for value in values], rows, timeout_s)

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        works = [partial(self._entries.delete, key, scope) for key in keys]
        outcomes = self._unknown(len(keys))
        for index, outcome in self._run(works, timeout_s):
            outcomes[index] = outcome
        return outcomes

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        return self.remove_scope(scope, timeout_s=timeout_s).outcome

    def remove_scope(self, scope: Scope, *, timeout_s: float) -> Removal:
        """As `delete_scope`; tells also what is left."""
        (outcome,) = self._unknown(1)
        removal = Removal(outcome)
        # The rest of the time is for counting what is left.
        until_s = time.monotonic() + _REMOVING * timeout_s
        work = partial(self._entries.delete_scope, scope_dir(scope), lambda: time.monotonic() < until_s)
        for _, result in self._run([work], timeout_s):
            removal = result
        return removal

    def take_evicted(self) -> list[bytes]:
        return self._sweeper.take_evicted()

    def stats(self) -> StoreStats:
        occupancy = self._sweeper.occupancy
        has_looked = self._sweeper.has_looked
        return StoreStats(
            num_entries=occupancy.num_entries if has_looked else None,
            used_bytes=occupancy.used_bytes if has_looked else None,
            capacity_bytes=self._config.bounds.capacity_bytes,
            is_writable=self._writable.is_allowed,
            scopes=self._sweeper.rations.stats(),
        )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sweeper.close()
            self._runner.close()
            # Nothing is written afterwards, so that who closes a store may remove its directory.
            self._runner.join(_END_S)
            self._sweeper.join(_END_S)

    def _unknown(self, num_keys: int) -> list[Outcome]:
        """What is said of keys whose operation does not end in time."""
        return [Outcome.TIMEOUT if self._is_open else Outcome.ERROR] * num_keys

    def _move(
        self, works: Sequence[Callable[[], Outcome]], rows: Sequence[Lease], timeout_s: float
    ) -> list[Outcome]:
        """Operations on a value each, small ones several at a time."""
        largest = max((row.num_bytes for row in rows), default=0)
        per_task = max(1, _BYTES_PER_TASK // max(1, largest))
        starts = range(0, len(works), per_task)
        tasks = [partial(_each, works[start : start + per_task]) for start in starts]
        outcomes = self._unknown(len(works))
        for index, found in self._run(tasks, timeout_s):
            outcomes[starts[index] : starts[index] + len(found)] = found
        return outcomes

    def _run(self, works: Iterable[Callable[[], T]], timeout_s: float) -> Iterator[tuple[int, T]]:
        return self._runner.run(works, time.monotonic() + timeout_s) if self._is_open else iter(())


def _each(works: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
    return [work() for work in works]


@contextmanager
def _lent(buffers: Iterable[memoryview]) -> Iterator[list[Lease]]:
    """A call's buffers, which are its caller's again afterwards."""
    rows = [Lease(buffer) for buffer in buffers]
    try:
        yield rows
    finally:
        for row in rows:
            row.end()
