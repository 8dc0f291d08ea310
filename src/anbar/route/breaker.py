"""When an engine that fails on requests gets no more of them, and how it comes back. No clock of its own.

CLOSED     requests flow; `max_failures` failures in a row, or one stall, open it.
OPEN       no requests for `pause_s`; the next good health probe after that half-opens it.
HALF_OPEN  one request at a time; its first byte closes the breaker, its failure opens it again.

What a client caused is no failure: a 4xx, or a client that went away, says nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from anbar.core.ids import EngineId


class BreakerState(Enum):
    """See the module's text."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Signal(Enum):
    """What one try says about an engine."""

    NOTHING = "nothing"
    """A client's error, a client that left, a defect of ours, an engine that asks for a pause."""
    OK = "ok"
    FAILED = "failed"
    """No connection, a broken one, or an answer of 5xx."""
    STALLED = "stalled"
    """Nothing came in time. As bad as several failures, since everyone who meets it waits as long."""


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When to open, and for how long."""

    max_failures: int = 5
    pause_s: float = 1.0
    """Not longer, since a half-open breaker risks one request at a time, and that one has fallbacks."""


Ticket = NewType("Ticket", int)
"""Says in which of its states' turns a breaker let a request pass."""


class Breaker:
    """Every request takes a ticket with `begin` and gives it back with one `end`, whatever happens."""

    def __init__(
        self,
        config: BreakerConfig | None = None,
        changed: Callable[[BreakerState], None] = lambda state: None,
    ) -> None:
        self.config = config or BreakerConfig()
        """May be replaced at any time."""
        self._changed = changed
        self._turn = 0
        self._num_failures = 0
        self._num_trials = 0
        self.state = BreakerState.CLOSED
        self.opened_s = 0.0

    @property
    def admits(self) -> bool:
        """Whether a request may be sent now."""
        if self.state is BreakerState.HALF_OPEN:
            return self._num_trials == 0
        return self.state is BreakerState.CLOSED

    def begin(self) -> Ticket:
        """A request is sent, admitted or for want of another engine."""
        self._num_trials += self.state is BreakerState.HALF_OPEN
        return Ticket(self._turn)

    def first_byte(self, ticket: Ticket) -> None:
        """A good answer begins: enough to close, though the next failure opens again."""
        if ticket == self._turn and self.state is not BreakerState.CLOSED:
            self._num_failures = self.config.max_failures - 1
            self._become(BreakerState.CLOSED)

    def end(self, ticket: Ticket, signal: Signal, now_s: float) -> None:
        """What became of a request. One from before the last change of state says nothing about now, but that
        an answer whose first byte closed the breaker also came to its end."""
        current = ticket == self._turn
        if current and self.state is BreakerState.HALF_OPEN:
            self._num_trials -= 1
        if signal is Signal.OK and self.state is BreakerState.CLOSED:
            self._num_failures = 0
        elif current and signal is Signal.OK:
            self._num_failures = 0
            self._become(BreakerState.CLOSED)
        elif current and signal in (Signal.FAILED, Signal.STALLED):
            self._num_failures += 1
            enough = signal is Signal.STALLED or self._num_failures >= self.config.max_failures
            if self.state is not BreakerState.OPEN and (enough or self.state is BreakerState.HALF_OPEN):
                self.opened_s = now_s
                self._become(BreakerState.OPEN)

    def probed(self, now_s: float) -> None:
        """A health probe succeeded."""
        if self.state is BreakerState.OPEN and now_s - self.opened_s >= self.config.pause_s:
            self._become(BreakerState.HALF_OPEN)

    def _become(self, state: BreakerState) -> None:
        self._turn += 1
        self._num_trials = 0
        self.state = state
        self._changed(state)


def ejected(
    shut: Iterable[tuple[float, EngineId]], num_serving: int, max_share: float
) -> frozenset[EngineId]:
    """Which engines get nothing, of those in `shut` (when their breakers opened, and their ids): at most
    `max_share` of the `num_serving` that serve a model, those that opened first. The others are asked where
    nobody better is left: what trips the breakers of a whole fleet is seldom the fleet's own doing."""
    most = int(max_share * num_serving)
    return frozenset(engine for _, engine in sorted(shut)[:most])
