"""Where damaged entries go, so that someone can see what damaged them: zeros after a crash, a flipped bit, a
short file. A few of them, since more of the same tells nothing new.

    <root>/v1/.damaged/<second>.<namespace, 12 digits>.<scope, 12 digits>.<key>.<length or content>
"""

import os
from contextlib import suppress
from pathlib import Path

from anbar.adapters.store.layout import SUFFIX
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.walk import scan

DAMAGED_DIR = ".damaged"
MAX_FILES = 16
MAX_BYTES = 64 * 1024 * 1024
MAX_AGE_S = 7 * 86_400.0
"""They hold prompts' KV, and are not kept for ever."""
_DIGITS = 12


class Quarantine:
    """Of one store's root."""

    def __init__(self, version_dir: Path, clock: StoreClock) -> None:
        self._path = version_dir / DAMAGED_DIR
        self._clock = clock

    def take(self, path: str, status: os.stat_result, reason: str) -> None:
        """Move a damaged file here, unless someone replaced it meanwhile. May raise OSError."""
        if os.stat(path).st_ino != status.st_ino:
            return
        self._drop_link()
        with suppress(FileExistsError):
            self._path.mkdir(mode=0o700)
        namespace, scope, _, file = path.rsplit("/", 4)[1:]
        origin = f"{namespace[:_DIGITS]}.{scope[:_DIGITS]}"
        name = f"{self._clock.now_s():.0f}.{origin}.{file.removesuffix(SUFFIX)}.{reason}"
        os.rename(path, self._path / name)
        self.prune()

    def prune(self) -> None:
        """Remove the oldest, as far as there are too many, too large or too old ones."""
        num_bytes = 0
        newest_first = sorted(scan(self._path), key=lambda entry: entry.name, reverse=True)
        for number, entry in enumerate(newest_first):
            with suppress(OSError, ValueError):
                num_bytes += entry.stat().st_size
                age_s = self._clock.now_s() - int(entry.name.partition(".")[0])
                if number >= MAX_FILES or num_bytes > MAX_BYTES or age_s > MAX_AGE_S:
                    os.unlink(entry.path)

    def forget(self, scope_dir: str, failures: list[str]) -> None:
        """Remove what is here of a scope; what could not be removed is added to `failures`."""
        path = os.fspath(self._path)
        try:
            if self._drop_link():
                failures.append(f"{path} was a symbolic link, and is gone; what is in its target was left")
            for entry in scan(self._path):
                path = entry.path
                if f".{scope_dir[:_DIGITS]}." in entry.name:
                    with suppress(FileNotFoundError):  # another process was sooner
                        os.unlink(path)
        except NotADirectoryError:
            return
        except OSError as error:
            failures.append(f"{path}: {error.strerror}")

    def _drop_link(self) -> bool:
        """A link in the directory's place is removed: nothing is to be put or removed elsewhere."""
        if not self._path.is_symlink():
            return False
        self._path.unlink(missing_ok=True)
        return True
