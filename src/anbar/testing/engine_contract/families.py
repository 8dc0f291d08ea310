"""Checks of /metrics: which families there are, of which types, with which labels and buckets.

Source: vLLM 0.32 `v1/metrics/loggers.py`, `v1/metrics/buckets.py`.
"""

import re
from collections.abc import Mapping, Sequence

from anbar.testing.engine_contract.samples import metrics, samples
from anbar.testing.engine_contract.target import Target, call, context_length

_GAUGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "num_requests_running": {},
    "num_requests_waiting": {},
    "num_requests_waiting_by_reason": {"reason": ("capacity", "deferred")},
    "engine_sleep_state": {"sleep_state": ("awake", "discard_all", "weights_offloaded")},
    "kv_cache_usage_perc": {},
}
_COUNTERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "prefix_cache_queries": {},
    "prefix_cache_hits": {},
    "external_prefix_cache_queries": {},
    "external_prefix_cache_hits": {},
    "mm_cache_queries": {},
    "mm_cache_hits": {},
    "num_preemptions": {},
    "prompt_tokens": {},
    "prompt_tokens_by_source": {"source": ("external_kv_transfer", "local_cache_hit", "local_compute")},
    "prompt_tokens_cached": {},
    "prompt_tokens_cached_by_source": {"source": ("device", "disk", "external_unspecified", "host", "p2p")},
    "generation_tokens": {},
    "estimated_flops_per_gpu": {},
    "estimated_read_bytes_per_gpu": {},
    "estimated_write_bytes_per_gpu": {},
    "request_success": {"finished_reason": ("abort", "error", "length", "repetition", "stop")},
}
_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0),
    *(480.0, 960.0, 1920.0, 7680.0),
)
_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    80.0,
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
_OPTIONAL = re.compile("lora_requests_info|kv_offload_|num_requests_kv_fetch_by_stage|sleep_mode_|anbar_")
"""Families that depend on what the engine has and has done."""
_TOKENS: Sequence[float] = ()
"""1, 2, 5, 10, … up to the context's length."""
_HISTOGRAMS: Mapping[str, Sequence[float]] = {
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "request_max_num_generation_tokens": _TOKENS,
    "request_params_max_tokens": _TOKENS,
    "request_prefill_kv_computed_tokens": _TOKENS,
    "iteration_tokens_total": tuple(float(2**n) for n in (0, *range(3, 15))),
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "request_num_preemptions": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    "time_to_first_token_seconds": _FIRST_TOKEN,
    "inter_token_latency_seconds": _BETWEEN_TOKENS,
    "request_time_per_output_token_seconds": _BETWEEN_TOKENS,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
}


def check_metric_families(target: Target) -> None:
    """The families that vLLM has from its start on and no others, with its types and all samples of each,
    used or not."""
    page = metrics(target)
    others = ("admission_rejections_total", "cache_config_info", *_HISTOGRAMS)
    known = {*_GAUGES, *(f"{name}_total" for name in _COUNTERS), *others}
    found = set(re.findall(r"^# TYPE vllm:(\S+) ", page, re.MULTILINE))
    extra = {name for name in found - known if not name.endswith("_created") and not _OPTIONAL.match(name)}
    assert not extra, extra
    for name, own in _GAUGES.items():
        _check_family(page, target, name, "gauge", own)
    for name, own in _COUNTERS.items():
        _check_family(page, target, f"{name}_total", "counter", own)
    assert call(target, "GET", "/metrics").headers["content-type"].startswith("text/plain; version=")


def check_histograms(target: Target) -> None:
    """Every histogram has vLLM's bounds and begins with an empty count."""
    page = metrics(target)
    for name, bounds in _HISTOGRAMS.items():
        assert f"# TYPE vllm:{name} histogram" in page, name
        found = [labels["le"] for labels in _labels(page, f"vllm:{name}_bucket")]
        wanted = bounds or _one_two_five(context_length(target))
        assert found == [*(str(float(bound)) for bound in wanted), "+Inf"], name
        for part in ("count", "sum"):
            assert _labels(page, f"vllm:{name}_{part}") == [_base(target)], (name, part)


def check_admission_rejections(target: Target) -> None:
    """The counter of refused admissions has the model's name but no engine."""
    found = _labels(metrics(target), "vllm:admission_rejections_total")
    reasons = ("max_num_queued_reqs", "max_num_queued_tokens")
    assert found == [{"model_name": target.model, "reason": reason} for reason in reasons]


def check_cache_config(target: Target) -> None:
    """`cache_config_info` tells block size, number of blocks and how blocks are hashed."""
    (labels,) = _labels(metrics(target), "vllm:cache_config_info")
    assert int(labels["block_size"]) >= 1
    assert int(labels["num_gpu_blocks"]) >= 2
    assert labels["enable_prefix_caching"] == "True"
    assert labels["prefix_caching_hash_algo"] == "sha256"
    assert labels["engine"] == "0"


def _check_family(page: str, target: Target, name: str, kind: str, own: Mapping[str, Sequence[str]]) -> None:
    assert f"# TYPE vllm:{name} {kind}" in page, f"{name} is not a {kind}"
    found = _labels(page, f"vllm:{name}")
    wanted = [_base(target) | {label: value} for label, values in own.items() for value in values]
    assert sorted(found, key=str) == sorted(wanted or [_base(target)], key=str), name


def _base(target: Target) -> dict[str, str]:
    return {"engine": "0", "model_name": target.model}


def _labels(page: str, name: str) -> list[Mapping[str, str]]:
    """The labels of each sample of one name, in the page's order."""
    return [sample.labels for sample in samples(page, name)]


def _one_two_five(limit: int) -> list[float]:
    values = (float(first * 10**power) for power in range(len(str(limit))) for first in (1, 2, 5))
    return [value for value in values if value <= limit]
