"""What nobody needs any more: what dead writers left, removed scopes, empty directories.

Removing is bounded, by a budget of looks and removals; what is left is for the next time.
"""

import os
from contextlib import suppress
from pathlib import Path

from anbar.adapters.store.layout import TEMP_SUFFIX, TRASH_PREFIX, VERSION_DIR, Layout, version_of
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.walk import Look, Walk, scan, subdirs

STALE_S = 600.0
"""A temporary file so old is what a dead writer left, and nobody is about to write into an empty directory so
old."""


def remove_some(path: str | Path, budget: int) -> int:
    """Remove a directory and what is in it, at most about `budget` files and directories; what is left of the
    budget. Others may remove the same."""
    for entry in scan(path):
        if budget <= 0:
            return 0
        if entry.is_dir(follow_symlinks=False):
            budget = remove_some(entry.path, budget)
            continue
        budget -= 1
        with suppress(OSError):
            os.unlink(entry.path)
    if budget > 0:
        with suppress(OSError):
            os.rmdir(path)
        budget -= 1
    return budget


def empty_trash(layout: Layout, budget: int) -> None:
    """Remove scopes that are in the trash."""
    for directory in subdirs(layout.version_dir):
        if directory.name.startswith(TRASH_PREFIX) and budget > 0:
            budget = remove_some(directory.path, budget)


def remove_empty(walk: Walk, clock: StoreClock) -> None:
    """Remove scopes and namespaces without a directory."""
    for path in [scope for scope, _ in walk.scopes] + walk.namespaces:
        remove_if_empty(path, clock)


def tidy_directory(look: Look, clock: StoreClock) -> None:
    """Remove temporary files of dead writers from a directory of entries, and it itself if it is empty."""
    for other in look.others:
        if other.name.endswith(TEMP_SUFFIX) and clock.age_s(other.mtime_s) > STALE_S:
            with suppress(OSError):
                os.unlink(other.path)
    if not look.entries and not look.others:
        remove_if_empty(look.path, clock)


def remove_if_empty(path: str, clock: StoreClock) -> None:
    """Remove a directory in which nothing has changed for some time, unless something is in it."""
    with suppress(OSError):
        if clock.age_s(os.stat(path).st_mtime) > STALE_S:
            os.rmdir(path)


def remove_unused_versions(layout: Layout, clock: StoreClock, unused_s: float, budget: int) -> None:
    """Remove what earlier format versions have left and nobody has used for so long: engines of an earlier
    release renew the time of what they read. A later version is its own engines' to look after."""
    ours = version_of(VERSION_DIR)
    assert ours is not None
    for directory in subdirs(layout.root):
        version = version_of(directory.name)
        if version is not None and version < ours:
            budget = _remove_unused(directory.path, clock, unused_s, budget)


def _remove_unused(path: str, clock: StoreClock, unused_s: float, budget: int) -> int:
    for entry in scan(path):
        if budget <= 0:
            return 0
        budget -= 1
        if entry.is_dir(follow_symlinks=False):
            budget = _remove_unused(entry.path, clock, unused_s, budget)
            continue
        with suppress(OSError):
            if clock.age_s(entry.stat(follow_symlinks=False).st_mtime) > unused_s:
                os.unlink(entry.path)
    remove_if_empty(path, clock)
    return budget
