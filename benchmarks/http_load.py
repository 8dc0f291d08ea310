"""Clients that ask again as soon as they are answered, and note when they asked and what came."""

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httptools

EVENT = b"data: "


@dataclass
class Sample:
    """What came in a window of time."""

    cpu_s: float = 0.0
    """Processor time of whatever `cpu` looked at."""
    num_answers: int = 0
    num_events: int = 0
    num_failures: int = 0
    """Answers with another status than 200, and connections that ended."""
    whole_s: list[float] = field(default_factory=list)
    """From the request to the end of its answer, for answers that ended in the window."""
    first_s: list[float] = field(default_factory=list)
    """From the request to the first byte of its answer's body."""

    def percentile(self, of: list[float], percent: int) -> float:
        """Of one of the lists; NaN when nothing came."""
        if not of:
            return math.nan
        return statistics.quantiles(of, n=100, method="inclusive")[percent - 1] if len(of) > 1 else of[0]


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, asked: Iterator[bytes]) -> None:
        self._asked = asked
        self._transport: asyncio.WriteTransport | None = None
        self.sample = Sample()
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over:
            self.sample.num_failures += 1

    def on_body(self, data: bytes) -> None:
        if not self._first_s:
            self._first_s = time.perf_counter() - self._asked_s
        self.sample.num_events += data.count(EVENT)

    def on_message_complete(self) -> None:
        sample = self.sample
        if self._parser.get_status_code() == 200:
            sample.num_answers += 1
            sample.whole_s.append(time.perf_counter() - self._asked_s)
            sample.first_s.append(self._first_s)
        else:
            sample.num_failures += 1
        self._ask()

    def _ask(self) -> None:
        assert self._transport is not None, "connected"
        self._parser = httptools.HttpResponseParser(self)
        self._first_s = 0.0
        request = next(self._asked)
        self._asked_s = time.perf_counter()
        self._transport.write(request)


async def load(
    port: int,
    asked: Iterator[bytes],
    cpu: Callable[[], float],
    *,
    num_connections: int,
    ramp_s: float,
    window_s: float,
) -> Sample:
    """Ask for `ramp_s` and then for `window_s`, of which the sample is."""
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Caller(asked), "127.0.0.1", port) for _ in range(num_connections)
    ]
    callers = [caller for _, caller in made]
    await asyncio.sleep(ramp_s)
    total = Sample(num_failures=sum(caller.sample.num_failures for caller in callers))
    for caller in callers:
        caller.sample = Sample()
    before_s = cpu()
    await asyncio.sleep(window_s)
    total.cpu_s = cpu() - before_s
    for transport, caller in made:
        one = caller.sample
        total.num_answers += one.num_answers
        total.num_events += one.num_events
        total.num_failures += one.num_failures
        total.whole_s += one.whole_s
        total.first_s += one.first_s
        caller.over = True
        transport.abort()
    return total
