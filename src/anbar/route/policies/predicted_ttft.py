"""The default: the engine on which the first token is predicted soonest, everybody's delay counted."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from random import Random

import msgspec

from anbar.core.fleet import EngineView, Prediction, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.contract import Sight
from anbar.route.filters import candidates
from anbar.route.predict import predict_all, score_s

TIE_RATIO = 0.1
"""Scores within 10 % of the best are equal. Learned prefill rates of like engines differ by as much, and
without ties one of them would get every request that comes alone, and the others' caches nothing."""

MAX_TIE_RATIO = 0.5
"""Scores that differ by less than the two engines' predictions may be off together are equal too, up to this:
on a busy machine like engines seem to differ by a third, and a prefix would be left for nothing."""

TIE_S = 0.001
"""Scores within a millisecond of the best are equal: no client sees the difference."""


class _Scored(msgspec.Struct, frozen=True):
    engine: EngineView
    prediction: Prediction
    score_s: float


class _Why(msgspec.Struct, frozen=True):
    """A choice in words, which are made when they are asked for."""

    num_tokens: int
    order: Sequence[_Scored]

    def __str__(self) -> str:
        best = self.order[0]
        text = f"{best.engine.id}: {_describe(self.num_tokens, best)}"
        if len(self.order) == 1:
            return f"{text}; it is the only engine that can serve the request"
        second = self.order[1]
        tied = _is_tied(second, min(self.order, key=_SCORE))
        link = "as good, but no better placed and no less busy," if tied else "next best"
        told = _describe(self.num_tokens, second)
        return f"{text}; {link} of {len(self.order) - 1} other(s) is {second.engine.id}: {told}"


_SCORE = attrgetter("score_s")


class PredictedTtft:
    """Least `TTFT(w)` plus the delay imposed on others, at `w` and later (`anbar.route.predict`).

    Among equal scores the engine that has most of the prefix on its device wins, since nothing has to be
    moved or kept twice; then the least busy one; then chance. A prefix that lies only in the shared store
    costs the same everywhere, so there the least busy engine is chosen.
    """

    name = "predicted_ttft"
    sight = Sight.CACHES

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """See `anbar.route.contract`."""
        able = candidates(query, engines)
        predictions = predict_all(query, able, matches)
        scored = [_score(engine, predictions[engine.id]) for engine in able]
        if len(scored) > 1:
            best = min(scored, key=_SCORE)

            def rank(entry: _Scored) -> tuple[float, int, int, int, float]:
                engine = entry.engine
                score_s = 0.0 if _is_tied(entry, best) else entry.score_s
                busyness = engine.num_in_flight, engine.queued_prefill_tokens
                return score_s, -entry.prediction.match.device, *busyness, self._rng.random()

            scored.sort(key=rank)
        ids = [entry.engine.id for entry in scored]
        return Route(ids[0], tuple(ids[1:]), predictions, self.name, _Why(query.num_tokens, scored))


def _is_tied(entry: _Scored, best: _Scored) -> bool:
    ratio = min(max(TIE_RATIO, entry.engine.doubt + best.engine.doubt), MAX_TIE_RATIO)
    return entry.score_s <= best.score_s * (1 + ratio) + TIE_S


def _score(engine: EngineView, prediction: Prediction) -> _Scored:
    return _Scored(engine, prediction, score_s(prediction))


def _describe(num_tokens: int, entry: _Scored) -> str:
    match, cost = entry.prediction.match, entry.prediction
    tiers = (
        f"{match.device} on the device, {match.host - match.device} in host memory, "
        f"{match.shared - match.host} in the shared store"
    )
    others = (
        f", delaying others' answers by {cost.imposed_s:.3f} s in all and prompts to "
        f"come by {cost.later_s:.3f} s"
    )
    return (
        f"first token in {cost.ttft_s:.3f} s (wait {cost.wait_s:.3f}, load {cost.load_s:.3f}, "
        f"prefill {cost.prefill_s:.3f}) with {match.total} of {num_tokens} tokens cached ({tiers}), "
        f"{entry.engine.num_in_flight} in flight{others if entry.engine.num_in_flight else ''}"
    )
