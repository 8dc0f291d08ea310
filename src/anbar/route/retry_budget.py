"""How many retries live traffic may cause: without a bound an outage would double its own load."""

from dataclasses import dataclass

_NUM_SLOTS = 10
"""Parts of the window: what is older is forgotten a part at a time."""


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """Retries allowed within any window: `floor + share * requests`."""

    share: float = 0.2
    floor: int = 10
    """What a quiet router may retry: with two requests a minute a share of them is nothing."""
    window_s: float = 10.0


class RetryBudget:
    """Counts requests and retries over a sliding window. `now_s` never goes back."""

    def __init__(self, config: RetryConfig) -> None:
        self.config = config
        """May be replaced at any time."""
        self._slot_s = config.window_s / _NUM_SLOTS
        self._slot = 0
        self._requests = [0] * _NUM_SLOTS
        self._retries = [0] * _NUM_SLOTS

    def request(self, now_s: float) -> None:
        """A request has come that may need a retry."""
        self._advance(now_s)
        self._requests[self._slot % _NUM_SLOTS] += 1

    def allows(self, now_s: float) -> bool:
        """Whether one more retry is within the budget."""
        self._advance(now_s)
        config = self.config
        return sum(self._retries) + 1 <= config.floor + config.share * sum(self._requests)

    def spend(self, now_s: float) -> None:
        """A retry is made."""
        self._advance(now_s)
        self._retries[self._slot % _NUM_SLOTS] += 1

    def _advance(self, now_s: float) -> None:
        slot = int(now_s / self._slot_s)
        if slot == self._slot:
            return
        for passed in range(max(self._slot, slot - _NUM_SLOTS) + 1, slot + 1):
            self._requests[passed % _NUM_SLOTS] = self._retries[passed % _NUM_SLOTS] = 0
        self._slot = max(self._slot, slot)
