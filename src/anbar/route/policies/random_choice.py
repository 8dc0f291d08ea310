"""Any engine: the baseline that needs no state at all."""

from collections.abc import Mapping, Sequence
from random import Random

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.contract import Sight
from anbar.route.filters import candidates
from anbar.route.policies.ordered import in_order


class RandomChoice:
    """Each candidate as likely as any other, fallbacks included."""

    name = "random"
    sight = Sight.NOTHING

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """See `anbar.route.contract`."""
        able = candidates(query, engines)
        self._rng.shuffle(able)
        reason = f"{able[0].id} was drawn from {len(able)} engine(s) that can serve the request"
        return in_order(self.name, query, able, matches, reason)
