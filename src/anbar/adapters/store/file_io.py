"""Reading and writing files of a header and a payload. Everything may raise OSError."""

import os
from collections.abc import Sequence
from pathlib import Path


def read_all(fd: int, views: Sequence[memoryview]) -> bool:
    """Fill all from where the file stands; False at a premature end of it."""
    while views:
        count = os.readv(fd, views)
        if count == 0:
            return False
        views = _after(views, count)
    return True


def write_all(fd: int, views: Sequence[memoryview], offset: int) -> None:
    """Write all, from `offset` on."""
    while views:
        count = os.pwritev(fd, views, offset)
        offset += count
        views = _after(views, count)


def open_new(path: str, root: Path) -> int:
    """A new file, in directories that are made if they are missing; but never `root`, which may be a mount
    that went away."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(2):  # a sweep may remove an empty directory just when it is to be used
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            _make_dirs(Path(path).parent, root)
    return os.open(path, flags, 0o600)


def _make_dirs(path: Path, root: Path) -> None:
    for directory in [*reversed(path.parents), path]:
        if len(directory.parts) > len(root.parts):
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                continue


def _after(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of `views` after their first `count` bytes."""
    rest = []
    for view in views:
        if count >= view.nbytes:
            count -= view.nbytes
        else:
            rest.append(view[count:])
            count = 0
    return rest
