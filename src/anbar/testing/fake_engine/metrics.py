"""`GET /metrics` of the engine: vLLM's names, labels and types (`v1/metrics/loggers.py`)."""

from collections.abc import Mapping

from anbar.testing.fake_engine.blocks import PagedCache
from anbar.testing.fake_engine.scheduler import Counters

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


class _Page:
    def __init__(self, model: str) -> None:
        self._base = {"engine": "0", "model_name": model}
        self.lines: list[str] = []

    def family(self, name: str, kind: str, help_text: str, samples: Mapping[tuple[str, ...], float]) -> None:
        """One metric; a sample's key is () or (label, value)."""
        self.lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
        for key, value in samples.items():
            labels = self._base | ({key[0]: key[1]} if key else {})
            self.lines.append(f"{name}{_labels(labels)} {float(value)}")


def render(model: str, cache: PagedCache, counters: Counters) -> bytes:
    """The page as the engine serves it."""
    page = _Page(model)
    external = counters.host_tokens + counters.shared_tokens
    cached = counters.device_tokens + external
    gauges = {
        "num_requests_running": (counters.running, "Number of requests in model execution batches."),
        "num_requests_waiting": (counters.waiting, "Number of requests waiting to be processed."),
        "kv_cache_usage_perc": (
            cache.num_used / cache.num_blocks,
            "KV-cache usage. 1 means 100 percent usage.",
        ),
    }
    for name, (value, text) in gauges.items():
        page.family(f"vllm:{name}", "gauge", text, {(): value})
    totals = {
        "prefix_cache_queries": counters.prefix_queries,
        "prefix_cache_hits": counters.device_tokens,
        "external_prefix_cache_queries": counters.external_queries,
        "external_prefix_cache_hits": external,
        "num_preemptions": counters.preemptions,
        "prompt_tokens": counters.prompt_tokens,
        "prompt_tokens_cached": cached,
        "generation_tokens": counters.generated_tokens,
    }
    for name, value in totals.items():
        page.family(f"vllm:{name}_total", "counter", f"Number of {name.replace('_', ' ')}.", {(): value})
    by_source = {
        "local_compute": counters.prompt_tokens - cached,
        "local_cache_hit": counters.device_tokens,
        "external_kv_transfer": external,
    }
    by_tier = {
        "device": counters.device_tokens,
        "host": counters.host_tokens,
        "p2p": 0,
        "disk": counters.shared_tokens,
        "external_unspecified": 0,
    }
    for name, parts, label in (
        ("prompt_tokens_by_source", by_source, "source"),
        ("prompt_tokens_cached_by_source", by_tier, "source"),
        ("request_success", counters.finished, "finished_reason"),
    ):
        samples: dict[tuple[str, ...], float] = {(label, part): float(value) for part, value in parts.items()}
        page.family(f"vllm:{name}_total", "counter", f"Number of {name.replace('_', ' ')}.", samples)
    page.lines += _cache_config(cache)
    return ("\n".join(page.lines) + "\n").encode()


def _cache_config(cache: PagedCache) -> list[str]:
    name = "vllm:cache_config_info"
    labels = {
        "block_size": str(cache.block_size),
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92",
        "num_gpu_blocks": str(cache.num_blocks),
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "engine": "0",
    }
    text = "Information of the LLMEngine CacheConfig"
    return [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name}{_labels(labels)} 1.0"]
