"""Which chunks a store holds, as the names of empty files: what emulated engines of several processes share.

A real store's entries are worth gigabytes; an emulated one needs only to know that they are there. Any of the
processes may be killed at any time: a name is there or not, and nothing needs mending.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from anbar.adapters.store.record import short_digest

_SHARE_BETWEEN_COUNTS = 16
"""Names are counted when this process alone may have added a sixteenth of what fits."""


class KeyDirectory:
    """Keys by scope, the longest unused of which go when there are more than `num_keys`: a little late, since
    counting means listing. All methods raise OSError when the directory is gone or full."""

    def __init__(self, directory: Path, num_keys: int) -> None:
        self.directory = directory
        self.num_keys = num_keys
        self._count_after = max(1, num_keys // _SHARE_BETWEEN_COUNTS)
        self._num_added = 0

    def __len__(self) -> int:
        return sum(1 for _ in self._names())

    def has(self, scope: str, key: bytes) -> bool:
        """Whether a key is there."""
        try:
            os.stat(self._path(scope, key))
        except FileNotFoundError:
            return False
        return True

    def drop(self, scope: str, key: bytes) -> None:
        """A key is there no longer."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(scope, key))

    def use(self, scope: str, key: bytes) -> bool:
        """Whether a key is there; if so, it becomes the most recently used."""
        now_ns = time.time_ns()  # the kernel's own idea of now is some milliseconds coarse
        try:
            os.utime(self._path(scope, key), ns=(now_ns, now_ns))
        except FileNotFoundError:
            if self.directory.is_dir():
                return False
            raise
        return True

    def add(self, scope: str, key: bytes) -> list[bytes]:
        """Put a key there; the keys that had to go for it."""
        os.close(os.open(self._path(scope, key), os.O_CREAT | os.O_WRONLY, 0o600))
        self.use(scope, key)
        self._num_added += 1
        if self._num_added < self._count_after:
            return []
        self._num_added = 0
        return self._make_room()

    def _make_room(self) -> list[bytes]:
        found: list[tuple[int, str]] = []
        for entry in self._names():
            with contextlib.suppress(FileNotFoundError):  # another process was sooner
                found.append((entry.stat().st_mtime_ns, entry.name))
        gone: list[bytes] = []
        for _, name in sorted(found)[: max(0, len(found) - self.num_keys)]:
            with contextlib.suppress(FileNotFoundError):
                (self.directory / name).unlink()
                gone.append(bytes.fromhex(name.partition("-")[2]))
        return gone

    def _names(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.directory) as entries:
            yield from entries

    def _path(self, scope: str, key: bytes) -> str:
        return f"{self.directory}/{short_digest(scope.encode()).hex()}-{key.hex()}"
