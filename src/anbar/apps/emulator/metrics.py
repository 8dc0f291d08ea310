"""`GET /metrics` of an engine: vLLM's names, labels and types (`v1/metrics/loggers.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from anbar.apps.emulator.histograms import Page
from anbar.apps.emulator.stats import RequestStats
from anbar.sim.engine.engine import Engine
from anbar.sim.engine.scheduler import Loading

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"

_TOTALS = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "external_prefix_cache_queries": "External prefix cache queries from KV connector cross-instance cache "
    "sharing, in terms of number of queried tokens.",
    "external_prefix_cache_hits": "External prefix cache hits from KV connector cross-instance cache "
    "sharing, in terms of number of cached tokens.",
    "mm_cache_queries": "Multi-modal cache queries, in terms of number of queried items.",
    "mm_cache_hits": "Multi-modal cache hits, in terms of number of cached items.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "prompt_tokens_cached": "Number of cached prompt tokens (local + external).",
    "generation_tokens": "Number of generation tokens processed.",
    "estimated_flops_per_gpu": "Estimated number of floating point operations per GPU (for MFU).",
    "estimated_read_bytes_per_gpu": "Estimated number of bytes read from memory per GPU (for MBU).",
    "estimated_write_bytes_per_gpu": "Estimated number of bytes written to memory per GPU (for MBU).",
}


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is shown as it was when the last step ended: vLLM tells it then."""

    num_running: int = 0
    num_waiting: int = 0
    num_deferred: int = 0
    """Of those that wait: for a tier, not for room."""
    usage: float = 0.0
    loading: Loading = field(default_factory=Loading)


NO_LOAD = Gauges()


def render(
    model: str,
    engine: Engine,
    stats: RequestStats,
    gauges: Gauges,
    sleep_level: int | None,
    adapters: Mapping[tuple[str, str], float] | None,
) -> bytes:
    """The page as the engine serves it; `sleep_level` None: awake; `adapters` None: it serves none, else when
    these ran and these waited."""
    page = Page({"engine": "0", "model_name": model})
    _gauges(page, gauges, sleep_level)
    _totals(page, engine, stats)
    _by_source(page, engine, stats)
    if engine.connector is not None and stats.tiers is not None:
        _stages(page, gauges.loading)
        stats.tiers.show(page, engine.connector)
    name = "vllm:admission_rejections_total"
    page.family(name, "counter", "Number of admission attempts rejected by a queue limit, by reason.")
    for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
        page.bare(name, 0, {"model_name": model, "reason": reason})
    for histogram in stats.histograms():
        page.histogram(histogram)
    if adapters is not None:
        name = "vllm:lora_requests_info"
        page.family(name, "gauge", "Running stats on lora requests.")
        for (running, waiting), at_s in adapters.items():
            labels = {"running_lora_adapters": running, "waiting_lora_adapters": waiting}
            page.bare(name, at_s, {"max_lora": "1", **labels})
    _cache_config(page, engine)
    return page.render()


def _gauges(page: Page, gauges: Gauges, sleep_level: int | None) -> None:
    page.family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.")
    page.sample("vllm:num_requests_running", gauges.num_running)
    page.family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
    page.sample("vllm:num_requests_waiting", gauges.num_waiting)
    name = "vllm:num_requests_waiting_by_reason"
    page.family(name, "gauge", "Number of waiting requests by reason.")
    page.sample(name, gauges.num_waiting - gauges.num_deferred, {"reason": "capacity"})
    page.sample(name, gauges.num_deferred, {"reason": "deferred"})
    name = "vllm:engine_sleep_state"
    page.family(name, "gauge", "Engine sleep state; awake = 1 means engine is awake.")
    page.sample(name, sleep_level is None, {"sleep_state": "awake"})
    page.sample(name, sleep_level == 1, {"sleep_state": "weights_offloaded"})
    page.sample(name, sleep_level == 2, {"sleep_state": "discard_all"})
    page.family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.")
    page.sample("vllm:kv_cache_usage_perc", gauges.usage)


def _totals(page: Page, engine: Engine, stats: RequestStats) -> None:
    counters = engine.counters
    values = {
        "prefix_cache_queries": counters.num_prefix_queries,
        "prefix_cache_hits": counters.num_prefix_hits,
        "external_prefix_cache_queries": counters.num_external_queries,
        "external_prefix_cache_hits": counters.num_external_hits,
        "num_preemptions": counters.num_preemptions,
        "prompt_tokens": counters.num_prompt,
        "prompt_tokens_cached": counters.num_prompt_device_hit + counters.num_prompt_external_hit,
        "generation_tokens": stats.num_generated(counters),
    }
    for name, text in _TOTALS.items():
        page.family(f"vllm:{name}_total", "counter", text)
        page.sample(f"vllm:{name}_total", values.get(name, 0))


def _by_source(page: Page, engine: Engine, stats: RequestStats) -> None:
    counters = engine.counters
    by_source = {
        "local_compute": counters.num_prompt_computed,
        "local_cache_hit": counters.num_prompt_device_hit,
        "external_kv_transfer": counters.num_prompt_external_hit,
    }
    by_tier = {
        "device": counters.num_prefix_hits,
        "host": counters.num_external_hits - counters.num_shared_hits,
        "p2p": 0,
        "disk": counters.num_shared_hits,
        "external_unspecified": 0,
    }
    families: tuple[tuple[str, str, str, Mapping[str, float]], ...] = (
        ("prompt_tokens_by_source", "source", "Number of prompt tokens by source.", by_source),
        ("prompt_tokens_cached_by_source", "source", "Number of cached prompt tokens by source.", by_tier),
        ("request_success", "finished_reason", "Count of successfully processed requests.", stats.finished),
    )
    for name, label, text, values in families:
        page.family(f"vllm:{name}_total", "counter", text)
        for key, value in values.items():
            page.sample(f"vllm:{name}_total", value, {label: key})


def _stages(page: Page, loading: Loading) -> None:
    name = "vllm:num_requests_kv_fetch_by_stage"
    page.family(name, "gauge", "Number of waiting requests by async KV load stage.")
    for stage, value in loading._asdict().items():
        page.sample(name, value, {"stage": stage})


def _cache_config(page: Page, engine: Engine) -> None:
    shape = engine.shape
    name = "vllm:cache_config_info"
    page.family(name, "gauge", "Information of the LLMEngine CacheConfig")
    labels = {
        "block_size": str(shape.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(shape.prefix_caching),
        "engine": "0",
        "gpu_memory_utilization": "0.92",
        "num_gpu_blocks": str(shape.num_blocks),
        "num_gpu_blocks_override": str(shape.num_blocks),
        "prefix_caching_hash_algo": "sha256",
    }
    page.bare(name, 1, labels)
