"""What `GET /admin/explain/{request_id}` answers. The texts under the fields are its documentation."""

from datetime import UTC, datetime

import msgspec

from anbar.apps.router.explain import Kept
from anbar.apps.router.record import Record
from anbar.core.fleet import PrefixMatch
from anbar.route.explain import Candidate, Decision, candidates_of


class TierTokens(msgspec.Struct, frozen=True):
    """Tokens of the prompt, each counted where it would come from."""

    device: int
    host: int
    shared: int


class ExplainedEngine(msgspec.Struct, frozen=True):
    """One engine at the moment of the choice. Times are predictions in milliseconds; they and `matched` are
    null for an engine that the filters dropped."""

    engine: str
    place: int
    """1: the choice; 2: the first fallback, and so on; 0: dropped by a filter."""
    verdict: str
    """`able`, or the filter that dropped it."""
    mode: str
    """How its cache was known: `precise`, `approximate`, or `load_only`: its tokens could not be had."""
    mode_reason: str
    """Why not precise."""
    matched: TierTokens | None
    """Tokens that would not be computed, by tier."""
    wait_ms: float | None
    """Until the prompts that are queued there are computed, and its KV cache has room."""
    load_host_ms: float | None
    """To load from host memory."""
    load_shared_ms: float | None
    """To load from the shared store."""
    prefill_ms: float | None
    """To compute the rest."""
    ttft_ms: float | None
    """The sum of these: when the first token would come."""
    imposed_delay_ms: float | None
    """What computing it costs the answers that run there meanwhile, summed over them."""
    later_delay_ms: float | None
    """What computing it costs prompts that come later, summed over them."""
    score_ms: float | None
    """The sum of the last three: `predicted_ttft` takes the least; other policies ignore it."""
    in_flight: int
    """Requests it had."""
    queued_prefill_tokens: int
    """Prompt tokens of those that had no first byte yet, less what was predicted to be cached."""
    decoding: int
    """Answers it was streaming."""


class ExplainedAttempt(msgspec.Struct, frozen=True):
    """An engine that was asked and failed: before its first byte, or in a stream that another one was to go
    on with."""

    engine: str
    failure: str
    """`unreachable`, `timeout`, `unavailable`, `busy` (it asked for a pause), `error` or `no_descriptor`."""
    detail: str
    after_ms: float
    """When it had failed, from the request's arrival."""


class ExplainedOutcome(msgspec.Struct, frozen=True):
    """How it ended."""

    outcome: str
    status: int
    """The HTTP status; 499: the client went away."""
    engine: str | None
    """Who answered, or was asked last."""
    continued: bool
    """The engine that began the stream was lost, and `engine` went on with it: the first byte, its prediction
    and the tokens cached are those of the last of `failed_attempts`."""
    broken: str
    """Why the answer broke off after its first byte; empty when it did not."""
    ttft_ms: float | None
    """First byte of the answer, from the request's arrival."""
    engine_ttft_ms: float | None
    """The same from when it was sent to that engine: what its predicted `ttft_ms` is compared with."""
    reported_ttft_ms: float | None
    """To the first token in the engine's own words; null unless it runs with
    `--enable-per-request-metrics`."""
    e2e_ms: float
    predicted_cached_tokens: int | None
    """null: nothing was looked up."""
    cached_tokens: int | None
    """What the engine reported; null: nothing."""
    output_tokens: int
    """0 also when the engine did not report them."""


class ExplainedSplit(msgspec.Struct, frozen=True):
    """What became of splitting its prefill from its decode."""

    outcome: str
    """`split`, or why not (docs/concepts/disaggregation.md)."""
    engine: str | None
    """Who computed the prompt, or was asked last to."""
    prefill_ms: float
    """What that took."""
    cached_tokens: int | None
    """What that engine reported; null: nothing."""
    engines: list[ExplainedEngine]
    """As those who may answer, for the prefill; empty when nobody was asked."""


class ExplainedRequest(msgspec.Struct, frozen=True):
    """One request that was routed."""

    request_id: str
    at: str
    """When it was routed, UTC."""
    state: str
    """`running` or `finished`."""
    endpoint: str
    stream: bool
    """Whether the answer was asked for as a stream: only then its first byte is its first token."""
    model: str
    lora: str | None
    prompt_tokens: int
    prompt_tokens_estimated: bool
    """Whether `prompt_tokens` is an estimate: the prompt was not tokenized, or only as far as some engine
    might hold it."""
    tokens_note: str
    """Why the prompt was not tokenized; empty when it was, in full or in part."""
    policy: str
    """Empty when no engine could serve the request."""
    chosen: str | None
    reason: str
    """The policy's own words."""
    engines: list[ExplainedEngine]
    """The choice, the fallbacks in their order, then those that were dropped."""
    split: ExplainedSplit | None
    """null where nothing is split. Where this request was, `engines` are as they were after its prefill."""
    failed_attempts: list[ExplainedAttempt]
    outcome: ExplainedOutcome | None
    """null while it runs."""


