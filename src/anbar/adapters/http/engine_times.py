"""What an engine says of its own times in an answer, where it was started with
`--enable-per-request-metrics`.

vLLM 0.32 (`entrypoints/generate/base/protocol.py`, `PerRequestMetrics`) puts a `metrics` object behind
`usage` into a
whole answer, and into the usage event of a stream. It is the only way to know when the first token of an
answer that is not streamed was there.
"""

import re
from dataclasses import dataclass

import msgspec

_METRICS = b'"metrics"'
_VALUE = re.compile(rb"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Seconds: in the engine's queue, from its arrival there to the first token, and between two tokens on
    average (None: there was one)."""

    queue_s: float
    ttft_s: float
    itl_s: float | None = None


class _Metrics(msgspec.Struct):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    """From being scheduled."""
    mean_itl_ms: float | None = None


_decode = msgspec.json.Decoder(_Metrics).decode


def find_engine_times(tail: bytes) -> EngineTimes | None:
    """The times in `tail`, the end of an answer or of a stream; None where the engine gives none."""
    start = tail.rfind(_METRICS)
    found = _VALUE.match(tail, start + len(_METRICS)) if start >= 0 else None
    if found is None:
        return None
    try:
        metrics = _decode(found[1])
    except msgspec.DecodeError:
        return None
    if metrics.queue_time_ms is None or metrics.time_to_first_token_ms is None:
        return None
    queue_ms, ttft_ms = metrics.queue_time_ms, metrics.time_to_first_token_ms
    itl_s = metrics.mean_itl_ms / 1e3 if metrics.mean_itl_ms is not None else None
    return EngineTimes(queue_ms / 1e3, (queue_ms + ttft_ms) / 1e3, itl_s)
