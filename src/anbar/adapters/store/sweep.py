"""Keeping a directory of files within its bounds.

A background thread looks at a few parts of the directory at a time (`layout`): whole parts, until it has seen
some 20,000 files. A small store is seen whole each time. Every part is kept within its share of the capacity
once the whole is over it, so that engines that share a directory agree without telling each other; one of
them sweeps at a time, the others count. Parts are fair samples, so that the worst entries of each are close
to the worst of all.

What a look costs is measured by `benchmarks/sweep_cost.py`; looks take at most a twentieth of a core, but for
those that writers ask for.
"""

import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from anbar.adapters.store.layout import NUM_PARTS, Layout, key_of, part_of
from anbar.adapters.store.occupancy import Occupancy
from anbar.adapters.store.rations import Ration, Rations, excess
from anbar.adapters.store.rubbish import empty_trash, remove_empty, remove_unused_versions, tidy_directory
from anbar.adapters.store.stamp import to_ns
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.walk import Entry, Walk
from anbar.tier.eviction import Ranked, leaving
from anbar.tier.scopes import Scopes
from anbar.tier.store import Scope

_MAX_EVICTED = 100_000
_LOOK_UNITS = 20_000
"""A look ends with the part in which it has seen so much: files count one, directories two."""
_DIRECTORY_UNITS = 2
_PAUSE_PER_CPU = 20
"""A look takes the interpreter from the engine; and it occupies the file system at most half of the time."""
_URGENCY = 4
"""A look frees so many times its share of what the file system lacks, up to all: space is wanted now."""
_FUTURE_S = 60.0
"""Entries from further ahead are dated anew: by another machine's clock, or one that was wrong, they would be
kept for ever."""
_UNUSED_S = 7 * 86_400.0
"""What earlier format versions left goes when nobody used it for so long, if there is no time to live."""
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP})
_Kept = tuple[Ranked, Entry]
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a store may hold."""

    capacity_bytes: int | None = None
    """Bytes of entries; None: as much as the file system has, but for the share kept free."""
    free_fraction: float = 0.05
    """Share of the file system's size that stays free whatever the capacity, so that a cache never fills a
    disk that others write to."""
    low_fraction: float = 0.9
    """A sweep that must evict goes down to this share of the capacity."""
    ttl_s: float | None = None
    """Entries that were not used for so long are gone; None: they stay while there is room."""
    scopes: Scopes = field(default_factory=Scopes)
    """What each scope may hold, and for how long."""
    interval_s: float = 30.0
    """Time between two looks at the whole directory, or longer if it is large."""

    def ttl_of(self, scope: Scope) -> float | None:
        """How long a scope's entries live unused."""
        ttl_s = self.scopes.of(scope).ttl_s
        return self.ttl_s if ttl_s is None else ttl_s


