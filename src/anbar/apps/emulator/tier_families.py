"""The metrics of vLLM's offloading connector, of its tiers, and of Anbar's shared tier: names and texts.

Source: vLLM 0.32 `kv_connector/v1/offloading/metrics.py`, `v1/kv_offload/{cpu,tiering}/spec.py`, and
`anbar.adapters.vllm.shared_tier`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.apps.emulator.histograms import Histogram, Page
from anbar.tier import part_counts, scope_counts
from anbar.tier.tally import COUNTERS, GAUGES, Series


class Kind(Enum):
    """Of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class Family:
    """A metric whose samples begin when something is measured, as those of a connector do."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()
    _values: dict[tuple[str, ...], float] = field(default_factory=dict)
    _histograms: dict[tuple[str, ...], Histogram] = field(default_factory=dict)

    def add(self, amount: float, *labels: str) -> None:
        """To a counter."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, value: float, *labels: str) -> None:
        """A gauge."""
        self._values[labels] = value

    def observe(self, values: Sequence[float], *labels: str) -> None:
        """In a histogram; nothing begins without a value."""
        if values:
            self.begin(*labels)
        for value in values:
            self._histograms[labels].observe(value)

    def begin(self, *labels: str) -> None:
        """Show these labels' samples from now on."""
        if self.kind is not Kind.HISTOGRAM:
            self._values.setdefault(labels, 0.0)
        elif labels not in self._histograms:
            self._histograms[labels] = Histogram(self.name, self.help, self.bounds)

    def show(self, page: Page) -> None:
        """All that there is of it."""
        name = f"{self.name}_total" if self.kind is Kind.COUNTER else self.name
        page.family(name, self.kind.value, self.help)
        for values, value in self._values.items():
            page.sample(name, value, dict(zip(self.labels, values, strict=True)))
        for values, histogram in self._histograms.items():
            own = dict(zip(self.labels, values, strict=True))
            for suffix, labels, value in histogram.samples():
                page.sample(name + suffix, value, {**own, **labels})


_SIZES = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
_SYNC = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)
_ASYNC = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
_CHUNKS = tuple(4**power for power in range(10))
_DIRECTION = ("transfer_type",)
_TIER = ("tier",)
_STORE = ("store",)


def _offload(
    name: str, kind: Kind, text: str, labels: tuple[str, ...] = (), bounds: Sequence[float] = ()
) -> Family:
    return Family(f"vllm:kv_offload_{name}", kind, text, labels, bounds)


def connector() -> list[Family]:
    """Of each connector with host RAM. The first three are vLLM's older names."""
    counter, gauge, histogram = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
    size, lookup, pinned = (
        "KV offload {} operation size, in bytes.",
        "lookup_{}_delay_seconds",
        "CPU KV-cache space",
    )
    return [
        _offload("total_bytes", counter, "Number of bytes offloaded by KV connector", _DIRECTION),
        _offload("total_time", counter, "Total time measured by all KV offloading operations", _DIRECTION),
        _offload("size", histogram, "Histogram of KV offload transfer size, in bytes.", _DIRECTION, _SIZES),
        _offload("cpu_cache_usage_perc", gauge, f"Fraction of {pinned} pinned by active transfers."),
        _offload("cpu_cache_write_usage_perc", gauge, f"Fraction of {pinned} pinned by in-flight stores."),
        _offload("cpu_cache_read_usage_perc", gauge, f"Fraction of {pinned} pinned by in-flight loads."),
        _offload("cpu_allocation_size", histogram, "Histogram of CPU chunks per store.", (), _CHUNKS),
        _offload("load_bytes", counter, "Total bytes loaded from offload storage to GPU."),
        _offload("load_time", counter, "Total load time from offload storage to GPU, in seconds."),
        _offload("load_size", histogram, f"Histogram of {size.format('load')}", (), _SIZES),
        _offload("store_bytes", counter, "Total bytes stored from GPU to offload storage."),
        _offload("store_time", counter, "Total store time from GPU to offload storage, in seconds."),
        _offload("store_size", histogram, f"Histogram of {size.format('store')}", (), _SIZES),
        _offload(lookup.format("sync"), histogram, "Histogram of time in one offload lookup.", (), _SYNC),
        _offload(lookup.format("async"), histogram, "Histogram of time of deferred lookups.", (), _ASYNC),
        _offload(
            "allocation_failure", counter, "Number of KV offload store allocation attempts that failed."
        ),
    ]


def tiering() -> list[Family]:
    """Of a connector that can have tiers behind host RAM, whether it has any or not."""
    counter, gauge, histogram = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
    families = (
        ("lookup_sync_delay_seconds", histogram, "Histogram of blocking time in a per-chunk lookup.", _SYNC),
        ("lookup_async_delay_seconds", histogram, "Histogram of time until a lookup resolves.", _ASYNC),
        ("read_bytes", counter, "Total bytes read from secondary tiers into the primary tier.", ()),
        ("read_time", counter, "Total time spent reading from secondary tiers, in seconds.", ()),
        ("write_bytes", counter, "Total bytes written from the primary tier to secondary tiers.", ()),
        ("write_time", counter, "Total time spent writing to secondary tiers, in seconds.", ()),
        ("promotion_job_failures", counter, "Number of failed secondary-tier promotion jobs.", ()),
        ("cascade_job_failures", counter, "Number of failed secondary-tier cascade jobs.", ()),
        ("chunk_queries", counter, "Number of chunk lookup queries sent to a tier.", ()),
        ("chunk_hits", counter, "Number of chunk lookup hits in a tier.", ()),
        ("primary_write_usage_perc", gauge, "Fraction of the primary tier written by secondary tiers.", ()),
        ("primary_read_usage_perc", gauge, "Fraction of the primary tier read to secondary tiers.", ()),
        ("active_promotion_jobs", gauge, "Number of active secondary-tier promotion jobs.", ()),
        ("active_cascade_jobs", gauge, "Number of active secondary-tier cascade jobs.", ()),
        ("backpressure_store_latency_ema", gauge, "Average of store latency, in s/MiB.", ()),
        ("backpressure_stores_dropped", counter, "Number of stores dropped by back-pressure.", ()),
        ("backpressure_blocks_dropped", counter, "Number of blocks dropped by back-pressure.", ()),
    )
    unplaced = "Number of promotion attempts that the primary tier had no space for."
    return [
        *(_offload(f"tiering_{name}", kind, text, _TIER, bounds) for name, kind, text, bounds in families),
        _offload("tiering_promotion_allocation_failures", counter, unplaced),
    ]


def shared_tier() -> list[Family]:
    """Of Anbar's tier. Scopes, and what parts of a store hold, are not modelled: their metrics have no
    samples."""
    return [
        *(Family(series.value, Kind.COUNTER, series.help, (*_STORE, series.label)) for series in Series),
        *(Family(name, Kind.COUNTER, text, _STORE) for name, text in COUNTERS.items()),
        *(Family(name, Kind.GAUGE, text, _STORE) for name, text in GAUGES.items()),
        *(
            Family(name, kind, text, (*_STORE, *labels))
            for of in (scope_counts, part_counts)
            for kind, metrics in ((Kind.COUNTER, of.COUNTERS), (Kind.GAUGE, of.GAUGES))
            for name, (text, labels) in metrics.items()
        ),
    ]
