"""What the router believes of the engines' caches: the precise index and its own placements, put together."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType

from msgspec import structs

from anbar.adapters.vllm.reading import Reading
from anbar.apps.router.engine import Engine, Fleet
from anbar.core.clock import Clock
from anbar.core.errors import UpstreamError
from anbar.core.fleet import NO_MATCH, PrefixMatch
from anbar.core.ids import EngineId
from anbar.core.request import RouteQuery
from anbar.route import PrefixIndex, Sight
from anbar.route.placements import Placement, Placements, joined

MAX_AGE_S = 120.0
"""Engines evict after minutes, not seconds; the default of the approximate modes of Dynamo and
vllm-router."""


def imprecise(sight: Sight, engines: Iterable[Engine]) -> dict[EngineId, str]:
    """Why a policy that sees so much knows an engine's cache only approximately, by engine; without those
    that it knows, and without any when it does not look."""
    if sight is Sight.CACHES:
        return {engine.id: why for engine in engines if (why := engine.degraded())}
    return {engine.id: "placements_only" for engine in engines} if sight is Sight.PLACEMENTS else {}


def degraded(sight: Sight, tokens_note: str, engine: Engine) -> str:
    """Why a request was not routed as its policy would have it; "" when it was."""
    if sight is Sight.NOTHING:
        return ""
    return tokens_note or (engine.degraded() if sight is Sight.CACHES else "")


@dataclass(frozen=True, slots=True)
class Matched:
    """What each engine would reuse of a prompt."""

    believed: Mapping[EngineId, PrefixMatch] = field(default_factory=dict)
    """For the decision."""
    told: Mapping[EngineId, PrefixMatch] = field(default_factory=dict)
    """By events alone, believed or not: what the self-check compares."""


_MIN_COMMON = 16
"""Tokens that two prompts must begin with before the rest is compared."""


@dataclass(slots=True)
class _Unread:
    """A prompt in flight of which only the beginning is known."""

    engine: EngineId
    query: RouteQuery
    reading: Reading


class Caches:
    """Matches prompts, and notes what is sent where."""

    def __init__(
        self,
        fleet: Fleet,
        index: PrefixIndex,
        placements: Placements,
        clock: Clock,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        """`max_age_s`: how long placements are believed in where nothing else is known."""
        self._fleet = fleet
        self.index = index
        self.max_age_s = max_age_s
        """May be changed at any time."""
        self.placements = placements
        self._clock = clock
        self._unread: dict[Placement, _Unread] = {}
        """Prompts in flight of which only the beginning is known."""

    def match(self, query: RouteQuery, engines: list[EngineId], sight: Sight = Sight.CACHES) -> Matched:
        """What each engine would reuse, as far as the policy looks: its events tell, or what it was just sent
        where that is more; or all that it was sent, also where events do not tell or are not believed."""
        if self._unread:
            self._read_on(query)
        now_s = self._clock.now_s()
        if sight is Sight.PLACEMENTS:
            return Matched(self.placements.match(query, engines, now_s, self.max_age_s))
        told = self.index.match(query, engines, now_s)
        doubted = [engine for engine in engines if not self._is_all_told(query, engine, told)]
        sent = self.placements.in_doubt(query, doubted, now_s) if doubted else {}
        others = [engine for engine in engines if self._fleet[engine].degraded()]
        if not others and len(told) == len(engines) and set(sent.values()) <= {NO_MATCH}:
            return Matched(told, told)
        if others:
            sent |= self.placements.match(query, others, now_s, self.max_age_s)
        found = dict.fromkeys(engines, NO_MATCH) | told
        for engine in others:
            if not self._fleet[engine].is_told():
                found[engine] = NO_MATCH
        for engine, placed in sent.items():
            found[engine] = joined(found[engine], placed)
        return Matched(found, told)

    def are_told(self, engines: Iterable[Engine]) -> bool:
        """Whether events alone tell what these engines hold. An engine without a prefix cache holds
        nothing."""
        return not [e for e in engines if e.degraded() and self.placements.is_attached(e.id)]

    def _is_all_told(self, query: RouteQuery, engine: EngineId, told: Mapping[EngineId, PrefixMatch]) -> bool:
        """Whether events tell of every block of the prompt that an engine can reuse: what it was sent just
        now adds nothing."""
        profile, match = self._fleet[engine].profile, told.get(engine)
        if profile is None or match is None:
            return False
        return match.device + profile.block_size >= len(query.token_ids)

    def _read_on(self, query: RouteQuery) -> None:
        """Of a prompt in flight that begins like this one, more may be known since this one was read: what
        has been encoded once costs nothing more."""
        begin = query.token_ids[:_MIN_COMMON]
        for placement, unread in list(self._unread.items()):
            if unread.query.token_ids[:_MIN_COMMON] != begin:
                continue
            unread.reading.take_known()
            if len(unread.reading.ids) > len(unread.query.token_ids):
                unread.query = structs.replace(unread.query, token_ids=unread.reading.ids)
                self.placements.extend(unread.engine, placement, unread.query)

    def sent(self, engine: EngineId, query: RouteQuery, reading: Reading) -> "Sent":
        """Use as `with caches.sent(engine, query, reading) as placement:` around one try of one request at
        one engine; call `first_byte` when the answer begins."""
        placement = self.placements.send(engine, query)
        if not query.is_whole:
            self._unread[placement] = _Unread(engine, query, reading)
        using = self._fleet[engine].adapters.using(query.lora) if query.lora is not None else None
        return Sent(self, placement, using)

    def failed(self, placement: Placement) -> None:
        """The engine could not serve it."""
        placement.failed()

    def over(self, placement: Placement) -> None:
        """One try of one request has ended, in whatever way."""
        self._unread.pop(placement, None)
        placement.over(self._clock.now_s())

    def first_byte(self, engine: EngineId, placement: Placement, status: int) -> None:
        """The answer begins: unless it is an error the prompt is computed, and perhaps its events are here
        already."""
        self._unread.pop(placement, None)  # from here on events tell
        if status >= 400:
            placement.failed()
            return
        placement.first_byte(self._clock.now_s())
        self.taken_in(engine)

    def compare(self, engine: EngineId, query: RouteQuery, match: PrefixMatch, reported: int | None) -> None:
        """A store's blocks are believed in until an engine that was to load them reports fewer."""
        if reported is not None and reported < match.total and match.shared > match.host:
            self.index.refute_shared(engine, query, reported)

    def taken_in(self, engine: EngineId) -> None:
        """Events of an engine are in the index."""
        self.placements.prove(engine, partial(self.index.holds, engine), self._clock.now_s())

    def forget(self, engine: EngineId) -> None:
        """The engine's cache is empty."""
        self.index.forget(engine)
        self.placements.forget(engine)


class Sent:
    """One try of one request at one engine. A class, since each request makes one and a generator takes twice
    as long."""

    __slots__ = ("_caches", "_using", "placement")

    def __init__(
        self, caches: Caches, placement: Placement, using: AbstractContextManager[None] | None
    ) -> None:
        self._caches = caches
        self.placement = placement
        self._using = using
        """Of the request's adapter, if it has one."""

    def __enter__(self) -> Placement:
        if self._using is not None:
            self._using.__enter__()
        return self.placement

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._using is not None:
            self._using.__exit__(kind, error, trace)
        if isinstance(error, UpstreamError):
            self._caches.failed(self.placement)
        self._caches.over(self.placement)