class Sweeper:
    """Watches one store's root. All methods but `sweep` may be called from any thread."""

    def __init__(self, layout: Layout, bounds: Bounds, clock: StoreClock) -> None:
        self._layout = layout
        self._bounds = bounds
        self._clock = clock
        self._lock = threading.Lock()
        self.occupancy = Occupancy()
        self.rations = Rations(bounds.scopes, bounds.ttl_s, bounds.low_fraction)
        self.has_looked = False
        """Whether the first look is over."""
        self._next_part = 0
        self._written_bytes = 0
        """Since the last look began."""
        self._refused_bytes = 0
        """The largest value for which there was no room since the last look; a store may hold so few that
        the low mark alone leaves no room for one."""
        self._evicted: deque[bytes] = deque(maxlen=_MAX_EVICTED)
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="anbar-files-sweep", daemon=True)

    def start(self) -> None:
        """Start the thread; a daemon, since the file system may hang."""
        self._thread.start()

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait until it has: it writes to the directory no more. It may hang in the file system."""
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """There is something to do: no room for a value."""
        self._wake.set()

    def has_room(self, num_bytes: int) -> bool:
        """Whether `num_bytes` more may be written; if not, a sweep is on its way. May raise OSError."""
        capacity = self._bounds.capacity_bytes
        full = capacity is not None and self.occupancy.used_bytes + num_bytes > capacity
        if full or self._free_bytes() < num_bytes:
            if capacity is None or num_bytes <= capacity:  # as in `Ration.admits`
                self._refused_bytes = max(self._refused_bytes, num_bytes)
            self.wake()
            return False
        return True

    def admits(self, scope: Scope, part: int, num_bytes: int) -> bool:
        """Whether a scope's quota has room for an entry, which counts from now on; if not, a sweep is on its
        way."""
        ration = self.rations.of_scope(scope)
        if ration is None:
            return True
        has_room = ration.admits(part, num_bytes)
        if ration.wants_look():
            self.wake()
        return has_room

    def withdrew(self, scope: Scope, part: int, num_bytes: int) -> None:
        """An entry that was admitted could not be written."""
        ration = self.rations.of_scope(scope)
        if ration is not None:
            ration.withdrew(part, num_bytes)

    def wrote(self, path: str, num_bytes: int) -> None:
        """An entry was added; wakes the sweep after a twentieth of the capacity, or when little is left."""
        self.occupancy.wrote(part_of(path), num_bytes)
        with self._lock:
            self._written_bytes += num_bytes
            capacity = self._bounds.capacity_bytes
            if capacity is not None and 20 * self._written_bytes > capacity:
                self.wake()

    def take_evicted(self) -> list[bytes]:
        """Keys of this namespace that were evicted since the last call, at most 100,000."""
        with self._lock:
            evicted = list(self._evicted)
            self._evicted.clear()
        return evicted

    def sweep(self) -> int:
        """Look at the next parts of the directory: count, evict, remove what is of no use; the number of
        parts. Raises OSError when the root cannot be read.
        """
        self._clock.sync(write=False)
        with self._exclusively() as alone:
            if alone:
                self._clock.sync(write=True)
            before = self._written_bytes
            self.occupancy.begin()
            self.rations.begin()
            os.listdir(self._layout.root)
            num_parts = self._look(alone)
        self._refused_bytes = 0
        self.rations.looked()
        self.has_looked = True
        with self._lock:
            self._written_bytes -= before
        return num_parts

    def _look(self, alone: bool) -> int:
        walk = Walk(self._layout)
        if alone:
            empty_trash(self._layout, _LOOK_UNITS)
        entries: list[Entry] = []
        units = num_parts = 0
        while num_parts < NUM_PARTS and units < _LOOK_UNITS:
            part = (self._next_part + num_parts) % NUM_PARTS
            for look in walk.part(part):
                units += _DIRECTORY_UNITS + len(look.entries) + len(look.others)
                entries += look.entries
                if alone:
                    tidy_directory(look, self._clock)
            num_parts += 1
        parts = [(self._next_part + index) % NUM_PARTS for index in range(num_parts)]
        self._count(parts, entries)
        if alone:
            gone = self._evict(entries, num_parts / NUM_PARTS)
            if gone:
                self._count(parts, [entry for entry in entries if entry.path not in gone])
        self._next_part += num_parts
        if self._next_part >= NUM_PARTS:
            self._next_part -= NUM_PARTS
            if alone:
                remove_empty(walk, self._clock)
                unused_s = _UNUSED_S if self._bounds.ttl_s is None else self._bounds.ttl_s
                remove_unused_versions(self._layout, self._clock, unused_s, _LOOK_UNITS)
        return num_parts

    def _count(self, parts: list[int], entries: list[Entry]) -> None:
        self.occupancy.counted(_sizes(parts, entries))
        found = ((entry.scope_dir, entry.part, entry.num_bytes) for entry in entries)
        self.rations.counted(parts, found)

    def _evict(self, entries: list[Entry], share: float) -> set[str]:
        """Remove what is too old, then what scopes have too much of, each of its own, then what there is too
        much of; the paths that are gone."""
        now_s = self._clock.now_s()
        kept: list[_Kept] = []
        gone: set[str] = set()
        for entry in entries:
            age_s = now_s - entry.stamp.used_s
            if age_s < -_FUTURE_S:
                _date(entry, now_s)
            ttl_s = self.rations.ttl_s(entry.scope_dir)
            if ttl_s is not None and age_s > ttl_s:
                self._remove(entry, gone)
            else:
                kept.append((Ranked(entry.num_bytes, entry.stamp.saves_s, age_s), entry))
        for mine, ration in self._rationed(kept):
            for entry in leaving(mine, ration.need(sum(ranked.num_bytes for ranked, _ in mine), share)):
                self._remove(entry, gone)
        kept = [(ranked, entry) for ranked, entry in kept if entry.path not in gone]
        need = self._need(sum(ranked.num_bytes for ranked, _ in kept), share)
        for entry in leaving(kept, need):
            self._remove(entry, gone)
        return gone

    def _rationed(self, kept: list[_Kept]) -> Iterator[tuple[list[_Kept], Ration]]:
        """The entries of each scope that has a quota."""
        mine: dict[str, list[_Kept]] = {}
        for ranked, entry in kept:
            mine.setdefault(entry.scope_dir, []).append((ranked, entry))
        for name, entries in mine.items():
            ration = self.rations.of(name)
            if ration is not None:
                yield entries, ration

    def _need(self, num_bytes: int, share: float) -> int:
        """Bytes to evict of the `num_bytes` in a share of the directory. Over its capacity must be both the
        share, since another engine may have swept the others, and the whole, since a share of few entries
        says little."""
        over = min(self._excess(num_bytes, share), self._excess(self.occupancy.used_bytes, 1.0))
        lacking = -self._free_bytes() * min(1.0, _URGENCY * share)
        return max(over, int(lacking))

    def _excess(self, num_bytes: int, share: float) -> int:
        """What a share of the directory has above the low mark, once it is over the high one."""
        if self._bounds.capacity_bytes is None:
            return 0
        capacity = share * self._bounds.capacity_bytes
        return excess(num_bytes, capacity, self._bounds.low_fraction, self._refused_bytes)

    def _remove(self, entry: Entry, gone: set[str]) -> None:
        with suppress(OSError):
            os.unlink(entry.path)
            gone.add(entry.path)
            ration = self.rations.of(entry.scope_dir)
            if ration is not None:
                ration.num_evicted += 1
            key = key_of(entry.name) if entry.is_ours else None
            if key is not None:
                with self._lock:
                    self._evicted.append(key)

    def _free_bytes(self) -> int:
        """Bytes that may still be written before the share kept free is touched; negative when it is."""
        status = os.statvfs(self._layout.root)
        reserve = int(self._bounds.free_fraction * status.f_blocks * status.f_frsize)
        return status.f_bavail * status.f_frsize - reserve

    @contextmanager
    def _exclusively(self) -> Iterator[bool]:
        """Whether this is the only engine that sweeps now, and may. File systems without locks: always."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            fd = os.open(self._layout.root / ".sweep.lock", flags, 0o600)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            yield False
            return
        try:
            alone = True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alone = False
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield alone
        finally:
            os.close(fd)

    def _run(self) -> None:
        interval_s = self._bounds.interval_s
        while not self._closed.is_set():
            began_s, began_cpu_s = time.monotonic(), time.thread_time()
            num_parts = NUM_PARTS
            # A store that cannot be read now says so by its outcomes; the next look may find it back.
            with suppress(OSError):
                num_parts = self.sweep()
            busy_s = time.monotonic() - began_s
            pause_s = max(busy_s, _PAUSE_PER_CPU * (time.thread_time() - began_cpu_s))
            self._wake.wait(max(pause_s, interval_s * num_parts / NUM_PARTS))
            self._wake.clear()
            # Writers that find no room wake the sweep at every call: look at most once a second.
            self._closed.wait(min(1.0, interval_s))


def _date(entry: Entry, now_s: float) -> None:
    with suppress(OSError):
        stamp = to_ns(now_s, entry.stamp.saves_s)
        os.utime(entry.path, ns=(stamp, stamp), follow_symlinks=False)


def _sizes(parts: Iterable[int], entries: Iterable[Entry]) -> dict[int, tuple[int, int]]:
    """Bytes and entries of each part."""
    sizes = dict.fromkeys(parts, (0, 0))
    for entry in entries:
        num_bytes, num_entries = sizes[entry.part]
        sizes[entry.part] = num_bytes + entry.num_bytes, num_entries + 1
    return sizes
