"""When to read a file again: once it has changed and nobody seems to be writing it."""

from pathlib import Path

Signature = tuple[int, int, int] | None
"""A file's inode, size and time of change in ns; None: there is none."""


def signature(path: Path) -> Signature:
    """Of the file that `path` leads to now, through links too."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class FileWatch:
    """Tells from repeated looks at a file when to read it: when it has changed and rests."""

    def __init__(self, read: Signature) -> None:
        self._read = self._seen = read

    def is_due(self, now: Signature) -> bool:
        """Take note of one look. A file that is away for a moment has not changed."""
        rests = now == self._seen
        self._seen = now
        return rests and now is not None and now != self._read

    def was_read(self, now: Signature) -> None:
        """The file was read as it is now."""
        self._read = self._seen = now
