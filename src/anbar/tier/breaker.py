"""A circuit breaker around a store: one that is down costs one deadline, then nothing, until it is back."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from anbar.core.clock import Clock
from anbar.tier.store import Outcome


class BreakerState(Enum):
    """`value` is what the metric shows."""

    CLOSED = 0
    """Calls go through."""
    HALF_OPEN = 1
    """The pause is over: one call at a time may find out whether the store is back."""
    OPEN = 2
    """Calls are refused."""


class Verdict(Enum):
    """What one call says about the store's health."""

    OK = "ok"
    """The store answered; also when the answer was a miss, a damaged entry or "full"."""
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    """As bad as several failures: everyone who calls waits this long, so it opens the breaker at once."""
    NOTHING = "nothing"
    """It was not asked."""


def judge(outcomes: Sequence[Outcome]) -> Verdict:
    """What a call says about the store: fine as long as some key was really answered."""
    if outcomes and all(outcome is Outcome.NO_KEY for outcome in outcomes):
        return Verdict.NOTHING
    if not outcomes or any(outcome not in (Outcome.TIMEOUT, Outcome.ERROR) for outcome in outcomes):
        return Verdict.OK
    return Verdict.TIMED_OUT if Outcome.TIMEOUT in outcomes else Verdict.FAILED


Ticket = NewType("Ticket", int)
"""Says between which two openings of the breaker a call was admitted."""


@dataclass(frozen=True, slots=True)
class BreakerConfig:
    """When to open, and for how long."""

    max_failures: int = 3
    """Consecutive failed calls that open the breaker."""
    pause_s: float = 1.0
    """First pause; doubled each time that the probe fails or the breaker opens again soon after closing."""
    max_pause_s: float = 30.0
    """Longest pause; also how long a closed breaker must stay closed before the pause starts small again."""


class Breaker:
    """Thread-safe. A caller takes a ticket from `admit()` and, if it got one, reports exactly one `record()`.

    `is_open()` lets a caller that only plans (and will not call) see whether it is worth queueing.
    """

    def __init__(self, clock: Clock, config: BreakerConfig | None = None) -> None:
        self._clock = clock
        self._config = config or BreakerConfig()
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._pause_s = self._config.pause_s
        self._opened_at_s = 0.0
        self._closed_at_s = float("-inf")
        self._probing = False
        self._num_opened = 0
        self._num_told = 0

    def take_num_opened(self) -> int:
        """How often the breaker opened since the last call, reopening after a failed probe included."""
        with self._lock:
            since, self._num_told = self._num_opened - self._num_told, self._num_opened
            return since

    def state(self) -> BreakerState:
        with self._lock:
            return self._current()

    def is_open(self) -> bool:
        """Whether a call made now would certainly be refused. Asked for every key, and mostly closed: that
        needs no lock, since whoever reads the state a moment too early could have asked a moment earlier."""
        if self._state is BreakerState.CLOSED:
            return False
        with self._lock:
            return self._current() is BreakerState.OPEN

    def has_been_closed(self, for_s: float = 0.0) -> bool:
        """Whether calls have gone through for so long. Asked for every call; mostly nothing has failed."""
        if not self._num_opened:
            return True
        with self._lock:
            is_closed = self._state is BreakerState.CLOSED
            return is_closed and self._clock.now_s() - self._closed_at_s >= for_s

    def admit(self) -> Ticket | None:
        """A ticket to call with, or None when the call is refused; in half-open state it is the one probe."""
        with self._lock:
            match self._current():
                case BreakerState.OPEN:
                    return None
                case BreakerState.HALF_OPEN if self._probing:
                    return None
                case BreakerState.HALF_OPEN:
                    self._state = BreakerState.HALF_OPEN
                    self._probing = True
            return Ticket(self._num_opened)

    def record(self, ticket: Ticket, verdict: Verdict) -> None:
        """What became of an admitted call. A call from before the breaker last opened changes nothing: its
        failure is known already, and its success says nothing about now."""
        with self._lock:
            if ticket != self._num_opened:
                return
            if verdict is Verdict.NOTHING:
                self._probing = False
                return
            if verdict is Verdict.OK:
                self._failures = 0
                if self._state is BreakerState.HALF_OPEN:
                    self._close()
                return
            self._failures += 1
            probe_failed = self._state is BreakerState.HALF_OPEN
            if probe_failed or verdict is Verdict.TIMED_OUT or self._failures >= self._config.max_failures:
                self._open()

    def _current(self) -> BreakerState:
        pause_over = self._clock.now_s() - self._opened_at_s >= self._pause_s
        if self._state is BreakerState.OPEN and pause_over:
            return BreakerState.HALF_OPEN
        return self._state

    def _open(self) -> None:
        now = self._clock.now_s()
        again = now - self._closed_at_s < self._config.max_pause_s
        if self._state is BreakerState.HALF_OPEN or again:
            self._pause_s = min(2 * self._pause_s, self._config.max_pause_s)
        else:
            self._pause_s = self._config.pause_s
        self._state = BreakerState.OPEN
        self._opened_at_s = now
        self._probing = False
        self._num_opened += 1

    def _close(self) -> None:
        self._state = BreakerState.CLOSED
        self._closed_at_s = self._clock.now_s()
        self._probing = False
