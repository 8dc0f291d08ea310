"""The metrics that requests move, by model, engine and class, of streams and of whole answers.

The times of single tokens of an answer that is not streamed cannot be seen from outside: its first byte is
its end. Of such answers the whole time is measured, and tokens only where the engine reports their times
(`--enable-per-request-metrics` of vLLM).
"""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from anbar.adapters.telemetry.tallies import Count, Counts, Spread, Spreads
from anbar.core.ids import EngineId
from anbar.core.outcome import GAP_BUCKETS_S, Outcome, RequestFinished
from anbar.route.split import SplitVerdict

_SPLIT = SplitVerdict.SPLIT.value

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
PER_TOKEN_BUCKETS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
ERROR_BUCKETS_TOKENS = (0, 1, 16, 64, 256, 1024, 4096, 16384, 65536)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 6.0, 11.0)

MAX_MODELS = 100
"""Models with a label of their own. Engines with thousands of adapters would make as many series of each
metric."""

OTHER_MODELS = "other"
LABELS = ("model", "engine", "class")

_SPREADS: dict[str, tuple[str, tuple[float, ...]]] = {
    "anbar_router_ttft_seconds": (
        "Streams: from a request's last byte in to the first byte of its answer out.",
        LATENCY_BUCKETS_S,
    ),
    "anbar_router_queue_seconds": (
        "From a request's last byte in to its being sent to the engine that answered: tokenizing, and tries "
        "that failed.",
        LATENCY_BUCKETS_S,
    ),
    "anbar_router_engine_ttft_seconds": (
        "Streams and others: from arrival at the engine to the first token, as the engine reports it "
        "(vLLM's --enable-per-request-metrics).",
        LATENCY_BUCKETS_S,
    ),
    "anbar_router_engine_queue_seconds": (
        "Wait in the engine's queue, as it reports it (vLLM's --enable-per-request-metrics).",
        LATENCY_BUCKETS_S,
    ),
    "anbar_router_engine_itl_seconds": (
        "Streams and others: mean time between two tokens of an answer, as the engine reports it "
        "(vLLM's --enable-per-request-metrics).",
        PER_TOKEN_BUCKETS_S,
    ),
    "anbar_router_itl_seconds": ("Time between two chunks of a stream, each.", GAP_BUCKETS_S),
    "anbar_router_stream_gap_max_seconds": ("Longest time between two chunks of a stream.", GAP_BUCKETS_S),
    "anbar_router_time_per_output_token_seconds": (
        "Streams: from the first chunk to the last, for each output token but the first.",
        PER_TOKEN_BUCKETS_S,
    ),
    "anbar_router_ttft_to_predicted_ratio": (
        "Time to first token over its prediction; below 1: sooner than predicted. Of streams, and of others "
        "where the engine reports it.",
        RATIO_BUCKETS,
    ),
    "anbar_router_cached_tokens_over_prediction": (
        "Tokens predicted cached beyond those reported; not 0 is drift.",
        ERROR_BUCKETS_TOKENS,
    ),
    "anbar_router_cached_tokens_under_prediction": (
        "Tokens reported as cached beyond those predicted: content that the router did not know of.",
        ERROR_BUCKETS_TOKENS,
    ),
}
_TOKENS = {
    "anbar_router_prompt_tokens_total": "Prompt tokens.",
    "anbar_router_output_tokens_total": "Output tokens, as reported.",
    "anbar_router_cached_tokens_total": "Prompt tokens that the engine reported as served from a cache.",
    "anbar_router_predicted_cached_tokens_total": "Prompt tokens predicted to be served from a cache, where "
    "the engine reported its own count too.",
    "anbar_router_reported_cached_tokens_total": "Prompt tokens that the engine reported as served from a "
    "cache, where there was a prediction.",
}


