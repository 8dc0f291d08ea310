"""Where the prompt's beginning was sent before, without a word from the engines."""

import math
from collections.abc import Mapping, Sequence
from random import Random

from anbar.core.fleet import NO_MATCH, EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.contract import Sight
from anbar.route.filters import candidates
from anbar.route.options import PolicyOptions
from anbar.route.policies.ordered import by_load, in_order

FLOOR = 4
"""Requests above the mean that are no imbalance yet, however few there are (SMG 1.13's floor)."""


class Prefix:
    """The engine with the longest match, if that is enough of the prompt and the engine is not overloaded;
    else the least loaded one.

    Enough: at least `prefix_min_match` of the prompt's tokens, the rule and the default of the cache-aware
    policies of sglang-router and vllm-router. Overloaded: `n > mean + max(4, 2 sqrt(mean))` and
    `n > prefix_spill_ratio * mean` for `n` requests in flight, the per-engine gate of SMG 1.13: two
    deviations of a Poisson variable are chance, more is imbalance. Unlike theirs, the match is of hashed
    blocks of tokens and not of text, and what is not matched goes to the least loaded engine and not to the
    smallest tree. Of engines with as long a match, or none, and as many requests in flight those come first
    that have the request's adapter: bringing one takes less than computing what counts as a match.
    """

    name = "prefix"
    sight = Sight.PLACEMENTS

    def __init__(self, rng: Random, options: PolicyOptions) -> None:
        self._rng = rng
        self._min_match = options.prefix_min_match
        self._spill_ratio = options.prefix_spill_ratio

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """See `anbar.route.contract`."""
        able = candidates(query, engines)
        limit = self._limit(able)
        least = max(1.0, self._min_match * query.num_tokens)

        def rank(engine: EngineView) -> tuple[int, int, float, int, float]:
            matched = matches.get(engine.id, NO_MATCH).total
            chosen_for = matched if matched >= least and engine.num_in_flight <= limit else 0
            return -chosen_for, *by_load(query, engine, self._rng)

        order = sorted(able, key=rank)
        return in_order(self.name, query, order, matches, _reason(query, order, matches, least, limit))

    def _limit(self, able: Sequence[EngineView]) -> float:
        """Most requests in flight of an engine that is not overloaded."""
        mean = sum(engine.num_in_flight for engine in able) / len(able)
        return max(mean + max(FLOOR, 2 * math.sqrt(mean)), self._spill_ratio * mean)


def _reason(
    query: RouteQuery,
    order: Sequence[EngineView],
    matches: Mapping[EngineId, PrefixMatch],
    least: float,
    limit: float,
) -> str:
    best = order[0]
    matched = matches.get(best.id, NO_MATCH).total
    load = f"{best.num_in_flight} in flight, overloaded above {limit:.1f}"
    if matched >= least and best.num_in_flight <= limit:
        return f"{best.id} was sent {matched} of these {query.num_tokens} tokens before ({load})"
    longest = max(matches.get(engine.id, NO_MATCH).total for engine in order)
    why = "is overloaded" if longest >= least else f"is less than the {least:.0f} that count"
    return (
        f"{best.id} is the least loaded of {len(order)} ({load}): the longest match, {longest} of "
        f"{query.num_tokens} tokens, {why}"
    )
