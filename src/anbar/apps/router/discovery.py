"""Keeps the fleet at what is listed elsewhere: files and names of the DNS (`engines[].discover`).

Each such entry has a task that looks at its source again and again; what it finds goes through the same
door as a changed configuration, one at a time. So an engine that joins gets requests once its first probe
succeeds, and one that leaves is drained.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anbar.apps.looks import Look
from anbar.apps.router.members import Members
from anbar.apps.router.presence import Presence
from anbar.config.discover import DiscoverConfig
from anbar.config.found import FoundEngine, Place, Sighting, engine_of, place_of
from anbar.config.models import EngineConfig
from anbar.core.clock import Clock
from anbar.core.errors import ConfigError, LookFailed
from anbar.core.ids import EngineId
from anbar.core.look import LookFailure
from anbar.core.outcome import DiscoveryGauges, Emit, SupervisorCaught

FIRST_RETRY_S = 1.0
"""Pause after a first look that failed; doubles with each, up to the entry's `every_s`."""

_ANYWHERE = "http://engine.invalid:8000"


@dataclass(frozen=True, slots=True)
class DiscoveryParts:
    """What discovery works with. `look_at` makes what looks at a source (raises ConfigError); `check` raises
    ConfigError for an engine that cannot be attached; `answers`: does an engine answer its health checks;
    `changed` is called when the fleet may be another; `log` takes a line's kind and fields; `sleep` waits
    some seconds; `wall_s` gives seconds since 1970."""

    members: Members
    look_at: Callable[[DiscoverConfig], Look]
    check: Callable[[EngineConfig], object]
    answers: Callable[[EngineId], bool]
    changed: Callable[[], None]
    log: Callable[[str, Mapping[str, object]], None]
    emit: Emit
    clock: Clock
    wall_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(slots=True)
class Followed:
    """One entry, and what became of the looks at its source."""

    entry: EngineConfig
    discover: DiscoverConfig
    look: Look
    presence: Presence
    answered: bool = False
    """Its source has told once what there is, if only that there is nobody."""
    settled: bool = False
    """The fleet has been made so since."""
    last_look_s: float = 0.0
    """Seconds since 1970, as `last_success_s`; 0: never."""
    last_success_s: float = 0.0
    failure: LookFailure | None = None
    """Of the last look; None: it succeeded, or there was none."""
    error: str = ""
    """Why the last look failed, or what it could not tell."""
    num_failed: dict[LookFailure, int] = field(default_factory=dict)
    num_failed_in_row: int = 0
    num_joined: int = 0
    num_left: int = 0
    ids: frozenset[EngineId] = frozenset()
    """Engines in the fleet."""
    duplicates: dict[EngineId, str] = field(default_factory=dict)
    """Found, and not used because an engine of that name has the same place."""
    refused: dict[EngineId, str] = field(default_factory=dict)
    """Found, and not used because they cannot be attached."""


