"""The router's count of an engine's requests beside the engine's own.

Two differences mean something, and only if they last: gauges are as old as the engine's last step, and
between them and our count requests come and go.

- The engine has **more** than it was sent: somebody else uses it. What two readings in succession agree
  on counts as load.
- The engine says that it has **nothing**, for `IDLE_S`, while requests that were sent before are not over: a
  client that reads slowly, or a count that leaked. Either way they are no load: *ghosts*, until they end.
"""

from dataclasses import dataclass
from enum import Enum

IDLE_S = 60.0
"""How long an engine must say that it has nothing. Longer than any step, since until its first step is
over an engine that was idle still says so."""


@dataclass(frozen=True, slots=True)
class Strangers:
    """Sequences that an engine has beyond those that it was sent from here."""

    num_running: int = 0
    num_waiting: int = 0

    @property
    def total(self) -> int:
        return self.num_running + self.num_waiting


NO_STRANGERS = Strangers()


class IdleStep(Enum):
    """What to do about requests in flight after a reading."""

    NOTHING = "nothing"
    MARK = "mark"
    """Remember those that are in flight now: the engine says that it has none."""
    DROP = "drop"
    """Those that were marked, and still are in flight, are ghosts."""


class LoadCheck:
    """Readings of one engine, in their order."""

    def __init__(self) -> None:
        self._before = 0
        """Sequences too many at the last reading."""
        self._idle_since_s: float | None = None
        self._has_moved = False
        """Whether the engine ever said that it has something: only then its saying that it has nothing is
        believed."""

    def strangers(self, num_running: int, num_waiting: int, num_known: int, num_queued: int) -> Strangers:
        """What the reading says of others. `num_known`: requests of ours that are no ghosts, `num_queued` of
        them without a first token; of counts before and after the look, the larger."""
        too_many = max(0, num_running + num_waiting - num_known)
        total, self._before = min(too_many, self._before), too_many
        waiting = min(total, max(0, num_waiting - num_queued))
        return Strangers(total - waiting, waiting) if total else NO_STRANGERS

    def idle(self, num_told: int, num_in_flight: int, now_s: float) -> IdleStep:
        """What the reading says of requests in flight, ghosts left out."""
        self._has_moved = self._has_moved or num_told > 0
        if num_told or not num_in_flight or not self._has_moved:
            self._idle_since_s = None
            return IdleStep.NOTHING
        if self._idle_since_s is None:
            self._idle_since_s = now_s
            return IdleStep.MARK
        if now_s - self._idle_since_s < IDLE_S:
            return IdleStep.NOTHING
        self._idle_since_s = None  # the next reading begins anew with those that came since
        return IdleStep.DROP

    def forget(self) -> None:
        """There was no reading: what was seen before says nothing any more."""
        self._before = 0
        self._idle_since_s = None
