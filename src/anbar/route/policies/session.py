"""All requests of one session to one engine, as long as that is not busier than others."""

import math
from collections.abc import Mapping, Sequence
from random import Random

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.adapters import adapter_wait_s
from anbar.route.contract import Sight
from anbar.route.filters import candidates
from anbar.route.options import PolicyOptions
from anbar.route.policies.ordered import by_load, in_order
from anbar.route.rendezvous import weight

FLOOR = 4
"""Requests in flight that any engine may have: among so few a mean says nothing, and a session that moves
pays with its whole conversation."""


class Session:
    """The engine with the greatest weight for the session (`anbar.route.rendezvous`) that has room; those
    without room come last. A request without a session goes to the least loaded engine.

    Room: fewer in flight than `bound` times the mean with this request counted, rounded up (consistent
    hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam, 2016), but never fewer than `FLOOR`.
    With a bound of at least 1 some engine always has room.

    A request with a LoRA adapter stays with its session's engine although another one has the adapter in a
    slot: bringing it is a fraction of a second, the conversation's cache may be many. Once it has to move
    anyway it moves to an engine that has the adapter, if one of those with room does.
    """

    name = "session"
    sight = Sight.NOTHING

    def __init__(self, rng: Random, options: PolicyOptions) -> None:
        self._rng = rng
        self._bound = options.session_bound

    def decide(
        self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
    ) -> Route:
        """See `anbar.route.contract`."""
        able = candidates(query, engines)
        if not query.session:
            able.sort(key=lambda engine: by_load(query, engine, self._rng))
            reason = f"{able[0].id} is the least loaded of {len(able)}; the request names no session"
            return in_order(self.name, query, able, matches, reason)
        wanted = sorted(able, key=lambda engine: -weight(query.session, engine.id))
        room = self._room(able)
        home = wanted[0]

        def rank(engine: EngineView) -> tuple[bool, bool, float]:
            return engine.num_in_flight >= room, engine is not home, adapter_wait_s(query, engine)

        order = sorted(wanted, key=rank)
        return in_order(self.name, query, order, matches, _reason(wanted, order, room))

    def _room(self, able: Sequence[EngineView]) -> int:
        total = sum(engine.num_in_flight for engine in able) + 1
        return max(FLOOR, math.ceil(self._bound * total / len(able)))


def _reason(wanted: Sequence[EngineView], order: Sequence[EngineView], room: int) -> str:
    chosen, place = order[0], wanted.index(order[0])
    load = f"{chosen.num_in_flight} in flight, room for {room}"
    if place == 0:
        return f"{chosen.id} is the session's engine ({load})"
    full = [engine for engine in wanted[:place] if engine.num_in_flight >= room]
    told = ", ".join(f"{engine.id} has {engine.num_in_flight}" for engine in full)
    adapter = " that has the adapter" if len(full) < place else ""
    return f"{chosen.id} is the session's next engine{adapter} ({load}), since {told} in flight"
