"""Whether the store has less room, or takes less, than is offered: measured, with hysteresis."""

from dataclasses import dataclass
from enum import Enum

from anbar.core.clock import Clock


class Reason(Enum):
    """What presses. `value` is the metric's label."""

    QUEUE = "queue"
    """Nearly as many rows of host RAM wait to be written as may: soon stores are skipped, or already."""
    FULL = "full"
    """The store said that it is full."""
    CAPACITY = "capacity"
    """The store is filled faster than it makes room."""


@dataclass(frozen=True, slots=True)
class PressureConfig:
    """When pressure begins and ends."""

    queue_high: float = 0.75
    queue_low: float = 0.4
    """Shares of the rows that may wait for stores."""
    capacity_high: float = 0.96
    capacity_low: float = 0.93
    """Shares of the capacity. A store that evicts in time stays below: files are swept from 95 %."""
    hold_s: float = 10.0
    """For how long pressure lasts after it was seen last."""


class Pressure:
    """Owned by the scheduler's thread."""

    def __init__(self, clock: Clock, config: PressureConfig | None = None) -> None:
        self._clock = clock
        self._config = config or PressureConfig()
        self._until_s: dict[Reason, float] = {}

    def reason(self) -> Reason | None:
        """What presses now, the first of several; None: nothing."""
        if not self._until_s:
            return None
        now_s = self._clock.now_s()
        self._until_s = {reason: until for reason, until in self._until_s.items() if until > now_s}
        return min(self._until_s, key=list(Reason).index, default=None)

    def queued(self, share: float) -> None:
        """So large a share of the rows that may wait for stores does."""
        self._note(Reason.QUEUE, share, self._config.queue_high, self._config.queue_low)

    def full(self) -> None:
        """The store said that it is full."""
        self._note(Reason.FULL, 1.0, 1.0, 1.0)

    def occupied(self, share: float) -> None:
        """So much of the store's capacity is used."""
        self._note(Reason.CAPACITY, share, self._config.capacity_high, self._config.capacity_low)

    def _note(self, reason: Reason, level: float, high: float, low: float) -> None:
        now_s = self._clock.now_s()
        presses = self._until_s.get(reason, now_s) > now_s
        if level >= high or (presses and level >= low):
            self._until_s[reason] = now_s + self._config.hold_s
