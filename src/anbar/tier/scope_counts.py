"""What each scope had of the store, as metrics: of the scopes that are listed, and of all others together."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anbar.tier.scopes import Scopes
from anbar.tier.store import Scope, ScopeStats, StoreStats
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
        self._held: dict[Scope, ScopeStats] = {}
        self._all_held: Mapping[Scope, ScopeStats] = {}

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

    def holdings(self, stats: StoreStats) -> tuple[list[Sample], list[Sample]]:
        """What scopes hold and may hold, as gauges, and what was evicted since, to be added: of those of whom
        it is not what it was at the last call."""
        gauges: list[Sample] = []
        evicted: list[Sample] = []
        if stats.scopes is self._all_held:
            return gauges, evicted
        self._all_held = stats.scopes
        for scope, held in stats.scopes.items():
            known = self._held.get(scope)
            if known is held or known == held:
                continue
            self._held[scope] = held
            sizes = ((ENTRIES, held.num_entries), (USED_BYTES, held.used_bytes))
            for name, value in (*sizes, (QUOTA_BYTES, held.quota_bytes)):
                if value is not None:
                    gauges.append(Sample(name, (scope,), value))
            added = held.num_evicted - (known.num_evicted if known is not None else 0)
            if added > 0:
                evicted.append(Sample(EVICTED, (scope,), added))
        return gauges, evicted
