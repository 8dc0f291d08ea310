"""Checks of /metrics of an engine whose KV goes to host RAM, and to a store behind it.

Source: vLLM 0.32 `kv_connector/v1/offloading/metrics.py`, `v1/kv_offload/{cpu,tiering}/spec.py`; the metrics
that begin with `anbar_` are those of Anbar's tier.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anbar.testing.engine_contract.samples import block_size, metrics, moved_by, samples
from anbar.testing.engine_contract.target import (
    Target,
    complete,
    eventually,
    needs,
    needs_alone,
    ok,
    some_tokens,
)

_OURS = "AnbarSharedTier"
_MINE = re.compile(r"^# TYPE (anbar_\w+|vllm:(?:kv_offload_\w+|num_requests_kv_fetch_by_stage)) (\w+)$", re.M)
_SIZES = (*(1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6), *(150e6, 200e6))
_SYNC = (*(0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.005), *(0.01, 0.05, 0.1, 0.5, 1.0))
_ASYNC = (*(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05), *(0.1, 0.5, 1.0, 5.0, 10.0))


@dataclass(frozen=True, slots=True)
class _Family:
    """`labels` beside the engine's own; `bounds` of a histogram."""

    kind: str
    labels: tuple[str, ...] = ()
    bounds: Sequence[float] = ()


def _named(prefix: str, label: str, counters: str, gauges: str = "") -> dict[str, _Family]:
    """Counters and gauges that have one label in common, "" for none."""
    labels = (label,) if label else ()
    return {
        **{f"{prefix}{name}_total": _Family("counter", labels) for name in counters.split()},
        **{f"{prefix}{name}": _Family("gauge", labels) for name in gauges.split()},
    }


_CONNECTOR: Mapping[str, _Family] = {
    "vllm:num_requests_kv_fetch_by_stage": _Family("gauge", ("stage",)),
    **_named("vllm:kv_offload_", "transfer_type", "total_bytes total_time"),
    **_named(
        "vllm:kv_offload_",
        "",
        "load_bytes load_time store_bytes store_time allocation_failure",
        "cpu_cache_usage_perc cpu_cache_write_usage_perc cpu_cache_read_usage_perc",
    ),
    "vllm:kv_offload_size": _Family("histogram", ("transfer_type",), _SIZES),
    "vllm:kv_offload_load_size": _Family("histogram", (), _SIZES),
    "vllm:kv_offload_store_size": _Family("histogram", (), _SIZES),
    "vllm:kv_offload_cpu_allocation_size": _Family("histogram", (), [float(4**n) for n in range(10)]),
    "vllm:kv_offload_lookup_sync_delay_seconds": _Family("histogram", (), _SYNC),
    "vllm:kv_offload_lookup_async_delay_seconds": _Family("histogram", (), _ASYNC),
}
_TIERING: Mapping[str, _Family] = {
    **_named(
        "vllm:kv_offload_tiering_",
        "tier",
        "read_bytes read_time write_bytes write_time promotion_job_failures cascade_job_failures "
        "chunk_queries chunk_hits backpressure_stores_dropped backpressure_blocks_dropped",
        "primary_write_usage_perc primary_read_usage_perc active_promotion_jobs active_cascade_jobs "
        "backpressure_store_latency_ema",
    ),
    **_named("vllm:kv_offload_tiering_", "", "promotion_allocation_failures"),
    "vllm:kv_offload_tiering_lookup_sync_delay_seconds": _Family("histogram", ("tier",), _SYNC),
    "vllm:kv_offload_tiering_lookup_async_delay_seconds": _Family("histogram", ("tier",), _ASYNC),
}
_SHARED: Mapping[str, _Family] = {
    **{
        f"anbar_tier_{name}_total": _Family("counter", ("result", "store"))
        for name in ("lookups", "loads", "stores")
    },
    "anbar_tier_bytes_total": _Family("counter", ("direction", "store")),
    "anbar_tier_seconds_total": _Family("counter", ("operation", "store")),
    **{
        f"anbar_tier_{name}_total": _Family("counter", ("decision", "store"))
        for name in ("decisions", "compute_seconds", "load_seconds", "seconds_saved", "seconds_forgone")
    },
    **{
        f"anbar_tier_{name}_total": _Family("counter", ("reason", "store"))
        for name in ("filtered_stores", "filtered_asked", "filtered_seconds", "reuse_filter_engaged")
    },
    "anbar_tier_scope_keys_total": _Family("counter", ("operation", "result", "scope", "store")),
    "anbar_tier_scope_bytes_total": _Family("counter", ("direction", "scope", "store")),
    **{
        f"anbar_tier_scope_{name}_total": _Family("counter", ("scope", "store"))
        for name in ("seconds_saved", "evicted")
    },
    **{
        f"anbar_tier_scope_{name}": _Family("gauge", ("scope", "store"))
        for name in ("entries", "used_bytes", "quota_bytes")
    },
    "anbar_tier_part_keys_total": _Family("counter", ("operation", "part", "result", "store")),
    "anbar_tier_part_evicted_total": _Family("counter", ("part", "store")),
    **{
        f"anbar_tier_part_{name}": _Family("gauge", ("part", "store"))
        for name in ("breaker_state", "used_bytes", "capacity_bytes")
    },
    **_named(
        "anbar_tier_",
        "store",
        "defects breaker_opened evicted",
        "breaker_state used_bytes capacity_bytes store_writable reuse_filter load_latency_seconds "
        "load_bytes_per_second prefill_seconds_per_token prefill_seconds_per_token2",
    ),
}
_BEGUN = (
    *(
        "vllm:num_requests_kv_fetch_by_stage",
        "vllm:kv_offload_total_bytes_total",
        "vllm:kv_offload_size_count",
    ),
    *("vllm:kv_offload_store_bytes_total", "vllm:kv_offload_store_time_total"),
    *("vllm:kv_offload_store_size_count", "vllm:kv_offload_cpu_allocation_size_count"),
    *("vllm:kv_offload_cpu_cache_usage_perc", "vllm:kv_offload_lookup_sync_delay_seconds_count"),
)
"""What has samples when something was stored."""


