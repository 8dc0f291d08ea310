"""What the shared tier counts, by label, until someone collects it."""

from collections import Counter
from collections.abc import Sequence
from enum import Enum

from anbar.tier.store import Outcome, Scope


class Series(Enum):
    """A metric of the shared tier. `value` is its name, without the suffix that Prometheus adds."""

    LOOKUPS = "anbar_tier_lookups"
    """Keys looked up, by result: hit, miss, no_key (the data key of its scope is gone), timeout, error,
    refused (breaker open), late (expected from another engine, and not there in time), spent (loaded twice
    for one request and evicted before use each time), skipped_by_break_even (not loaded because computing is
    sooner). Keys of the last two were hits before."""
    LOADS = "anbar_tier_loads"
    """Keys loaded, by result: hit, miss, corrupt, no_key, timeout, error, refused, queue_full."""
    STORES = "anbar_tier_stores"
    """Keys offered for storing, by result: hit (written or there already), full, over_quota (of its scope),
    no_key (none could be made), timeout, error, refused, queue_full, unwanted (the request said so), merged
    (being written by another request), filtered (kept out by the reuse filter)."""
    BYTES = "anbar_tier_bytes"
    """Bytes moved, by direction: load, store."""
    SECONDS = "anbar_tier_seconds"
    """Seconds that calls on the store took, summed over threads, by operation: lookup, load, store; and wait:
    what the engine's steps waited for answers (`tier.patience`)."""
    DECISIONS = "anbar_tier_decisions"
    """Runs of chunks that the store held, by decision: load (sooner than computing), skip (computing is
    sooner), explore (computing is predicted to be sooner; loaded to see), unknown (loaded, since it was not
    known what one of both takes)."""
    COMPUTE_SECONDS = "anbar_tier_compute_seconds"
    """Seconds that computing what was found was predicted to take, by decision."""
    LOAD_SECONDS = "anbar_tier_load_seconds"
    """Seconds that loading it was predicted to take, by decision."""
    SECONDS_SAVED = "anbar_tier_seconds_saved"
    """Of loads that paid: predicted seconds of computing, less measured seconds of loading, by decision. What
    `explore` saves, 49 times, is what `skip` lost."""
    SECONDS_FORGONE = "anbar_tier_seconds_forgone"
    """Of loads that did not pay: measured seconds of loading, less predicted seconds of computing, by
    decision."""
    FILTERED = "anbar_tier_filtered_stores"
    """Keys that the reuse filter kept out of the store, by reason: queue (too many rows wait to be written),
    full (the store said so), capacity (it is filled faster than it makes room)."""
    FILTERED_ASKED = "anbar_tier_filtered_asked"
    """Of the keys that this engine's reuse filter kept out: asked for afterwards, by the reason for which
    they were kept out; once by each request that found them missing, with nothing before them missing
    otherwise. They would have been hits had they been stored, as far as the store would still have them."""
    FILTERED_SECONDS = "anbar_tier_filtered_seconds"
    """What loading these would have saved, by reason: predicted seconds of computing, less predicted seconds
    of loading, where that pays and both are known."""
    FILTER_ENGAGED = "anbar_tier_reuse_filter_engaged"
    """Times that the reuse filter engaged, by reason."""

    @property
    def label(self) -> str:
        """Name of the label that the counts are by."""
        return _LABELS.get(self, "result")

    @property
    def help(self) -> str:
        """The metric's text."""
        return _HELP[self]


_LABELS = {
    Series.BYTES: "direction",
    Series.SECONDS: "operation",
    Series.DECISIONS: "decision",
    Series.COMPUTE_SECONDS: "decision",
    Series.LOAD_SECONDS: "decision",
    Series.SECONDS_SAVED: "decision",
    Series.SECONDS_FORGONE: "decision",
    Series.FILTERED: "reason",
    Series.FILTERED_ASKED: "reason",
    Series.FILTERED_SECONDS: "reason",
    Series.FILTER_ENGAGED: "reason",
}
_HELP = {
    Series.LOOKUPS: "Keys looked up in the shared store, by result.",
    Series.LOADS: "Keys loaded from the shared store into host RAM, by result.",
    Series.STORES: "Keys offered to the shared store, by result.",
    Series.BYTES: "Bytes moved between host RAM and the shared store.",
    Series.SECONDS: "Seconds that calls on the shared store took, summed over threads.",
    Series.DECISIONS: "Runs of chunks that the store held, by what was decided.",
    Series.COMPUTE_SECONDS: "Seconds that computing what was found was predicted to take.",
    Series.LOAD_SECONDS: "Seconds that loading what was found was predicted to take.",
    Series.SECONDS_SAVED: "Predicted seconds of computing less measured ones of loading, where that paid.",
    Series.FILTERED: "Keys that the reuse filter kept out of the store, by reason.",
    Series.FILTERED_ASKED: "Keys that the reuse filter kept out and a request asked for afterwards.",
    Series.FILTERED_SECONDS: "Seconds that loading these would have saved, as predicted.",
    Series.FILTER_ENGAGED: "Times that the reuse filter engaged, by reason.",
    Series.SECONDS_FORGONE: "Measured seconds of loading less predicted ones of computing, where it did not.",
}


