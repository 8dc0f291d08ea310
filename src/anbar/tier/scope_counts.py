"""What each scope had of the store, as metrics: of the scopes that are listed, and of all others together."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anbar.tier.scopes import Scopes
from anbar.tier.store import Scope, StoreStats
from anbar.tier.tally import Series, Tally

KEYS = "anbar_tier_scope_keys"
BYTES = "anbar_tier_scope_bytes"
SECONDS_SAVED = "anbar_tier_scope_seconds_saved"
EVICTED = "anbar_tier_scope_evicted"
ENTRIES = "anbar_tier_scope_entries"
USED_BYTES = "anbar_tier_scope_used_bytes"
QUOTA_BYTES = "anbar_tier_scope_quota_bytes"

COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    KEYS: (
        "Of one scope: keys by operation (lookup, load, store) and result, as those of all are told.",
        ("scope", "operation", "result"),
    ),
    BYTES: ("Of one scope: bytes moved between host RAM and the store.", ("scope", "direction")),
    SECONDS_SAVED: (
        "Of one scope: predicted seconds of computing less measured ones of loading, where that paid.",
        ("scope",),
    ),
    EVICTED: ("Of one scope: entries that this engine evicted or found too old.", ("scope",)),
}
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ENTRIES: ("Of one scope: entries in the store, as last seen by this engine.", ("scope",)),
    USED_BYTES: ("Of one scope: bytes in the store, as last seen by this engine.", ("scope",)),
    QUOTA_BYTES: ("Of one scope: most bytes that it may have in the store.", ("scope",)),
}
"""Help and labels beside the store's. Only with `tenants`; the gauges only of stores that count by scope."""

_OPERATIONS = {Series.LOOKUPS: "lookup", Series.LOADS: "load", Series.STORES: "store"}


@dataclass(frozen=True, slots=True)
class Sample:
    """An amount to add to a counter, or a gauge's value."""

    name: str
    labels: tuple[str, ...]
    """Beside the store's."""
    value: float


class ScopeCounts:
    """Owned by one thread."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._evicted: Counter[Scope] = Counter()

    def take(self, tally: Tally) -> Iterator[Sample]:
        """What was counted since the last call."""
        added: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for (scope, series, label), amount in tally.take_scoped().items():
            name = self._scopes.label(scope)
            if series in _OPERATIONS:
                added[KEYS, (name, _OPERATIONS[series], label)] += amount  # type: ignore[assignment]
            elif series is Series.BYTES:
                added[BYTES, (name, label)] += amount  # type: ignore[assignment]
            elif series is Series.SECONDS_SAVED:
                added[SECONDS_SAVED, (name,)] += amount  # type: ignore[assignment]
        for (metric, labels), amount in added.items():
            yield Sample(metric, labels, amount)

    def evicted(self, stats: StoreStats) -> Iterator[Sample]:
        """What was evicted since the last call."""
        for scope, held in stats.scopes.items():
            if (added := held.num_evicted - self._evicted[scope]) > 0:
                self._evicted[scope] = held.num_evicted
                yield Sample(EVICTED, (scope,), added)

    @staticmethod
    def gauges(stats: StoreStats) -> Iterator[Sample]:
        """What scopes hold and may hold."""
        for scope, held in stats.scopes.items():
            values = (
                (ENTRIES, held.num_entries),
                (USED_BYTES, held.used_bytes),
                (QUOTA_BYTES, held.quota_bytes),
            )
            for name, value in values:
                if value is not None:
                    yield Sample(name, (scope,), value)
