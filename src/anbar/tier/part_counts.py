"""What the stores that a store is made of have counted, as counters to add up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anbar.tier.store import PartStats

PART_KEYS = "anbar_tier_part_keys"
PART_KEYS_HELP = (
    "Keys that a part of a layered or replicated store was asked for, by operation (lookup, load, store, "
    "delete; repair: copied to it afterwards) and result (hit, miss, corrupt, timeout, error, full; refused: "
    "its breaker is open; dropped: no memory for the copy)."
)
PART_BREAKER_STATE = "anbar_tier_part_breaker_state"
PART_BREAKER_STATE_HELP = "Of a part's own circuit breaker: 0 closed, 1 half-open, 2 open."


@dataclass(frozen=True, slots=True)
class PartCount:
    """Keys since the last time."""

    part: str
    operation: str
    result: str
    num_keys: int


class PartCounts:
    """Remembers what was told. Owned by one thread; what it is given may be out of order."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, str], int] = {}

    def take(self, parts: Sequence[PartStats]) -> Iterator[PartCount]:
        """What was added since the last call."""
        for part in parts:
            for (operation, result), num_keys in part.keys.items():
                label = part.id, operation, result
                added = num_keys - self._told.get(label, 0)
                if added > 0:
                    self._told[label] = num_keys
                    yield PartCount(*label, added)
