"""What the router believes of the engines' caches: the precise index and its own placements, put together."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from anbar.core.clock import Clock
from anbar.core.errors import UpstreamError
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route import PrefixIndex
from anbar.route.placements import Placement, Placements, joined


class Caches:
    """Matches prompts, and notes what is sent where."""

    def __init__(self, index: PrefixIndex, placements: Placements, clock: Clock) -> None:
        self.index = index
        self.placements = placements
        self._clock = clock

    def match(self, query: RouteQuery, engines: list[EngineId]) -> dict[EngineId, PrefixMatch]:
        """What each engine would reuse: its events tell, or what it was just sent where that is more."""
        now_s = self._clock.now_s()
        found = self.index.match(query, engines, now_s)
        for engine, placed in self.placements.in_doubt(query, engines, now_s).items():
            found[engine] = joined(found.get(engine, PrefixMatch()), placed)
        return found

    @contextmanager
    def sent(self, engine: EngineId, query: RouteQuery) -> Iterator[Placement]:
        """One try of one request at one engine; call `first_byte` when the answer begins."""
        placement = self.placements.send(engine, query)
        try:
            yield placement
        except UpstreamError:
            placement.failed()
            raise
        finally:
            placement.over(self._clock.now_s())

    def first_byte(self, engine: EngineId, placement: Placement, status: int) -> None:
        """The answer begins: unless it is an error the prompt is computed, and perhaps its events are here
        already."""
        if status >= 400:
            placement.failed()
            return
        placement.first_byte(self._clock.now_s())
        self.taken_in(engine)

    def taken_in(self, engine: EngineId) -> None:
        """Events of an engine are in the index."""
        self.placements.prove(engine, partial(self.index.holds, engine), self._clock.now_s())

    def forget(self, engine: EngineId) -> None:
        """The engine's cache is empty."""
        self.index.forget(engine)
        self.placements.forget(engine)
