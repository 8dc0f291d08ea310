"""A file of lines that is rotated by size: `path` is written, `path.1` is the one before it, and so on."""

import contextlib
import fcntl
import os
from pathlib import Path

from anbar.core.errors import StackError


def rotated_files(path: Path) -> list[Path]:
    """The files of a rotation that are there, the oldest first."""
    numbered = []
    for other in path.parent.glob(f"{path.name}.*"):
        suffix = other.name[len(path.name) + 1 :]
        if suffix.isascii() and suffix.isdigit():
            numbered.append((int(suffix), other))
    older = [other for _, other in sorted(numbered, reverse=True)]
    return older + ([path] if path.exists() else [])


class RotatingFile:
    """Appends to `path`, in files of about `file_bytes`, at most `num_files` of them, mode 0600.

    Writes are not synced: a crash of the machine may lose the last ones. After a failed or torn write, and
    behind
    a torn last line of a process that was killed, the next line begins on a line of its own. One process at a
    time; not thread-safe.
    """

    def __init__(self, path: Path, file_bytes: int, num_files: int) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._num_files = num_files
        self._descriptor = -1
        self._lock = -1
        self._num_bytes = 0
        self._torn = False

    def open(self) -> None:
        """Begin to append. Raises StackError when that is not possible, or another process does."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(f"{self._path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StackError(
                    f"{self._path} is written by another process: give each router its own"
                ) from None
            self._open()
        except OSError as error:
            self.close()
            raise StackError(f"{self._path} cannot be written: {error.strerror}") from error
        except StackError:
            self.close()
            raise

    def write(self, lines: bytes) -> None:
        """Append whole lines. Raises OSError when they are not all written."""
        if self._descriptor < 0 or os.fstat(self._descriptor).st_nlink == 0:
            self._reopen()
        if self._num_bytes and self._num_bytes + len(lines) > self._file_bytes:
            self._rotate()
        data = b"\n" + lines if self._torn else lines
        self._torn = True  # until it is known to be whole
        written = os.write(self._descriptor, data)
        self._num_bytes += written
        if written < len(data):
            raise OSError(f"{written} of {len(data)} bytes were written")
        self._torn = False

    def close(self) -> None:
        """Let go of the file; harmless when it is not open."""
        for descriptor in (self._descriptor, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._lock = -1

    def _open(self) -> None:
        flags = os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self._path, flags, 0o600)
        os.fchmod(self._descriptor, 0o600)
        self._num_bytes = os.fstat(self._descriptor).st_size
        last = os.pread(self._descriptor, 1, self._num_bytes - 1) if self._num_bytes else b"\n"
        self._torn = last != b"\n"

    def _reopen(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._open()

    def _rotate(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1
        if self._num_files == 1:
            self._path.unlink()
        for number in range(self._num_files - 1, 0, -1):
            older = self._path if number == 1 else Path(f"{self._path}.{number - 1}")
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, f"{self._path}.{number}")
        for other in rotated_files(self._path):  # of an earlier run that kept more
            if other != self._path and int(other.suffix[1:]) >= self._num_files:
                other.unlink()
        self._open()
