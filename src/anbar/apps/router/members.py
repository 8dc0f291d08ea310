"""Brings the fleet to what a configuration says, while requests run.

- An engine that is new gets requests once its first probe succeeds.
- One that is gone is DRAINING: nothing new is sent to it, what runs there ends in its own time, then it is
  dropped. A stream is never cut because a file has changed.
- One whose entry has changed is a new engine under the old name: what was known of the old one, its cache
  included, says nothing of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anbar.apps.router.build import attached
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.kv import KvFeed
from anbar.apps.router.monitor import Monitor
from anbar.config.models import EngineConfig
from anbar.core.ids import EngineId

POLL_S = 0.1
"""Between two looks whether a drained engine is idle."""


@dataclass(frozen=True, slots=True)
class MembersParts:
    """What members are made and watched with. `make` raises ConfigError."""

    fleet: Fleet
    monitor: Monitor
    feed: KvFeed
    caches: Caches
    make: Callable[[EngineConfig], Engine]
    on_left: Callable[[EngineId], None]
    """Hears of each engine that is not wanted any more."""


class Members:
    """One call of `apply` at a time."""

    def __init__(self, parts: MembersParts) -> None:
        self._parts = parts
        self._entries: dict[EngineId, EngineConfig] = {}
        self._leaving: dict[Engine, asyncio.Task[None]] = {}

    def start(self, entries: Sequence[EngineConfig]) -> None:
        """Begin to watch the fleet that was made of `entries`."""
        self._entries = {EngineId(entry.name): entry for entry in entries}
        for name, entry in self._entries.items():
            self._parts.monitor.watch(self._parts.fleet[name], attached(entry))

    async def apply(self, entries: Sequence[EngineConfig], why_gone: str) -> None:
        """Make the fleet what `entries` say; `why_gone` is said of engines that are not among them. Raises
        ConfigError, having changed nothing, when one of them cannot be attached."""
        wanted = {EngineId(entry.name): entry for entry in entries}
        fresh = {
            name: self._parts.make(entry)
            for name, entry in wanted.items()
            if self._entries.get(name) != entry
        }
        removed = frozenset(name for name in self._entries if name not in wanted)
        for name in (*removed, *fresh):
            before = self._parts.fleet.get(name)
            if before is not None and before not in self._leaving:
                await self._leave(before, why_gone if name in removed else "its entry has changed")
        for name in removed:
            self._parts.on_left(name)
        for name, engine in fresh.items():
            before = self._parts.fleet.get(name)
            # One that comes back while it still drains has left: only a changed entry stays drained.
            engine.draining |= name in self._entries and before is not None and before.draining
            self._parts.fleet.put(engine)
            self._parts.monitor.watch(engine, attached(wanted[name]))
        self._entries = wanted

    async def stop(self) -> None:
        """Wait for no engine any more, and close the connections of those that were on their way out."""
        leaving = dict(self._leaving)
        for task in leaving.values():
            task.cancel()
        await asyncio.gather(*leaving.values(), return_exceptions=True)
        for engine in leaving:
            engine.pool.close()

    async def _leave(self, engine: Engine, why: str) -> None:
        parts = self._parts
        await parts.monitor.unwatch(engine)
        engine.profile = None  # also tells a rebuild of its index that runs
        await parts.feed.leave(engine)
        parts.caches.index.detach(engine.id)
        parts.caches.placements.detach(engine.id)
        engine.health.drain(why)
        task = asyncio.get_running_loop().create_task(self._drop_when_idle(engine))
        self._leaving[engine] = task

    async def _drop_when_idle(self, engine: Engine) -> None:
        while engine.load.num_in_flight:  # noqa: ASYNC110 - counts are plain values, and this is rare
            await asyncio.sleep(POLL_S)
        engine.pool.close()
        self._parts.fleet.drop(engine)
        del self._leaving[engine]