def check_tier_families(target: Target) -> None:
    """An engine without tiers below its device has no metric of them. One with host RAM has all those of
    vLLM's connector, used or not, and either all or none of those of further tiers; one with Anbar's store
    has Anbar's too. Each sample has its family's labels, and each histogram vLLM's bounds."""
    if target.offloads:
        ok(complete(target, some_tokens(target, 8 * block_size(target) + 1), max_tokens=2))
        eventually(lambda: not _missing(metrics(target)), target, lambda: _missing(metrics(target)))
    page = metrics(target)
    found = {name: kind for name, kind in _MINE.findall(page) if not name.endswith("_created")}
    wanted = _expected(page, found) if target.offloads else {}
    assert found == {name: family.kind for name, family in wanted.items()}, found.keys() ^ wanted.keys()
    for name, family in wanted.items():
        _check_samples(page, target, name, family)


def check_counters_of_tiers(target: Target) -> None:
    """A prompt that no tier has: what is copied to host RAM is told alike by all metrics that tell it, and
    each copy had its places there; every answer of a tier is a lookup with a time."""
    needs_alone(target)
    needs(target.offloads, "it has no tiers below its device")
    ids = some_tokens(target, 8 * block_size(target) + 1)
    moved = moved_by(target, lambda: ok(complete(target, ids, max_tokens=1)))
    of_stores = '{transfer_type="GPU_to_CPU"}'
    sizes = {
        name: moved.get(f"kv_offload_{name}", 0.0)
        for name in (
            "store_bytes_total",
            "store_size_sum",
            f"total_bytes_total{of_stores}",
            f"size_sum{of_stores}",
        )
    }
    assert len(set(sizes.values())) == 1, sizes
    assert sizes["store_bytes_total"] > 0
    counts = {
        name: moved.get(f"kv_offload_{name}", 0.0)
        for name in ("store_size_count", f"size_count{of_stores}", "cpu_allocation_size_count")
    }
    assert len(set(counts.values())) == 1, counts
    assert moved.get("kv_offload_lookup_sync_delay_seconds_count", 0.0) >= 1
    asked = {name: by for name, by in moved.items() if "tiering_chunk_queries" in name}
    for name, by in asked.items():
        timed = name.replace("chunk_queries_total", "lookup_sync_delay_seconds_count")
        assert moved.get(timed) == by, (timed, by)


def _missing(page: str) -> list[str]:
    begun = {sample.name for sample in samples(page)}
    return [name for name in _BEGUN if name not in begun]


def _expected(page: str, found: Mapping[str, str]) -> Mapping[str, _Family]:
    """Of an engine with host RAM. Which spec vLLM was told to use can only be told by what there is."""
    tiers = {sample.labels.get("tier", "") for sample in samples(page)}
    return {
        **_CONNECTOR,
        **(_TIERING if any("_tiering_" in name for name in found) else {}),
        **(_SHARED if any(name.startswith("anbar_") for name in found) or f"1:{_OURS}" in tiers else {}),
    }


def _check_samples(page: str, target: Target, name: str, family: _Family) -> None:
    wanted = {"engine", "model_name", *family.labels}
    ends = ("_bucket", "_count", "_sum") if family.kind == "histogram" else ("",)
    for end in ends:
        for sample in samples(page, name + end):
            own = wanted | ({"le"} if end == "_bucket" else set())
            assert set(sample.labels) == own, sample
            assert sample.labels["model_name"] == target.model, sample
    if family.bounds:
        bounds = [float(sample.labels["le"]) for sample in samples(page, f"{name}_bucket")]
        each = [*family.bounds, float("inf")]
        assert bounds == each * (len(bounds) // len(each)), (name, bounds)
