"""Which engines are asked now: ready by their probes, not drained, not at rest, trusted by their breakers."""

import math
from collections.abc import Sequence
from enum import IntEnum

from msgspec.structs import replace

from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.failures import at_rest
from anbar.core.clock import Clock
from anbar.core.fleet import EngineState, EngineView
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route.breaker import ejected
from anbar.route.filters import fits, in_group

MAX_REST_S = 30.0
"""Longest pause that an engine is granted by its `Retry-After`: it is asked again sooner than it said, rather
than be forgotten for an hour."""


class Rank(IntEnum):
    """How gladly an engine is asked: the higher, the sooner."""

    AWAY = 0
    """Not ready, or drained."""
    AT_REST = 1
    """It asked for a pause: not asked."""
    SHUT = 2
    """Its breaker keeps it out: asked where nobody better is left."""
    FREE = 3


class Standing:
    """Judges engines for each request."""

    def __init__(self, fleet: Fleet, clock: Clock, max_ejected_share: float) -> None:
        self._fleet = fleet
        self._clock = clock
        self.max_ejected_share = max_ejected_share
        """May be changed at any time."""

    def rank(self, engine: Engine) -> Rank:
        """Whether the engine may be asked now, and how gladly."""
        if not engine.is_ready:
            return Rank.AWAY
        if self._rests(engine):
            return Rank.AT_REST
        return Rank.FREE if engine.breaker.admits else Rank.SHUT

    def views(self, model: str, group: frozenset[EngineId]) -> list[EngineView]:
        """The fleet as a policy may use it for a request to `model` on engines of `group` (empty: on all):
        RESTING are those that are ready and get nothing all the same. Raises RequestError (429) when all that
        could serve have asked for a pause."""
        now_s = self._clock.now_s()
        views = self._fleet.views(now_s)
        if not [e for e in self._fleet.engines if e.rest_until_s > now_s or not e.breaker.admits]:
            return views
        serving = [
            engine
            for engine in self._fleet.serving(model)
            if engine.is_ready and (not group or engine.id in group)
        ]
        held = self.held_back(serving)
        if serving and len(held) == len(serving):
            resting = [engine.rest_until_s for engine in serving if self._rests(engine)]
            if resting:
                raise at_rest(min(resting) - now_s)
        return [replace(view, state=EngineState.RESTING) if view.id in held else view for view in views]

    def state(self, engine: Engine) -> EngineState:
        """The state of an engine, for people."""
        held = self.rank(engine) in (Rank.AT_REST, Rank.SHUT)
        return EngineState.RESTING if held else engine.state

    def reason(self, engine: Engine) -> str:
        """Why it is in that state, for people."""
        if engine.state is not engine.health.state:
            return "by an admin call"
        rank = self.rank(engine)
        if rank is Rank.AT_REST:
            return f"asked for a pause, over in {math.ceil(engine.rest_until_s - self._clock.now_s())} s"
        if rank is Rank.SHUT:
            return f"failed too often: {engine.health.last_error or 'it answered with errors'}"
        return engine.health.reason

    def last_resorts(self, query: RouteQuery, asked: Sequence[Engine]) -> list[Engine]:
        """Engines besides `asked` that could serve, though their breakers keep them out."""
        if len(asked) == len(self._fleet):
            return []
        now_s = self._clock.now_s()
        others = [engine for engine in self._fleet.serving(query.model) if engine not in asked]
        views = ((engine, engine.view(now_s)) for engine in others)
        return [engine for engine, view in views if in_group(query, view) and fits(query, view)]

    def may_ask(self, engine: Engine) -> bool:
        """Whether a request that failed elsewhere may come here, if need be."""
        return self.rank(engine) >= Rank.SHUT

    def rest(self, engine: Engine, seconds: float) -> None:
        """The engine asked for a pause."""
        engine.rest_until_s = self._clock.now_s() + min(seconds, MAX_REST_S)

    def _rests(self, engine: Engine) -> bool:
        return engine.rest_until_s > self._clock.now_s()

    def held_back(self, serving: Sequence[Engine]) -> frozenset[EngineId]:
        """Those of `serving`, ready engines that could serve a request, that are not to be asked for it."""
        resting = {engine.id for engine in serving if self._rests(engine)}
        shut = [engine for engine in serving if not engine.breaker.admits]
        held = resting.union(engine.id for engine in shut)
        if len(held) < len(serving) or not held:
            return frozenset(held)
        # Nobody is left. Rather than none at all, ask those that may not be ejected.
        out = ejected(
            ((engine.breaker.opened_s, engine.id) for engine in shut), len(serving), self.max_ejected_share
        )
        return out | resting
