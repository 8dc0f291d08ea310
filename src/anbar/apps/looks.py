"""Looks at where engines are listed. For the router and for the doctor."""

import asyncio
from pathlib import Path
from typing import Protocol

from anbar.apps.file_watch import FileWatch, Signature, signature
from anbar.config.discover import DiscoverConfig, Scheme
from anbar.config.found import Sighting, read_engines
from anbar.core.errors import ConfigError, LookFailed
from anbar.core.look import LookFailure


class Look(Protocol):
    """A source of engines. One look at a time."""

    async def look(self) -> Sighting:
        """The engines that are listed now. Raises LookFailed."""
        ...


def look_at(discover: DiscoverConfig) -> Look:
    """What looks at the source that `discover` names. Raises ConfigError when nothing can."""
    if discover.file is None:
        raise ConfigError("engines[].discover.dns: is not there yet; use `file`")
    return FileLook(discover.file, discover.scheme, discover.look_every_s)


class FileLook:
    """A file. It is read when it has changed and rests: what is read while it is written may be a list all
    the same, and a shorter one. Until then what was read before holds, an error too."""

    def __init__(self, path: Path, scheme: Scheme, every_s: float) -> None:
        self._path = path
        self._scheme = scheme
        self._every_s = every_s
        self._watch = FileWatch(None)
        self._last: Sighting | str | None = None

    async def look(self) -> Sighting:
        """As `Look.look`; the file system may be a slow one."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Sighting:
        now = signature(self._path)
        if now is None:
            raise LookFailed(LookFailure.MISSING, f"{self._path}: there is no such file")
        if self._watch.is_due(now) or self._last is None:
            self._last = self._read(now)
        if isinstance(self._last, str):
            raise LookFailed(LookFailure.INVALID, self._last)
        return self._last

    def _read(self, now: Signature) -> Sighting | str:
        """What is listed, or why that cannot be told."""
        self._watch.was_read(now)
        try:
            return Sighting(read_engines(self._path, self._scheme), self._every_s)
        except ConfigError as error:
            return str(error)
