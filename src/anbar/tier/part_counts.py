"""What the stores that a store is made of have counted and hold, as metrics."""

from collections.abc import Iterator, Mapping, Sequence

from anbar.tier.scope_counts import Sample
from anbar.tier.store import PartStats

KEYS = "anbar_tier_part_keys"
EVICTED = "anbar_tier_part_evicted"
BREAKER_STATE = "anbar_tier_part_breaker_state"
USED_BYTES = "anbar_tier_part_used_bytes"
CAPACITY_BYTES = "anbar_tier_part_capacity_bytes"

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    KEYS: (
        "Keys that a part of a layered or replicated store was asked for, by operation (lookup, load, store, "
        "delete; repair: copied to it afterwards) and result (hit, miss, corrupt, timeout, error, full; "
        "refused: its breaker is open; dropped: no memory for the copy).",
        ("part", "operation", "result"),
    ),
    EVICTED: ("Keys that a part evicted, as far as this engine was told.", ("part",)),
}
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    BREAKER_STATE: ("Of a part's own circuit breaker: 0 closed, 1 half-open, 2 open.", ("part",)),
    USED_BYTES: ("Bytes in a part, as last seen by this engine.", ("part",)),
    CAPACITY_BYTES: ("Bytes that a part may hold.", ("part",)),
}
"""Help and labels beside the store's; a part is called by its id."""


class PartCounts:
    """Remembers what was told. Owned by one thread; what it is given may be out of order."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, tuple[str, ...]], int] = {}

    def take(self, parts: Sequence[PartStats]) -> Iterator[Sample]:
        """What was added to counters since the last call."""
        for part in parts:
            for (operation, result), num_keys in part.keys.items():
                yield from self._added(KEYS, (part.id, operation, result), num_keys)
            yield from self._added(EVICTED, (part.id,), part.num_evicted)

    def _added(self, name: str, labels: tuple[str, ...], total: int) -> Iterator[Sample]:
        added = total - self._told.get((name, labels), 0)
        if added > 0:
            self._told[name, labels] = total
            yield Sample(name, labels, added)


def gauges(parts: Sequence[PartStats]) -> Iterator[Sample]:
    """What parts hold and how they are, as of now; nothing of what is not known."""
    for part in parts:
        yield Sample(BREAKER_STATE, (part.id,), part.breaker)
        for name, value in ((USED_BYTES, part.used_bytes), (CAPACITY_BYTES, part.capacity_bytes)):
            if value is not None:
                yield Sample(name, (part.id,), value)
