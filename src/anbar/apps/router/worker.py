"""What a router process is when it is one of several on one port: its place, and its tie to the parent.

The parent (`anbar.apps.router.workers`) tells a worker its place in the environment and holds the other end
of its standard input: end of file there means that the parent is gone, whatever ended it.
"""

import asyncio
import os
import select
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anbar.core.errors import ConfigError

VARIABLE = "ANBAR_ROUTER_WORKER"
"""`place/count directory`."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One of `count` workers, `place` from 0. `directory` is private to the workers of one router."""

    place: int
    count: int
    directory: Path

    def variable(self) -> Mapping[str, str]:
        """For the environment of the process."""
        return {VARIABLE: f"{self.place}/{self.count} {self.directory}"}

    @property
    def parent(self) -> Path:
        """The parent's socket."""
        return self.directory / "parent.sock"

    @property
    def socket(self) -> Path:
        """Where the others reach this worker."""
        return self.directory / f"{self.place}.sock"

    @property
    def serves(self) -> Path:
        """A file that is there once the worker has listened."""
        return self.directory / f"{self.place}.serves"

    def own_file(self, path: Path) -> Path:
        """This worker's part of a file that one process must write alone: `log.jsonl` is `log-w1.jsonl` for
        the second worker."""
        return path if self.place == 0 else path.with_name(f"{path.stem}-w{self.place}{path.suffix}")


def worker_of(environ: Mapping[str, str]) -> Worker | None:
    """Which worker this process is; None when it is a router by itself."""
    text = environ.get(VARIABLE)
    if text is None:
        return None
    places, _, directory = text.partition(" ")
    place, _, count = places.partition("/")
    if not (place.isdecimal() and count.isdecimal() and directory):
        raise ConfigError(f"{VARIABLE} is {text!r}: it is set by `anbar router` for its workers only")
    return Worker(int(place), int(count), Path(directory))


def on_orphaned(parent_is_gone: Callable[[], None], descriptor: int = 0) -> None:
    """Call `parent_is_gone`, once, when nobody holds the other end of standard input any more."""
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(descriptor, 64):
            loop.remove_reader(descriptor)
            parent_is_gone()

    loop.add_reader(descriptor, readable)


class WholeLines:
    """Lines to a descriptor that other processes write to as well: what is written at once to a pipe stays
    together only up to PIPE_BUF bytes (pipe(7)), so no line is split over two writes if it is shorter."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: bytes, /) -> int:
        begin = 0
        while begin < len(data):
            end = begin + select.PIPE_BUF
            if end < len(data):
                end = data.rfind(b"\n", begin, end) + 1 or data.find(b"\n", begin) + 1 or len(data)
            begin += os.write(self._descriptor, data[begin:end])
        return len(data)

    def flush(self) -> None:
        """Everything is written already."""
