"""Carries one answer from an engine to a client, byte for byte, and takes note of its timing.

The one exception is the usage event that the router itself asked for (`adapters/http/usage_event.py`).
"""

import asyncio
from typing import Protocol

from anbar.adapters.http.message import error_body
from anbar.adapters.http.plain_events import PlainEvents
from anbar.adapters.http.server import Exchange
from anbar.adapters.http.transcript import Transcript
from anbar.adapters.http.upstream import Reply
from anbar.adapters.http.usage import Tail
from anbar.apps.router.idempotency import Claim
from anbar.apps.router.pace import Pace
from anbar.core.clock import Clock
from anbar.core.errors import UpstreamBroken, UpstreamStalled
from anbar.route.breaker import Signal

_EVENT_END = b"\n\n"
NO_EVENTS = PlainEvents()
"""Of answers that are no streams: nobody asks it."""


class Sieve(Protocol):
    """What an answer's bytes go through on their way to the client."""

    held: bytes

    @property
    def is_between(self) -> bool:
        """Whether the next bytes begin an event that may pass without a look, if it is nothing but text."""
        ...

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
        "_may_pass",
        "_passed_plain",
        "_plain",
        "_sieve",
        "copy",
        "done",
        "error",
        "pace",
        "signal",
        "tail",
        "transcript",
        "why",
    )

    def __init__(
        self, exchange: Exchange, clock: Clock, is_event_stream: bool, sieve: Sieve | None = None
    ) -> None:
        self._exchange = exchange
        self._clock = clock
        self._events = is_event_stream
        self._sieve = sieve
        self._plain = PlainEvents() if is_event_stream else NO_EVENTS
        self._may_pass = False
        """All events so far have ended, and the next may pass without a look if it is nothing but text."""
        self._passed_plain = False
        """The last event was one of these, which `tail` does not have."""
        self.transcript: Transcript | None = None
        """What the client has read, where another engine may go on with it."""
        self.error: UpstreamBroken | None = None
        """Why the answer broke off, as long as the client was not told."""
        self.why = ""
        """The same in words, for good."""
        self.copy: Claim | None = None
        """Who takes note of the body, too."""
        self.pace = Pace()
        self.tail = Tail()
        """The end of the body, but for events that are nothing but text."""
        self.signal = Signal.NOTHING
        """What the end of a broken answer says about its engine."""
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def attach(self, reply: Reply) -> None:
        """Start: from now on the client's pace is the engine's."""
        self._exchange.on_pause = reply.pause
        self._exchange.on_resume = reply.resume
        reply.pump(self, self.chunk if self._events and self.copy is None else None)
        if self._exchange.paused:
            reply.pause()

    def chunk(self, data: bytes, framed: bytes) -> None:
        """As `body`, for one whole chunk: nearly always an event that is nothing but text."""
        text = self._plain.text(data) if self._may_pass else None
        if text is None:
            self.body(data)
            return
        self._exchange.pass_on(data, framed)
        self._passed_plain = True
        if self.transcript is not None:
            self.transcript.add_text(text)
        self.pace.chunk(self._clock.now_s())

    def body(self, data: bytes) -> None:
        passed = data if self._sieve is None else self._sieve.feed(data)
        if self._events:
            self._look(data)
        self.tail.add(data)
        if passed:
            self._pass(passed)

    def _pass(self, data: bytes) -> None:
        self._exchange.write(data)
        if self.transcript is not None:
            self.transcript.add(data)
        if self.copy is not None:
            self.copy.body(data)
        self.pace.chunk(self._clock.now_s())

    def _look(self, data: bytes) -> None:
        """Learn from `data`, which the sieve has now."""
        if self._passed_plain:
            self._passed_plain = False
            self.tail = Tail()
        if self._may_pass:
            self._plain.learn(data)
        self._may_pass = data.endswith(_EVENT_END) and (self._sieve is None or self._sieve.is_between)

    def ended(self) -> None:
        if self._sieve is not None:
            self._exchange.write(self._sieve.end())
        self._exchange.end()
        self._finish(True)

    def broke(self, error: UpstreamBroken, signal: Signal | None = None) -> None:
        stalled = isinstance(error, UpstreamStalled)
        self.signal = signal or (Signal.STALLED if stalled else Signal.FAILED)
        self.error, self.why = error, str(error)
        if signal is not None or self.transcript is None or self.transcript.text() is None:
            self.give_up()
        self._finish(False)

    def give_up(self) -> None:
        """Tell the client of an answer that broke off, if it was not told: nobody goes on with it."""
        error, self.error = self.error, None
        if error is None:
            return
        if self._events:
            event = b"data: " + error_body(str(error), error.kind, error.code) + _EVENT_END
            whole = self._passed_plain or self.tail.bytes().endswith(_EVENT_END)
            whole = whole or bool(self._sieve is not None and self._sieve.held)
            self._exchange.write(event if whole else _EVENT_END + event)
            self._exchange.closing = True
            self._exchange.end()
        else:
            self._exchange.cut()

    def _finish(self, whole: bool) -> None:
        if not self.done.done():
            self.done.set_result(whole)