DEFECTS = "anbar_tier_defects"
BREAKER_OPENED = "anbar_tier_breaker_opened"
EVICTED = "anbar_tier_evicted"
BREAKER_STATE = "anbar_tier_breaker_state"
USED_BYTES = "anbar_tier_used_bytes"
CAPACITY_BYTES = "anbar_tier_capacity_bytes"
WRITABLE = "anbar_tier_store_writable"
LOAD_LATENCY = "anbar_tier_load_latency_seconds"
LOAD_BANDWIDTH = "anbar_tier_load_bytes_per_second"
PREFILL = "anbar_tier_prefill_seconds_per_token"
REUSE_FILTER = "anbar_tier_reuse_filter"
PREFILL2 = "anbar_tier_prefill_seconds_per_token2"

COUNTERS = {
    DEFECTS: "Calls in which the store broke its contract.",
    BREAKER_OPENED: "Times that the circuit breaker opened.",
    EVICTED: "Keys that the store evicted, as far as this engine was told.",
}
"""Metrics whose only label is the store's."""

GAUGES = {
    BREAKER_STATE: "0 closed, 1 half-open, 2 open.",
    USED_BYTES: "Bytes in the store, as last seen by this engine.",
    CAPACITY_BYTES: "Bytes that the store may hold.",
    WRITABLE: "0 when the store may only be read, else 1.",
    REUSE_FILTER: "1 while only what was seen before, and the beginning of prompts, is stored; else 0.",
    LOAD_LATENCY: "Seconds that a load takes beside its bytes, as measured.",
    LOAD_BANDWIDTH: "Bytes per second of loads, as measured.",
    PREFILL: "Seconds to compute a token, as measured in this engine's steps.",
    PREFILL2: "Seconds per squared token of attention, as measured in this engine's steps.",
}


_OUTCOMES: tuple[tuple[Outcome | None, str], ...] = (
    *((outcome, outcome.value) for outcome in Outcome),
    (None, "refused"),
)


class Tally:
    """Counts since the last `take`, and with `by_scope` since the last `take_scoped`. Not thread-safe: one
    thread owns it."""

    def __init__(self, *, by_scope: bool = False) -> None:
        self._by_scope = by_scope
        self._counts: Counter[tuple[Series, str]] = Counter()
        self._scoped: Counter[tuple[Scope, Series, str]] = Counter()

    def add(self, series: Series, label: str, amount: float = 1, *, scope: Scope | None = None) -> None:
        """Add `amount` (keys, bytes or seconds); nothing is recorded for zero. `scope`: whose it is."""
        if amount:
            self._counts[series, label] += amount  # type: ignore[assignment]  # a Counter may hold floats
            if self._by_scope and scope is not None:
                self._scoped[scope, series, label] += amount  # type: ignore[assignment]

    def outcomes(self, series: Series, results: Sequence[Outcome | None], scope: Scope) -> None:
        """Count what became of keys; None: the breaker refused them. Keys come by the ten thousand a second,
        so they are counted by kind."""
        left = len(results)
        for outcome, label in _OUTCOMES:
            if not left:
                return
            num = results.count(outcome)
            self.add(series, label, num, scope=scope)
            left -= num

    def take(self) -> dict[tuple[Series, str], float]:
        """What was added since the last call."""
        counts, self._counts = self._counts, Counter()
        return dict(counts)

    def take_scoped(self) -> dict[tuple[Scope, Series, str], float]:
        """What was added for scopes since the last call."""
        counts, self._scoped = self._scoped, Counter()
        return dict(counts)
