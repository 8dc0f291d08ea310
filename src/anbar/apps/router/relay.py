"""Carries one answer from an engine to a client, byte for byte, and takes note of its timing.

The one exception is the usage event that the router itself asked for (`adapters/http/usage_event.py`).
"""

import asyncio
from bisect import bisect_left
from typing import Protocol

from anbar.adapters.http.message import error_body
from anbar.adapters.http.server import Exchange
from anbar.adapters.http.transcript import Transcript
from anbar.adapters.http.upstream import Reply
from anbar.adapters.http.usage import Tail
from anbar.apps.router.idempotency import Claim
from anbar.core.clock import Clock
from anbar.core.errors import UpstreamBroken, UpstreamStalled
from anbar.core.outcome import GAP_BUCKETS_S
from anbar.route.breaker import Signal

_EVENT_END = b"\n\n"


class Sieve(Protocol):
    """What an answer's bytes go through on their way to the client."""

    held: bytes

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class Relay:
    """The sink of an engine's body. `done` resolves to True at its end, to False if the engine failed.

    A stream that fails ends with an error event and without `data: [DONE]`; its HTTP message is complete, so
    that no client library throws away the event with the connection. Any other body that fails is cut.
    """

    __slots__ = (
        "_clock",
        "_events",
        "_exchange",
        "_first_s",
        "_last_s",
        "_sieve",
        "copy",
        "done",
        "error",
        "gap_counts",
        "max_gap_s",
        "num_chunks",
        "signal",
        "tail",
        "transcript",
    )

    def __init__(
        self, exchange: Exchange, clock: Clock, is_event_stream: bool, sieve: Sieve | None = None
    ) -> None:
        self._exchange = exchange
        self._clock = clock
        self._events = is_event_stream
        self._sieve = sieve
        self._first_s = 0.0
        self._last_s = 0.0
        self.transcript: Transcript | None = None
        """What the client has read, where another engine may go on with it."""
        self.error: UpstreamBroken | None = None
        """Why the answer broke off, as long as the client was not told."""
        self.copy: Claim | None = None
        """Who takes note of the body, too."""
        self.num_chunks = 0
        self.max_gap_s = 0.0
        self.gap_counts: list[int] = []
        self.tail = Tail()
        self.signal = Signal.NOTHING
        """What the end of a broken answer says about its engine."""
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def mean_gap_s(self) -> float:
        return (self._last_s - self._first_s) / (self.num_chunks - 1) if self.num_chunks > 1 else 0.0

    def attach(self, reply: Reply) -> None:
        """Start: from now on the client's pace is the engine's."""
        self._exchange.on_pause = reply.pause
        self._exchange.on_resume = reply.resume
        reply.pump(self)
        if self._exchange.paused:
            reply.pause()

    def body(self, data: bytes) -> None:
        self.tail.add(data)
        if self._sieve is not None:
            data = self._sieve.feed(data)
            if not data:
                return
        self._exchange.write(data)
        if self.transcript is not None:
            self.transcript.add(data)
        if self.copy is not None:
            self.copy.body(data)
        now_s = self._clock.now_s()
        if self.num_chunks:
            gap_s = now_s - self._last_s
            self.max_gap_s = max(self.max_gap_s, gap_s)
            self.gap_counts[bisect_left(GAP_BUCKETS_S, gap_s)] += 1
        else:
            self._first_s = now_s
            self.gap_counts = [0] * (len(GAP_BUCKETS_S) + 1)
        self._last_s = now_s
        self.num_chunks += 1

    def ended(self) -> None:
        if self._sieve is not None:
            self._exchange.write(self._sieve.end())
        self._exchange.end()
        self._finish(True)

    def broke(self, error: UpstreamBroken, signal: Signal | None = None) -> None:
        stalled = isinstance(error, UpstreamStalled)
        self.signal = signal or (Signal.STALLED if stalled else Signal.FAILED)
        self.error = error
        if signal is not None or self.transcript is None or self.transcript.text() is None:
            self.give_up()
        self._finish(False)

    def give_up(self) -> None:
        """Tell the client of an answer that broke off, if it was not told: nobody goes on with it."""
        error, self.error = self.error, None
        if error is None:
            return
        if self._events:
            event = b"data: " + error_body(str(error), "upstream_error", "engine_failed") + _EVENT_END
            whole = self.tail.bytes().endswith(_EVENT_END) or (self._sieve is not None and self._sieve.held)
            self._exchange.write(event if whole else _EVENT_END + event)
            self._exchange.closing = True
            self._exchange.end()
        else:
            self._exchange.cut()

    def _finish(self, whole: bool) -> None:
        if not self.done.done():
            self.done.set_result(whole)
