"""Writes the block log on a thread of its own: the event loop hands over and goes on, whatever the disk
does."""

import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from anbar.adapters.telemetry.block_ids import KeyedIds
from anbar.adapters.telemetry.rotating_file import RotatingFile
from anbar.core.block_log import BlockLogEntry, trace_chain
from anbar.core.request import RouteQuery

MAX_QUEUED = 4096
"""Requests that may wait to be written: seconds of the busiest router."""

MAX_QUEUED_TOKENS = 4_000_000
"""Tokens of their prompts, four bytes each."""

_BATCH = 256
"""Lines of one write."""

_STOP_LIMIT_S = 10.0
"""How long a stop waits for what is queued: a disk that hangs must not hang the router."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request to be written: `entry` but for its `hash_ids`, which are made on the thread from `tokens`
    (packed, four bytes each) of a prompt to an engine with the weights `weights`."""

    entry: BlockLogEntry
    weights: str
    tokens: Sequence[int]
    query: RouteQuery
    """Without tokens."""


@dataclass(slots=True)
class BlockLogStats:
    """Counts since the start."""

    num_taken: int = 0
    """They are written, failed, or wait."""
    num_written: int = 0
    num_dropped: int = 0
    """The queue was full."""
    num_failed: int = 0
    """The file could not be written."""


def recorded(entry: BlockLogEntry, weights: str, query: RouteQuery) -> Recorded:
    """`query`'s tokens packed, so that what waits is small."""
    return Recorded(entry, weights, array("I", query.token_ids), msgspec.structs.replace(query, token_ids=()))


class BlockLogWriter:
    """`offer` is for one thread. `on_trouble` hears, on the writer's own thread, of the first failure of a
    row of them, and of its end with ""."""

    def __init__(self, file: RotatingFile, ids: KeyedIds, on_trouble: Callable[[str], None]) -> None:
        self._file = file
        self._ids = ids
        self._on_trouble = on_trouble
        self._queue: deque[Recorded] = deque()
        self._num_tokens = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="block-log", daemon=True)
        self.stats = BlockLogStats()

    def start(self) -> None:
        """Open the file and begin. Raises StackError when it cannot be written."""
        self._file.open()
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, for a few seconds at most, and end."""
        if self._thread.ident is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(_STOP_LIMIT_S)

    def offer(self, item: Recorded) -> None:
        """Have a request written soon; when too much waits already it is dropped and counted. Never blocks
        for longer than it takes to append to a list."""
        with self._changed:
            if len(self._queue) >= MAX_QUEUED or self._num_tokens + len(item.tokens) > MAX_QUEUED_TOKENS:
                self.stats.num_dropped += 1
                return
            self.stats.num_taken += 1
            self._queue.append(item)
            self._num_tokens += len(item.tokens)
            self._changed.notify()

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._write(batch)
            except Exception as error:  # noqa: BLE001 - the supervisor of this thread
                self.stats.num_failed += len(batch)
                self._tell(type(error).__name__)
        self._file.close()

    def _take(self) -> list[Recorded]:
        """The next requests, waited for; none when it is time to end."""
        with self._changed:
            while not self._queue and not self._stopping:
                self._changed.wait()
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            self._num_tokens -= sum(len(item.tokens) for item in batch)
            return batch

    def _write(self, batch: Sequence[Recorded]) -> None:
        lines = b"".join([self._line(item) for item in batch])
        try:
            self._file.write(lines)
        except OSError as error:
            self.stats.num_failed += len(batch)
            self._tell(error.strerror or str(error))
        else:
            self.stats.num_written += len(batch)
            self._tell("")

    def _line(self, item: Recorded) -> bytes:
        query = msgspec.structs.replace(item.query, token_ids=tuple(item.tokens))
        chain = trace_chain(item.weights, query, item.entry.block_size)
        return _encode(msgspec.structs.replace(item.entry, hash_ids=self._ids.blocks(chain))) + b"\n"

    def _tell(self, trouble: str) -> None:
        if bool(trouble) != self._failing:
            self._failing = bool(trouble)
            self._on_trouble(trouble)
