"""An explanation for people: a few lines and a table, no wider than it must be."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from anbar.apps.router.explain_page import (
    ExplainedEngine,
    ExplainedRequest,
    ExplainedSplit,
    Explanations,
    LastRequests,
)

_COLUMNS = (
    "",
    "engine",
    "verdict",
    "device",
    "host",
    "shared",
    "wait",
    "load",
    "prefill",
    "first token",
    "delay",
    "later",
    "score",
    "in flight",
    "cache known",
)
_WORDS = frozenset((0, 1, 2, len(_COLUMNS) - 1))
"""Columns that are not numbers."""

_WIDTH = 110
"""Of the reason; the table is about as wide."""

_LEGEND = "device, host, shared: tokens of the prompt held there; wait to score: milliseconds; * the choice"


def text_of(page: Explanations) -> str:
    """All requests of one id, each as a block."""
    blocks = ["\n".join(_request(request)) for request in page.requests]
    if len(blocks) > 1:
        blocks.insert(0, f"{len(blocks)} requests had the id {page.request_id}; the newest comes first.")
    return "\n\n".join(blocks) + "\n"


def text_of_last(page: LastRequests) -> str:
    """The list of the last requests."""
    if not page.requests:
        return "no request was routed yet\n"
    rows = [("request", "routed at", "model", "engine", "outcome", "first byte, ms")]
    rows += [
        (each.request_id, each.at, each.model, each.engine or "-", each.outcome, _number(each.ttft_ms))
        for each in page.requests
    ]
    return "\n".join(_table(rows, words=frozenset(range(5)))) + "\n"


def _request(request: ExplainedRequest) -> Iterable[str]:
    yield f"request {request.request_id}, routed at {request.at}"
    lora = f" (adapter {request.lora})" if request.lora else ""
    about = "about " if request.prompt_tokens_estimated else ""
    count = f"{about}{request.prompt_tokens} prompt tokens"
    if request.tokens_note:
        count += f", not tokenized: {request.tokens_note}"
    yield f"  POST {request.endpoint}, model {request.model}{lora}, {count}"
    if request.chosen is not None:
        yield f"  {request.policy} chose {request.chosen}"
    yield from wrap(request.reason, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    if request.split is not None:
        yield from _prefill(request.split)
    is_split = request.split is not None and request.split.engine is not None
    yield from _engines(request.engines, "answer" if is_split else "")
    yield ""
    for attempt in request.failed_attempts:
        yield f"  {attempt.engine} failed after {attempt.after_ms:g} ms: {attempt.failure} ({attempt.detail})"
    yield from (f"  {line}" for line in _ended(request))


def _engines(engines: Sequence[ExplainedEngine], title: str) -> Iterable[str]:
    """`title`: where there are two tables, what this one chose an engine for."""
    yield ""
    if title:
        yield f"  {title}:"
    rows = [_COLUMNS, *(_row(engine) for engine in engines)]
    yield from (f"  {line}" for line in _table(rows, _WORDS))
    yield f"  {_LEGEND}"


def _prefill(split: ExplainedSplit) -> Iterable[str]:
    """The first leg, before the one that answers."""
    if split.engine is None:
        yield f"  prefill and decode not split: {split.outcome}"
        return
    cached = "" if split.cached_tokens is None else f", {split.cached_tokens} tokens cached there"
    yield f"  prefill by {split.engine}: {split.outcome}, {split.prefill_ms:g} ms{cached}"
    yield from _engines(split.engines, "prefill")


def _row(engine: ExplainedEngine) -> tuple[str, ...]:
    matched = engine.matched
    load = None
    if engine.load_host_ms is not None and engine.load_shared_ms is not None:
        load = engine.load_host_ms + engine.load_shared_ms
    return (
        {0: "-", 1: "*"}.get(engine.place, str(engine.place)),
        engine.engine,
        engine.verdict,
        *(("-",) * 3 if matched is None else (str(matched.device), str(matched.host), str(matched.shared))),
        _number(engine.wait_ms),
        _number(load),
        _number(engine.prefill_ms),
        _number(engine.ttft_ms),
        _number(engine.imposed_delay_ms),
        _number(engine.later_delay_ms),
        _number(engine.score_ms),
        str(engine.in_flight),
        engine.mode + (f": {engine.mode_reason}" if engine.mode_reason else ""),
    )


def _ended(request: ExplainedRequest) -> Iterable[str]:
    outcome = request.outcome
    if outcome is None:
        yield "still running"
        return
    first = outcome.engine
    who = f" by {first}" if first is not None else ""
    why = f": {outcome.broken}" if outcome.broken else ""
    if outcome.continued and request.failed_attempts:
        first = request.failed_attempts[-1].engine
        yield f"{outcome.engine} went on with the stream of {first}"
    yield f"ended: {outcome.outcome}, status {outcome.status}{who}, after {outcome.e2e_ms:g} ms{why}"
    predicted = next((engine.ttft_ms for engine in request.engines if engine.engine == first), None)
    if outcome.engine_ttft_ms is not None and predicted is not None:
        sent = f"first byte {outcome.engine_ttft_ms:g} ms after it was sent to {first}"
        whole = "" if request.stream else " (not a stream: that is the whole answer)"
        yield f"{sent}{whole}; first token predicted after {predicted:g} ms"
    if outcome.cached_tokens is not None:
        predicted_tokens = outcome.predicted_cached_tokens
        compared = "none looked up" if predicted_tokens is None else f"{predicted_tokens} predicted"
        yield f"cached tokens: {outcome.cached_tokens} reported, {compared}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def _table(rows: Sequence[Sequence[str]], words: frozenset[int]) -> Iterable[str]:
    """Columns as wide as they must be; those in `words` begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:{'<' if index in words else '>'}{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
