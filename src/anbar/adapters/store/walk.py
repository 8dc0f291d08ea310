"""Looking at a store's directories: whatever vanishes meanwhile is skipped, for others are at work too."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from anbar.adapters.store.layout import SUFFIX, Layout, part_dir
from anbar.adapters.store.stamp import Stamp, from_ns


class Entry(NamedTuple):
    """One stored value, from its directory entry."""

    path: str
    name: str
    part: int
    num_bytes: int
    stamp: Stamp
    is_ours: bool
    """Of the namespace that this store was opened for."""
    scope_dir: str


class Other(NamedTuple):
    """A file that is no entry, such as one that is being written."""

    path: str
    name: str
    mtime_s: float


class Look(NamedTuple):
    """What was found in one directory of entries."""

    path: str
    entries: Sequence[Entry]
    others: Sequence[Other]


class Walk:
    """Looks at parts of a store, one after another; the list of scopes is read when it is made."""

    def __init__(self, layout: Layout) -> None:
        ours = os.fspath(layout.namespace_dir)
        self.namespaces = [
            directory.path for directory in subdirs(layout.version_dir) if not directory.name.startswith(".")
        ]
        self.scopes = [
            (scope.path, namespace == ours) for namespace in self.namespaces for scope in subdirs(namespace)
        ]

    def part(self, part: int) -> Iterator[Look]:
        """Each directory of one part."""
        for scope, is_ours in self.scopes:
            path = f"{scope}/{part_dir(part)}"
            yield _look(path, part, is_ours)


def _look(path: str, part: int, is_ours: bool) -> Look:
    entries: list[Entry] = []
    others: list[Other] = []
    if os.path.islink(path):  # what it leads to is not the store's to remove
        return Look(path, entries, others)
    scope_dir = os.path.basename(os.path.dirname(path))
    for found in scan(path):
        try:
            status = found.stat(follow_symlinks=False)
        except OSError:
            continue
        if found.name.endswith(SUFFIX):
            stamp = from_ns(status.st_mtime_ns)
            entries.append(Entry(found.path, found.name, part, status.st_size, stamp, is_ours, scope_dir))
        else:
            others.append(Other(found.path, found.name, status.st_mtime))
    return Look(path, entries, others)


def subdirs(path: str | Path) -> Iterator["os.DirEntry[str]"]:
    """The directories in a directory."""
    return (entry for entry in scan(path) if entry.is_dir(follow_symlinks=False))


def scan(path: str | Path) -> list["os.DirEntry[str]"]:
    """A directory's entries; none when it vanished."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
