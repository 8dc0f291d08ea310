"""Why a request went where it went: what was known at the moment of the choice, in the parts it was made of.

Kept of each request is a `Decision`: values that routing had anyway, no token and no text. What a person is
shown is computed from it only when somebody asks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from anbar.core.fleet import EngineView, Prediction, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.filters import Verdict, verdict
from anbar.route.predict import host_load_s, score_s

NOT_LOOKED_AT = "policy_needs_no_tokens"
"""Why a prompt was not tokenized though it could have been."""


class Mode(Enum):
    """How well an engine's cache was known."""

    PRECISE = "precise"
    """From its own KV events, all of which were taken in."""
    APPROXIMATE = "approximate"
    """Its events are missing or not to be trusted."""
    LOAD_ONLY = "load_only"
    """The prompt's tokens were not to be had, so nothing could be looked up: load alone decided."""


class Decision(msgspec.Struct, frozen=True):
    """One choice with all it was made from. `route` is None when nothing could serve the request."""

    model: str
    lora: str | None
    num_tokens: int
    is_estimate: bool
    """Whether `num_tokens` is one: the prompt was not read to its end, or not at all."""
    tokens_note: str
    """Why the prompt was not tokenized; "" when it was."""
    engines: Sequence[EngineView]
    verdicts: Mapping[EngineId, Verdict] | None
    """None: all were able."""
    degraded: Mapping[EngineId, str]
    """Why an engine's cache could not be predicted precisely; of the others nothing."""
    route: Route | None = None

    def verdict(self, engine: EngineId) -> Verdict:
        """What the filters said of one engine."""
        return Verdict.ABLE if self.verdicts is None else self.verdicts[engine]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one engine looked like. `place` is 1 for the choice, 2 for the first fallback and so on, 0 for an
    engine that the filters dropped; then there is no prediction."""

    engine: EngineView
    verdict: Verdict
    mode: Mode
    mode_reason: str
    place: int = 0
    prediction: Prediction | None = None
    load_host_s: float = 0.0
    load_shared_s: float = 0.0
    imposed_s: float = 0.0
    """Delay of the answers that run there meanwhile."""

    @property
    def score_s(self) -> float:
        """What `predicted_ttft` makes least."""
        return score_s(self.prediction) if self.prediction is not None else 0.0


def note_decision(
    query: RouteQuery,
    tokens_note: str,
    engines: Sequence[EngineView],
    degraded: Mapping[EngineId, str],
    route: Route | None,
) -> Decision:
    """What is kept of a choice; `route` None: nothing could serve the request."""
    all_able = route is not None and len(route.predictions) == len(engines) and query.lora is None
    return Decision(
        model=query.model,
        lora=query.lora,
        num_tokens=query.num_tokens,
        is_estimate=not query.is_whole or not query.token_ids,
        tokens_note=tokens_note or ("" if query.token_ids else NOT_LOOKED_AT),
        engines=engines,
        verdicts=None if all_able else {engine.id: verdict(query, engine) for engine in engines},
        degraded=degraded,
        route=route,
    )


def candidates_of(decision: Decision) -> list[Candidate]:
    """Every engine of a decision: the choice, the fallbacks in their order, then those that were dropped."""
    route = decision.route
    order = () if route is None else (route.target, *route.fallbacks)
    places = {engine: place for place, engine in enumerate(order, 1)}
    found = [_candidate(decision, engine, places.get(engine.id, 0)) for engine in decision.engines]
    return sorted(found, key=lambda candidate: candidate.place or len(found) + 1)


def _candidate(decision: Decision, engine: EngineView, place: int) -> Candidate:
    mode, reason = _mode(decision, engine)
    found = decision.verdict(engine.id)
    prediction = decision.route.predictions.get(engine.id) if decision.route is not None else None
    if prediction is None:
        return Candidate(engine, found, mode, reason, place)
    host_s = host_load_s(engine, prediction)
    return Candidate(
        engine,
        found,
        mode,
        reason,
        place,
        prediction,
        load_host_s=host_s,
        load_shared_s=prediction.load_s - host_s,
        imposed_s=prediction.imposed_s,
    )


def _mode(decision: Decision, engine: EngineView) -> tuple[Mode, str]:
    if decision.tokens_note:
        return Mode.LOAD_ONLY, decision.tokens_note
    reason = decision.degraded.get(engine.id, "")
    return (Mode.APPROXIMATE, reason) if reason else (Mode.PRECISE, "")
