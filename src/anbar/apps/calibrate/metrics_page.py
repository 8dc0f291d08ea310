"""The numbers on an engine's `/metrics` that say what it did."""

import re
from dataclasses import dataclass

from anbar.core.errors import WireError

_LINE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([0-9.eE+-]+)$", re.MULTILINE)
_SOURCE = re.compile(r'source="(\w+)"')


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the engine's start, over all its data-parallel ranks; gauges as they are."""

    num_running: int = 0
    num_waiting: int = 0
    prompt_tokens: int = 0
    """Of all requests, cached or not."""
    external_tokens: int = 0
    """Prompt tokens that came from a tier below the device."""
    has_offload: bool = False
    """KV leaves the device: the offloading connector has metrics."""
    load_bytes: float = 0.0
    load_s: float = 0.0
    store_bytes: float = 0.0
    store_s: float = 0.0


_FIELDS = {
    "vllm:num_requests_running": "num_running",
    "vllm:num_requests_waiting": "num_waiting",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:kv_offload_load_bytes_total": "load_bytes",
    "vllm:kv_offload_load_time_total": "load_s",
    "vllm:kv_offload_store_bytes_total": "store_bytes",
    "vllm:kv_offload_store_time_total": "store_s",
}


def parse_counters(page: bytes) -> Counters:
    """The totals of `/metrics` (vLLM 0.32 `v1/metrics/loggers.py`, `kv_connector/v1/offloading/metrics.py`).

    Raises WireError when it is not the page of a vLLM engine.
    """
    totals: dict[str, float] = dict.fromkeys(_FIELDS.values(), 0.0)
    external, seen, offload = 0.0, False, False
    for name, labels, text in _LINE.findall(page.decode("utf-8", "replace")):
        seen = True
        offload = offload or name.startswith("vllm:kv_offload_")
        if name in _FIELDS:
            totals[_FIELDS[name]] += float(text)
        elif name == "vllm:prompt_tokens_by_source_total":
            source = _SOURCE.search(labels)
            if source is not None and source[1] == "external_kv_transfer":
                external += float(text)
    if not seen:
        raise WireError("/metrics has none of vLLM's metrics")
    return Counters(
        num_running=int(totals["num_running"]),
        num_waiting=int(totals["num_waiting"]),
        prompt_tokens=int(totals["prompt_tokens"]),
        external_tokens=int(external),
        has_offload=offload,
        load_bytes=totals["load_bytes"],
        load_s=totals["load_s"],
        store_bytes=totals["store_bytes"],
        store_s=totals["store_s"],
    )
