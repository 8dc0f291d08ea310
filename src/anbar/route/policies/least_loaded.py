"""The engine with the least to do, whatever it has cached."""

from collections.abc import Mapping, Sequence
from random import Random

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.contract import Sight
from anbar.route.filters import candidates
from anbar.route.policies.ordered import by_load, in_order


class LeastLoaded:
    """Fewest requests in flight; then those that have the request's adapter, if it has one; then fewest
    prompt tokens queued; then at random."""

    name = "least_loaded"
    sight = Sight.NOTHING

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """See `anbar.route.contract`."""
        able = candidates(query, engines)
        order = sorted(able, key=lambda engine: by_load(query, engine, self._rng))
        best = order[0]
        reason = (
            f"{best.id} is the least loaded of {len(order)}: {best.num_in_flight} in flight, "
            f"{best.queued_prefill_tokens} prompt token(s) queued"
        )
        return in_order(self.name, query, order, matches, reason)