class Explanations(msgspec.Struct, frozen=True):
    """The answer: all kept requests of that id, the newest first. A client may have used an id twice."""

    request_id: str
    requests: list[ExplainedRequest]


class Brief(msgspec.Struct, frozen=True):
    """One line of the list of the last requests."""

    request_id: str
    at: str
    model: str
    engine: str | None
    outcome: str
    """`running`, or how it ended."""
    ttft_ms: float | None


class LastRequests(msgspec.Struct, frozen=True):
    """`GET /admin/explain`: the last requests that can be explained, at most 50, the newest first."""

    kept: int
    """How many are kept at most (`router.explain.keep`)."""
    requests: list[Brief]


def explained(kept: Kept) -> ExplainedRequest:
    """A kept request as it is now."""
    record, decision = kept.record, kept.record.decision
    assert decision is not None, "only routed requests are kept"
    route = decision.route
    return ExplainedRequest(
        request_id=record.request_id,
        at=utc(kept.at_s),
        state="running" if record.e2e_s is None else "finished",
        endpoint=record.endpoint,
        stream=record.stream,
        model=decision.model,
        lora=decision.lora,
        prompt_tokens=decision.num_tokens,
        prompt_tokens_estimated=decision.is_estimate,
        tokens_note=decision.tokens_note,
        policy=route.policy if route is not None else "",
        chosen=route.target if route is not None else None,
        reason=route.reason if route is not None else _why_none(decision),
        engines=[_engine(candidate) for candidate in candidates_of(decision)],
        split=_split(record) if record.split else None,
        failed_attempts=[
            ExplainedAttempt(each.engine, each.failure.value, each.detail, ms(each.after_s))
            for each in record.failed
        ],
        outcome=_outcome(record, record.e2e_s) if record.e2e_s is not None else None,
    )


def brief(kept: Kept) -> Brief:
    """A kept request in one line."""
    record = kept.record
    return Brief(
        request_id=record.request_id,
        at=utc(kept.at_s),
        model=record.model,
        engine=record.engine,
        outcome="running" if record.e2e_s is None else record.outcome.value,
        ttft_ms=_ms_or_none(record.ttft_s),
    )


def utc(at_s: float) -> str:
    """`2026-01-31T23:59:59.123Z`."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _ms_or_none(seconds: float | None) -> float | None:
    return None if seconds is None else ms(seconds)


def _why_none(decision: Decision) -> str:
    found = ((engine.id, decision.verdict(engine.id)) for engine in decision.engines)
    verdicts = ", ".join(f"{engine}: {verdict.value}" for engine, verdict in found)
    return f"no engine could serve it ({verdicts})"


def _engine(candidate: Candidate) -> ExplainedEngine:
    view, found = candidate.engine, candidate.prediction
    known = found is not None
    return ExplainedEngine(
        engine=view.id,
        place=candidate.place,
        verdict=candidate.verdict.value,
        mode=candidate.mode.value,
        mode_reason=candidate.mode_reason,
        matched=_tiers(found.match) if found is not None else None,
        wait_ms=_ms_or_none(found.wait_s if found is not None else None),
        load_host_ms=ms(candidate.load_host_s) if known else None,
        load_shared_ms=ms(candidate.load_shared_s) if known else None,
        prefill_ms=_ms_or_none(found.prefill_s if found is not None else None),
        ttft_ms=_ms_or_none(found.ttft_s if found is not None else None),
        imposed_delay_ms=ms(candidate.imposed_s) if known else None,
        later_delay_ms=_ms_or_none(found.later_s if found is not None else None),
        score_ms=ms(candidate.score_s) if known else None,
        in_flight=view.num_in_flight,
        queued_prefill_tokens=view.queued_prefill_tokens,
        decoding=view.num_decoding,
    )


def _split(record: Record) -> ExplainedSplit:
    leg = record.prefill
    decision = leg.decision if leg is not None else None
    return ExplainedSplit(
        outcome=record.split,
        engine=record.prefill_engine,
        prefill_ms=ms(record.prefill_s),
        cached_tokens=leg.reported_cached_tokens if leg is not None else None,
        engines=[_engine(candidate) for candidate in candidates_of(decision)] if decision is not None else [],
    )


def _tiers(match: PrefixMatch) -> TierTokens:
    return TierTokens(match.device, match.host - match.device, match.shared - match.host)


def _outcome(record: Record, e2e_s: float) -> ExplainedOutcome:
    return ExplainedOutcome(
        outcome=record.outcome.value,
        status=record.status,
        engine=record.engine,
        continued=record.continued,
        broken=record.broken,
        ttft_ms=_ms_or_none(record.ttft_s),
        engine_ttft_ms=_ms_or_none(record.engine_ttft_s),
        reported_ttft_ms=_ms_or_none(record.reported_ttft_s),
        e2e_ms=ms(e2e_s),
        predicted_cached_tokens=record.predicted_cached_tokens,
        cached_tokens=record.reported_cached_tokens,
        output_tokens=record.num_output_tokens,
    )
