"""Removes a scope from a store's directory, in every namespace.

Its directories are renamed first, so that nothing of it is found from then on; then what is in them goes, and
what an earlier removal has left. Links are not followed, also where one takes a directory's place meanwhile:
whoever may write to the store must not choose what else is removed. What a link leads to stays, and is told.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from anbar.adapters.store.layout import TRASH_PREFIX
from anbar.adapters.store.walk import scan
from anbar.tier.store import Outcome

_TOLD = 3
"""Failures that are told one by one; the others are only counted."""
_OF_A_SCOPE = re.compile(re.escape(TRASH_PREFIX) + r"([0-9a-f]{32})-")


@dataclass(frozen=True, slots=True)
class Removal:
    """HIT: there was something, and all of it is gone; MISS: nothing; TIMEOUT, ERROR: see `left`."""

    outcome: Outcome
    left: str = ""
    """What is not removed, and why, in words; may be empty when it is not known."""


@dataclass(slots=True)
class ScopeRemoval:
    """One removal, by one thread. `token` must differ for every one on a directory."""

    version_dir: Path
    scope_dir: str
    token: str
    failures: list[str] = field(default_factory=list)

    def run(self, may_go_on: Callable[[], bool]) -> Removal:
        """Remove as long as `may_go_on`, which is asked before each file."""
        if self.version_dir.is_symlink():
            self.failures.append(f"{self.version_dir} is a symbolic link, which is not followed")
            return self._removal(False, [])
        aside = [str(self.version_dir / name) for name in self._put_aside()]
        is_done = all(self._remove(path, may_go_on) for path in aside)
        return self._removal(bool(aside), [] if is_done else aside)

    def _removal(self, has_found: bool, unfinished: list[str]) -> Removal:
        told = self.failures[:_TOLD]
        if len(self.failures) > _TOLD:
            told.append(f"and {len(self.failures) - _TOLD:,} more")
        if unfinished:
            num_left = sum(len(files) for path in unfinished for _, _, files in os.walk(path))
            trash = self.version_dir / f"{TRASH_PREFIX}{self.scope_dir}-*"
            told.append(f"{num_left:,} files are left in {trash}, where no engine finds them")
        if self.failures:
            return Removal(Outcome.ERROR, "; ".join(told))
        if unfinished:
            return Removal(Outcome.TIMEOUT, told[0])
        return Removal(Outcome.HIT if has_found else Outcome.MISS)

    def _put_aside(self) -> Iterator[str]:
        """Rename what there is of the scope; the names, and those of what was renamed before."""
        number = 0
        for entry in scan(self.version_dir):
            if entry.name.startswith(TRASH_PREFIX):
                owner = _OF_A_SCOPE.match(entry.name)
                if owner is None or owner[1] == self.scope_dir:
                    yield entry.name
            elif entry.is_symlink():
                if os.path.lexists(f"{entry.path}/{self.scope_dir}"):
                    self.failures.append(f"{entry.path} is a symbolic link, which is not followed")
            elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                trash = f"{TRASH_PREFIX}{self.scope_dir}-{self.token}-{number}"
                number += 1
                if self._rename(entry.path, trash):
                    yield trash

    def _rename(self, namespace: str, trash: str) -> bool:
        """Whether there was something; a link stays one."""
        try:
            directory = os.open(namespace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.rename(self.scope_dir, self.version_dir / trash, src_dir_fd=directory)
            finally:
                os.close(directory)
        except OSError as error:
            self._failed(f"{namespace}/{self.scope_dir}", error)
            return False
        return True

    def _remove(self, top: str, may_go_on: Callable[[], bool]) -> bool:
        """Remove what was put aside; False when the time is over."""
        try:
            if not stat.S_ISDIR(os.lstat(top).st_mode):
                self._unlink(top, top)
            for path, directories, files, descriptor in os.fwalk(top, topdown=False, onerror=self._unread):
                for name in files:
                    if not may_go_on():
                        return False
                    self._unlink(f"{path}/{name}", name, descriptor)
                for name in directories:
                    self._rmdir(f"{path}/{name}", name, descriptor)
            self._rmdir(top, top)
        except (OSError, RecursionError) as error:
            self._failed(top, error)
        return True

    def _rmdir(self, path: str, name: str, descriptor: int | None = None) -> None:
        """An empty directory that stays is no failure: what keeps one from being empty is."""
        try:
            os.rmdir(name, dir_fd=descriptor)
        except NotADirectoryError:
            self._unlink(path, name, descriptor)
        except OSError:
            return

    def _unlink(self, path: str, name: str, descriptor: int | None = None) -> None:
        target = ""
        with suppress(OSError):  # no link
            target = os.readlink(name, dir_fd=descriptor)
        try:
            os.unlink(name, dir_fd=descriptor)
        except OSError as error:
            self._failed(path, error)
            return
        if target:
            self.failures.append(
                f"{path} was a symbolic link, and is gone; what is in {target} was left: is it KV?"
            )

    def _unread(self, error: OSError) -> None:
        self._failed(str(error.filename), error)

    def _failed(self, path: str, error: OSError | RecursionError) -> None:
        if not isinstance(error, FileNotFoundError):  # another process was sooner
            why = error.strerror if isinstance(error, OSError) else "directories are nested too deep"
            self.failures.append(f"{path}: {why or type(error).__name__}")
