"""Keeping a directory of files within its bounds: the entries that were read longest ago go first.

A background thread walks the tree, adds up the bytes of each second of last use (a hit renews a file's
time stamp), finds the second up to which everything must go, and walks once more to remove it. Memory is
bounded by the number of distinct seconds, not of files. Several engines may share the directory: one sweeps
at a time.
"""

import errno
import fcntl
import os
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from anbar.adapters.store.layout import SUFFIX, TEMP_SUFFIX, Layout, key_of
from anbar.tier.store import StoreStats

_MAX_EVICTED = 100_000
_TRASH_PREFIX = ".trash-"


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
    interval_s: float = 30.0
    """Time between two looks at the directory."""
    stale_temp_s: float = 600.0
    """A temporary file that old is what a dead writer left."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    name: str
    num_bytes: int
    used_s: int
    is_ours: bool


def oldest(bytes_by_second: Mapping[int, int], need: int) -> int | None:
    """The second up to which files must go so that at least `need` bytes go; None when nothing must."""
    if need <= 0:
        return None
    freed = 0
    cutoff = None
    for second in sorted(bytes_by_second):
        cutoff = second
        freed += bytes_by_second[second]
        if freed >= need:
            break
    return cutoff


class Sweeper:
    """Watches one store's root. All methods but `sweep` may be called from any thread."""

    def __init__(self, layout: Layout, bounds: Bounds) -> None:
        self._layout = layout
        self._bounds = bounds
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._num_entries: int | None = None
        self._written_bytes = self._num_written = 0
        """Since the last sweep began."""
        self._evicted: deque[bytes] = deque(maxlen=_MAX_EVICTED)
        self._wake = threading.Event()
        self._closed = False

    def start(self) -> None:
        """Start the thread; a daemon, since the file system may hang."""
        threading.Thread(target=self._run, name="anbar-files-sweep", daemon=True).start()

    def close(self) -> None:
        """Let the thread end."""
        self._closed = True
        self._wake.set()

    def has_room(self, num_bytes: int) -> bool:
        """Whether `num_bytes` more may be written; if not, a sweep is on its way. May raise OSError."""
        capacity = self._bounds.capacity_bytes
        with self._lock:
            full = capacity is not None and self._used_bytes + num_bytes > capacity
        if full or self._free_bytes() < num_bytes:
            self._wake.set()
            return False
        return True

    def wrote(self, num_bytes: int) -> None:
        """An entry was added; wakes the sweep after a twentieth of the capacity, or when little is left."""
        with self._lock:
            self._used_bytes += num_bytes
            self._written_bytes += num_bytes
            self._num_written += 1
            if self._num_entries is not None:
                self._num_entries += 1
            capacity = self._bounds.capacity_bytes
            if capacity is not None and 20 * self._written_bytes > capacity:
                self._wake.set()

    def take_evicted(self) -> list[bytes]:
        """Keys of this namespace that were evicted since the last call, at most 100,000."""
        with self._lock:
            evicted = list(self._evicted)
            self._evicted.clear()
        return evicted

    def stats(self) -> StoreStats:
        """As of the last sweep, and what this process wrote since."""
        with self._lock:
            known = self._num_entries is not None
            return StoreStats(
                num_entries=self._num_entries,
                used_bytes=self._used_bytes if known else None,
                capacity_bytes=self._bounds.capacity_bytes,
            )

    def sweep(self) -> None:
        """Look at the whole directory once: count, evict, remove what dead writers left.

        Raises OSError when the root cannot be read.
        """
        with self._lock:
            before = self._written_bytes, self._num_written
            self._written_bytes = self._num_written = 0
        try:
            used, num_entries = self._look()
        except OSError:
            with self._lock:  # as if it had not begun
                self._written_bytes += before[0]
                self._num_written += before[1]
            raise
        with self._lock:
            # What was written meanwhile may have been seen or not: rather count it twice than exceed it.
            self._used_bytes = used + self._written_bytes
            self._num_entries = num_entries + self._num_written

    def _look(self) -> tuple[int, int]:
        """Bytes and entries that are there, after evicting."""
        with self._exclusively() as alone:
            seconds: Counter[int] = Counter()
            num_entries = 0
            for file in self._files(remove_stale=alone):
                seconds[file.used_s] += file.num_bytes
                num_entries += 1
            used = sum(seconds.values())
            need = self._need(used)
            cutoff = oldest(seconds, need) if alone else None
            if cutoff is not None:
                freed, num_freed = self._evict(cutoff, need)
                used, num_entries = used - freed, num_entries - num_freed
        return used, num_entries

    def _need(self, used: int) -> int:
        """Bytes to evict: down to the low mark of whichever bound is nearly reached."""
        capacity = self._bounds.capacity_bytes
        over_capacity = 0
        if capacity is not None and used > (1 + self._bounds.low_fraction) / 2 * capacity:
            over_capacity = used - int(self._bounds.low_fraction * capacity)
        return max(over_capacity, -self._free_bytes())

    def _free_bytes(self) -> int:
        """Bytes that may still be written before the share kept free is touched; negative when it is."""
        status = os.statvfs(self._layout.root)
        reserve = int(self._bounds.free_fraction * status.f_blocks * status.f_frsize)
        return status.f_bavail * status.f_frsize - reserve

    def _evict(self, cutoff_s: int, need: int) -> tuple[int, int]:
        freed = num_freed = 0
        for file in self._files(remove_stale=False):
            if file.used_s > cutoff_s or freed >= need:
                continue
            with suppress(OSError):
                os.unlink(file.path)
                freed += file.num_bytes
                num_freed += 1
                key = key_of(file.name) if file.is_ours else None
                if key is not None:
                    with self._lock:
                        self._evicted.append(key)
        return freed, num_freed

    def _files(self, *, remove_stale: bool) -> Iterator[_File]:
        """Every entry of every namespace. A directory that vanishes meanwhile is skipped."""
        ours = os.fspath(self._layout.namespace_dir)
        now_s = time.time()
        for namespace in _subdirs(self._layout.version_dir):
            if namespace.name.startswith(_TRASH_PREFIX):
                if remove_stale and is_older(namespace, self._bounds.stale_temp_s, now_s):
                    remove_tree(Path(namespace.path))
                continue
            for scope in _subdirs(namespace.path):
                for fan_out in _subdirs(scope.path):
                    yield from self._entries(fan_out.path, namespace.path == ours, now_s, remove_stale)

    def _entries(self, path: str, is_ours: bool, now_s: float, remove_stale: bool) -> Iterator[_File]:
        for entry in _scan(path):
            with suppress(OSError):
                status = entry.stat()
                if entry.name.endswith(SUFFIX):
                    yield _File(entry.path, entry.name, status.st_size, int(status.st_mtime), is_ours)
                    continue
                is_stale = now_s - status.st_mtime > self._bounds.stale_temp_s
                if remove_stale and is_stale and entry.name.endswith(TEMP_SUFFIX):
                    os.unlink(entry.path)

    @contextmanager
    def _exclusively(self) -> Iterator[bool]:
        """Whether this is the only engine that sweeps now. File systems without locks: always."""
        fd = os.open(self._layout.root / ".sweep.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            alone = True
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alone = False
            except OSError as error:
                if error.errno not in {errno.ENOLCK, errno.EOPNOTSUPP}:
                    raise
            yield alone
        finally:
            os.close(fd)

    def _run(self) -> None:
        while not self._closed:
            # A store that cannot be read now says so by its outcomes; the next look may find it back.
            with suppress(OSError):
                self.sweep()
            self._wake.wait(self._bounds.interval_s)
            self._wake.clear()
            # Writers that find no room wake the sweep at every call: look at most once a second.
            time.sleep(min(1.0, self._bounds.interval_s))


def remove_tree(path: Path, trash: Path | None = None) -> bool:
    """Remove a directory and all below it; with `trash`, it vanishes at once by a rename to there first.
    Returns whether it was there. What cannot be removed is left to the next sweep."""
    if trash is not None:
        try:
            os.rename(path, trash)
        except FileNotFoundError:
            return False
        path = trash
    shutil.rmtree(path, ignore_errors=True)
    return True


def trash_path(version_dir: Path, token: str) -> Path:
    """Where a removed directory waits to be deleted."""
    return version_dir / (_TRASH_PREFIX + token)


def is_older(entry: "os.DirEntry[str]", age_s: float, now_s: float) -> bool:
    """Whether an entry was last changed more than `age_s` before `now_s`; False for one that vanished."""
    try:
        return now_s - entry.stat().st_mtime > age_s
    except OSError:
        return False


def _subdirs(path: str | Path) -> Iterator["os.DirEntry[str]"]:
    return (entry for entry in _scan(path) if entry.is_dir(follow_symlinks=False))


def _scan(path: str | Path) -> list["os.DirEntry[str]"]:
    """A directory's entries; none when it vanished."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