class Discovery:
    """See the module's text. `entries` are those that the fleet was made of; engines that are found are not
    in it yet. Raises ConfigError when an entry cannot be what found engines are made of."""

    def __init__(self, entries: Sequence[EngineConfig], parts: DiscoveryParts) -> None:
        self._parts = parts
        self._entries = tuple(entries)
        self._check(entries)
        self._followed: dict[str, Followed] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._applying: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._is_behind = False
        """Something was found that the fleet was not made of yet."""
        self._attached: dict[EngineId, EngineConfig] = {}
        """Found engines in the fleet."""

    # Life

    def start(self) -> None:
        """Begin to watch the fleet, and to look."""
        entries = self._entries
        self._parts.members.start([entry for entry in entries if entry.discover is None])
        self._follow(entries)
        self._applying = asyncio.get_running_loop().create_task(self._apply_news())

    async def apply(self, entries: Sequence[EngineConfig]) -> None:
        """Make the fleet what `entries` and their sources say. Raises ConfigError, having changed nothing,
        when one of them cannot be attached."""
        self._check(entries)
        async with self._lock:
            await self._bring(tuple(entries), "no longer in the configuration")
            self._entries = tuple(entries)
            self._follow(entries)

    async def stop(self) -> None:
        """Look no more, and wait for no engine."""
        tasks = [*self._tasks.values(), *([self._applying] if self._applying is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._parts.members.stop()

    # What is known

    @property
    def followed(self) -> Sequence[Followed]:
        return tuple(self._followed.values())

    def groups(self) -> Mapping[str, frozenset[EngineId]]:
        """The engines of each entry with `discover`, by its name."""
        return {name: followed.ids for name, followed in self._followed.items()}

    def awaited(self) -> str:
        """Why the router does not know its engines yet; "" when it does."""
        told: list[str] = []
        for entry in self._entries:
            followed = self._followed.get(entry.name)
            if entry.discover is not None and (followed is None or not followed.settled):
                error = "" if followed is None else followed.error
                told.append(f"{entry.name} ({error or entry.discover.source})")
        return f"no list of engines yet: {', '.join(told)}" if told else ""

    def gauges(self) -> tuple[DiscoveryGauges, ...]:
        return tuple(
            DiscoveryGauges(
                entry=followed.entry.name,
                num_engines=len(followed.ids),
                last_success_s=followed.last_success_s,
                failing=followed.failure is not None,
                num_failed={failure.value: num for failure, num in followed.num_failed.items()},
                num_joined=followed.num_joined,
                num_left=followed.num_left,
                num_unused={
                    "duplicate": len(followed.duplicates),
                    "refused": len(followed.refused),
                    "too_many": len(followed.presence.left_out),
                },
            )
            for followed in self._followed.values()
        )

    # Looking

    def _follow(self, entries: Sequence[EngineConfig]) -> None:
        """Have a task for each entry that needs one. What is known of an entry outlives a change of its
        source: its engines stay until the new one has been asked."""
        wanted = {entry.name: entry for entry in entries if entry.discover is not None}
        for name in [name for name in self._followed if name not in wanted]:
            self._tasks.pop(name).cancel()
            del self._followed[name]
        for name, entry in wanted.items():
            assert entry.discover is not None
            before = self._followed.get(name)
            if before is not None and before.discover == entry.discover:
                before.entry = entry
                continue
            look = self._parts.look_at(entry.discover)
            if before is None:
                self._followed[name] = Followed(entry, entry.discover, look, Presence(entry.discover))
            else:
                self._tasks.pop(name).cancel()
                before.entry, before.discover, before.look = entry, entry.discover, look
                before.presence.limits = entry.discover
            task = self._keep_looking(self._followed[name])
            self._tasks[name] = asyncio.get_running_loop().create_task(task)

    async def _keep_looking(self, followed: Followed) -> None:
        while True:
            await self._parts.sleep(await self._look(followed))

    async def _look(self, followed: Followed) -> float:
        """Look once; returns the seconds until the next time."""
        parts, discover = self._parts, followed.discover
        before = followed.answered, followed.presence.engines()
        try:
            sighting = await followed.look.look()
            self._succeeded(followed, sighting)
        except LookFailed as error:
            self._failed(followed, error.failure, str(error))
        except Exception as error:  # noqa: BLE001 - the supervisor of the looks of one entry
            parts.emit(SupervisorCaught.of("discovery", error))
            self._failed(followed, LookFailure.DEFECT, f"the look failed ({type(error).__name__})")
        else:
            return sighting.again_s
        finally:
            self._is_behind |= before != (followed.answered, followed.presence.engines())
            if self._is_behind or followed.refused:  # what could not be attached may be mended
                self._news.set()
        retry_s = FIRST_RETRY_S * 2.0 ** min(10, followed.num_failed_in_row - 1)
        return min(discover.look_every_s, retry_s)

    def _succeeded(self, followed: Followed, sighting: Sighting) -> None:
        followed.last_look_s = followed.last_success_s = self._parts.wall_s()
        followed.answered, followed.num_failed_in_row = True, 0
        followed.presence.saw(sighting)
        before, followed.failure = followed.failure, None
        if sighting.untold and sighting.untold != followed.error:
            fields = {"entry": followed.entry.name, "reason": sighting.untold}
            self._parts.log("discovery_partial", fields)
        elif before is not None or (followed.error and not sighting.untold):
            self._parts.log("discovery_works", {"entry": followed.entry.name})
        followed.error = sighting.untold

    def _failed(self, followed: Followed, failure: LookFailure, error: str) -> None:
        followed.last_look_s = self._parts.wall_s()
        followed.num_failed[failure] = followed.num_failed.get(failure, 0) + 1
        followed.num_failed_in_row += 1
        if failure.nobody:
            followed.answered = True
            name = followed.entry.name
            followed.presence.saw_nobody(
                self._parts.clock.now_s(), lambda place: self._parts.answers(_id(name, place))
            )
        if (failure, error) != (followed.failure, followed.error):
            followed.failure, followed.error = failure, error
            fields = {"entry": followed.entry.name, "failure": failure.value, "reason": error}
            self._parts.log("discovery_fails", fields)

    # Bringing the fleet there

    async def _apply_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                async with self._lock:
                    await self._bring(self._entries, "no longer found")
            except Exception as error:  # noqa: BLE001 - the supervisor of what was found
                self._is_behind = True  # the next look tries again
                self._parts.emit(SupervisorCaught.of("discovery", error))

    async def _bring(self, entries: Sequence[EngineConfig], why_gone: str) -> None:
        self._is_behind = False
        answered = {name for name, followed in self._followed.items() if followed.answered}
        static = [entry for entry in entries if entry.discover is None]
        places = {place_of(entry.url): entry.name for entry in static if entry.url is not None}
        fresh = {
            entry.name: list(self._usable(entry, places)) for entry in entries if entry.discover is not None
        }
        found = [engine for engines in fresh.values() for engine in engines]
        attached = {EngineId(engine.name): engine for engine in found}
        if entries != self._entries or attached != self._attached:
            await self._parts.members.apply([*static, *found], why_gone)
            self._attached = attached
        for name, followed in self._followed.items():
            followed.settled |= name in answered
            self._note(followed, frozenset(EngineId(engine.name) for engine in fresh.get(name, ())))
        self._parts.changed()

    def _usable(self, entry: EngineConfig, places: dict[Place, str]) -> Iterator[EngineConfig]:
        """The found engines of an entry that nobody else has and that can be attached; `places` has the names
        of those before."""
        followed = self._followed.get(entry.name)
        if followed is None:
            return
        duplicates: dict[EngineId, str] = {}
        followed.refused = {}
        for found in followed.presence.engines():
            place = place_of(found.url)
            engine_id = _id(entry.name, place)
            if place in places:
                duplicates[engine_id] = places[place]
                continue
            engine = self._attachable(followed, engine_of(entry, found))
            if engine is not None:
                places[place] = engine.name
                yield engine
        if duplicates != followed.duplicates:
            followed.duplicates = duplicates
            told = {"entry": entry.name, "duplicates": duplicates}
            self._parts.log("discovery_duplicates", told)

    def _attachable(self, followed: Followed, engine: EngineConfig) -> EngineConfig | None:
        """`engine`, or if it cannot be attached what there is under its id; None: nothing."""
        engine_id = EngineId(engine.name)
        before = self._attached.get(engine_id)
        if engine == before:
            return engine
        try:
            self._parts.check(engine)
        except ConfigError as error:
            followed.refused[engine_id] = str(error)
            return before
        return engine

    def _note(self, followed: Followed, ids: frozenset[EngineId]) -> None:
        joined, left = sorted(ids - followed.ids), sorted(followed.ids - ids)
        followed.ids = ids
        if not joined and not left:
            return
        followed.num_joined += len(joined)
        followed.num_left += len(left)
        told = {"entry": followed.entry.name, "joined": joined, "left": left, "engines": len(ids)}
        self._parts.log("discovery", told)

    def _check(self, entries: Sequence[EngineConfig]) -> None:
        for entry in entries:
            if entry.discover is not None:
                anywhere = engine_of(entry, FoundEngine(url=_ANYWHERE))
                self._parts.check(anywhere.model_copy(update={"name": entry.name}))
                self._parts.look_at(entry.discover)


def _id(entry: str, place: Place) -> EngineId:
    return EngineId(f"{entry}@{place}")