class RequestMetrics:
    """Declares them in `registry`; `on` takes in a finished request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counts(
            "anbar_router_requests_total",
            "Requests by how they ended.",
            (*LABELS, "stream", "status", "outcome"),
        )
        self._e2e = Spreads(
            "anbar_router_e2e_seconds",
            "From a request's last byte in to the end of its answer.",
            (*LABELS, "stream"),
            LATENCY_BUCKETS_S,
        )
        self._spreads = [Spreads(name, text, LABELS, bounds) for name, (text, bounds) in _SPREADS.items()]
        self._tokens = [Counts(name, text, LABELS) for name, text in _TOKENS.items()]
        self._families: tuple[Counts | Spreads, ...] = (
            self._requests,
            self._e2e,
            *self._spreads,
            *self._tokens,
        )
        for family in self._families:
            registry.register(family)
        self._models: set[str] = set()
        self._counts: dict[tuple[str, str, str, bool, int, Outcome], Count] = {}
        self._children: dict[tuple[str, str, str], _Children] = {}

    def on(self, event: RequestFinished) -> None:
        """Count a request; measure it if an engine was asked."""
        model = self.label_of(event.model)
        engine, kind = event.engine or EngineId(""), event.traffic_class
        self._count((model, engine, kind, event.stream, event.status, event.outcome))
        if event.engine is None:
            return
        key = (model, engine, kind)
        of = self._of(key)
        (of.e2e_stream if event.stream else of.e2e_whole).observe(event.e2e_s)
        if event.ttft_s is not None and event.engine_ttft_s is not None:
            of.queue.observe(event.ttft_s - event.engine_ttft_s)
        of.prompt.value += event.num_prompt_tokens
        of.output.value += event.num_output_tokens
        of.cached.value += event.reported_cached_tokens or 0
        if event.stream and event.ttft_s is not None:
            of.ttft.observe(event.ttft_s)
            _gaps(event, of)
        _compare(event, of)

    def values(self, label: str) -> set[str]:
        """As `Family.values`, of all of them."""
        return {value for family in self._families for value in family.values(label)}

    def forget(self, label: str, value: str) -> None:
        """As `Family.forget`; what is kept at hand is found anew."""
        for family in self._families:
            family.forget(label, value)
        self._counts.clear()
        self._children.clear()

    def label_of(self, model: str) -> str:
        """`model`, or what stands for all beyond the first `MAX_MODELS`."""
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                return OTHER_MODELS
            self._models.add(model)
        return model

    def _count(self, key: tuple[str, str, str, bool, int, Outcome]) -> None:
        child = self._counts.get(key)
        if child is None:
            model, engine, kind, stream, status, outcome = key
            labels = (model, engine, kind, _word(stream), str(status), outcome.value)
            child = self._counts[key] = self._requests.labels(*labels)
        child.value += 1

    def _of(self, key: tuple[str, str, str]) -> "_Children":
        children = self._children.get(key)
        if children is None:
            spreads = [family.labels(*key) for family in self._spreads]
            counts = [family.labels(*key) for family in self._tokens]
            whole, stream = (self._e2e.labels(*key, _word(is_stream)) for is_stream in (False, True))
            children = _Children(whole, stream, *spreads, *counts)  # type: ignore[arg-type]  # in order
            self._children[key] = children
        return children


@dataclass(frozen=True, slots=True)
class _Children:
    """The metrics of one model on one engine: finding them by labels costs more than moving them. The
    fields are in the order of `_SPREADS` and `_TOKENS`."""

    e2e_whole: Spread
    e2e_stream: Spread
    ttft: Spread
    queue: Spread
    engine_ttft: Spread
    engine_queue: Spread
    engine_itl: Spread
    gap: Spread
    gap_max: Spread
    per_token: Spread
    ttft_ratio: Spread
    over: Spread
    under: Spread
    prompt: Count
    output: Count
    cached: Count
    predicted: Count
    reported: Count


def _gaps(event: RequestFinished, of: _Children) -> None:
    if event.num_chunks < 2:
        return
    total_s = event.mean_gap_s * (event.num_chunks - 1)
    of.gap.add(event.gap_counts, total_s)
    of.gap_max.observe(event.max_gap_s)
    if event.num_output_tokens > 1:
        of.per_token.observe(total_s / (event.num_output_tokens - 1))


def _compare(event: RequestFinished, of: _Children) -> None:
    """What was predicted with what came."""
    if event.reported_ttft_s is not None and event.reported_queue_s is not None:
        of.engine_ttft.observe(event.reported_ttft_s)
        of.engine_queue.observe(event.reported_queue_s)
    if event.reported_itl_s is not None:
        of.engine_itl.observe(event.reported_itl_s)
    actual_s = event.engine_ttft_s if event.stream else event.reported_ttft_s
    # Else it also waited for what another engine was still handing over, or another engine began it.
    is_own = event.split != _SPLIT and not event.continued
    if actual_s is not None and event.predicted_ttft_s > 0.0 and event.outcome is Outcome.OK and is_own:
        of.ttft_ratio.observe(actual_s / event.predicted_ttft_s)
    predicted, reported = event.predicted_cached_tokens, event.reported_cached_tokens
    if predicted is not None and reported is not None:
        of.predicted.value += predicted
        of.reported.value += reported
        of.over.observe(max(0, predicted - reported))
        of.under.observe(max(0, reported - predicted))


def _word(flag: bool) -> str:
    return "true" if flag else "false"
