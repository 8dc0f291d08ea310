"""Engines in turn: the baseline that other policies are compared with."""

from collections.abc import Mapping, Sequence

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.contract import Sight
from anbar.route.filters import candidates
from anbar.route.policies.ordered import in_order


class RoundRobin:
    """Takes the candidates in turn, sorted by name, so that each gets every n-th request."""

    name = "round_robin"
    sight = Sight.NOTHING

    def __init__(self) -> None:
        self._num_decisions = 0

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """See `anbar.route.contract`."""
        able = candidates(query, engines)
        turn = self._num_decisions % len(able)
        self._num_decisions += 1
        order = able[turn:] + able[:turn]
        reason = f"{order[0].id} is next in turn of {len(order)} engine(s) that can serve the request"
        return in_order(self.name, query, order, matches, reason)
