"""Whether a prompt is computed by one engine and answered by another. Pure.

A split wins when the engine that answers has answers running, which a long prompt would delay, and loses the
time to move the KV. So short prompts, and those of which the answering engine has most, are not split.
"""

from dataclasses import dataclass
from enum import Enum

import msgspec

from anbar.core.fleet import EngineView, Prediction, PrefixMatch
from anbar.core.request import RouteQuery
from anbar.route.predict import predict, score_s


class SplitVerdict(Enum):
    """What became of the thought of splitting a request."""

    SPLIT = "split"
    """Its prompt was computed by a prefill engine, and handed over."""
    SHORT = "short"
    """The prompt is too short to be worth it."""
    CACHED = "cached"
    """The engine that answers has most of it."""
    NO_GAIN = "no_gain"
    """The first token is not predicted to come sooner by enough."""
    UNFIT = "unfit"
    """It asks for what cannot be split: several prompts or choices, log-probabilities of the prompt, one
    token, or it brings its own transfer parameters."""
    NO_PREFILL_ENGINE = "no_prefill_engine"
    """None serves its model and may be asked now."""
    NO_DECODE_ENGINE = "no_decode_engine"
    """Only prefill engines may be asked now: one of them answers."""
    PREFILL_BUSY = "prefill_busy"
    """The prefill engines have more to do than `router.slo_ttft_s` or `router.max_waiting` allow."""
    PREFILL_FAILED = "prefill_failed"
    """Prefill engines were asked, and none answered: the decode engine computed. An engine that failed after
    it had the request is the last one that is asked."""
    PREFILL_REFUSED = "prefill_refused"
    """A prefill engine refused the request; so may the one that answers, in its own words."""
    CANCELLED = "cancelled"
    """It ended while its prompt was computed: its client left, or the router stopped."""
    NOT_HANDED_OVER = "not_handed_over"
    """A prefill engine computed the prompt and did not say where its KV is: it has no NIXL connector."""


class SplitRule(msgspec.Struct, frozen=True):
    """When a split is worth it; see `router.split`."""

    min_uncached_tokens: int
    min_gain_s: float | None = None


def judge(rule: SplitRule, query: RouteQuery, unsplit: Prediction) -> SplitVerdict:
    """Whether a prompt is long enough; `unsplit`: what is predicted of the engine that would answer."""
    if query.num_tokens < rule.min_uncached_tokens:
        return SplitVerdict.SHORT
    is_cached = query.num_tokens - unsplit.match.total < rule.min_uncached_tokens
    return SplitVerdict.CACHED if is_cached else SplitVerdict.SPLIT


@dataclass(frozen=True, slots=True)
class Leg:
    """One engine's part, as it is predicted."""

    engine: EngineView
    prediction: Prediction


def gain_s(query: RouteQuery, unsplit: Leg, prefill: Leg, match: PrefixMatch) -> float:
    """Seconds that a split wins, others' delay included. `match`: what the engine that answers would find of
    the prompt after it. What is queued there goes on while the prompt is computed elsewhere."""
    engine = unsplit.engine
    after = predict(query, engine, match)
    waited_s = min(after.wait_s, prefill.prediction.ttft_s)
    split_s = score_s(prefill.prediction) + score_s(after) - waited_s
    return score_s(unsplit.prediction) - split_s


def handed(match: PrefixMatch, num_tokens: int) -> PrefixMatch:
    """What an engine with a `match` of its own finds of a prompt after `num_tokens` were handed over."""
    return PrefixMatch(match.device, match.host, max(match.shared, num_tokens), match.unproven)
