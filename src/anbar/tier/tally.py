"""What the shared tier counts, by label, until someone collects it."""

from collections import Counter
from enum import Enum


class Series(Enum):
    """A metric of the shared tier. `value` is its name, without the suffix that Prometheus adds."""

    LOOKUPS = "anbar_tier_lookups"
    """Keys looked up, by result: hit, miss, timeout, error, refused (breaker open), late (expected from
    another engine, and not there in time), spent (loaded twice for one request and evicted before use each
    time)."""
    LOADS = "anbar_tier_loads"
    """Keys loaded, by result: hit, miss, corrupt, timeout, error, refused, queue_full."""
    STORES = "anbar_tier_stores"
    """Keys offered for storing, by result: hit (written or there already), full, timeout, error, refused,
    queue_full, unwanted (the request said so), merged (being written by another request)."""
    BYTES = "anbar_tier_bytes"
    """Bytes moved, by direction: load, store."""
    SECONDS = "anbar_tier_seconds"
    """Seconds that calls on the store took, summed over threads, by operation: lookup, load, store."""


class Tally:
    """Counts since the last `take`. Not thread-safe: one thread owns it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Series, str]] = Counter()

    def add(self, series: Series, label: str, amount: float = 1) -> None:
        """Add `amount` (keys, bytes or seconds); nothing is recorded for zero."""
        if amount:
            self._counts[series, label] += amount  # type: ignore[assignment]  # a Counter may hold floats

    def take(self) -> dict[tuple[Series, str], float]:
        """What was added since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)
