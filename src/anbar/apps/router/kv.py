"""Keeps the prefix index true: one subscriber per engine, and what it reports."""

import asyncio
from collections.abc import Awaitable, Callable

from anbar.adapters.vllm.kv_events import KvSubscriber
from anbar.adapters.vllm.kv_sequence import StreamPosition
from anbar.apps.router import kv_snapshot
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet, KvFollowing
from anbar.core.clock import Clock
from anbar.core.errors import WireError
from anbar.core.events import AllCleared, BlocksRemoved, BlocksStored, KvBatch, Tier
from anbar.core.ids import EngineId
from anbar.core.outcome import Emit, KvStreamGap, KvStreamRestarted, SupervisorCaught
from anbar.route.drift import RecentChanges


class KvFeed:
    """The sink of all subscribers. `wall_s` gives seconds since 1970, as engines stamp their batches."""

    def __init__(
        self, fleet: Fleet, caches: Caches, emit: Emit, clock: Clock, wall_s: Callable[[], float]
    ) -> None:
        self._fleet = fleet
        self._caches = caches
        self._index = caches.index
        self._emit = emit
        self._clock = clock
        self._wall_s = wall_s
        self._subscribers: dict[EngineId, KvSubscriber] = {}
        self.siblings: Callable[[EngineId], Awaitable[bytes | None]] | None = None
        """Asks other routers for a snapshot of an engine, where there are any."""

    async def follow(self, engine: Engine, events: str, replay: str | None) -> None:
        """Follow an engine's events, from where another router's snapshot ends if one can be had; it must be
        attached to the index. Following the same address again changes nothing."""
        if engine.kv.address == events:
            return
        await self.leave(engine)
        if self.siblings is not None and replay is not None:
            snapshot = await self.siblings(engine.id)
            if snapshot is not None:
                await self.join(engine, events, replay, snapshot)
                return
        self._begin(engine, events, replay)

    async def join(self, engine: Engine, events: str, replay: str | None, snapshot: bytes) -> bool:
        """Follow an engine from where another router's `snapshot` of it ends. False if that cannot be used:
        then the engine is followed from the first batch that it can replay."""
        await self.leave(engine)
        engine.kv = joining = KvFollowing(events)
        try:
            position, index = kv_snapshot.decode(snapshot)
            if replay is None:
                raise WireError("without a replay address nobody can tell of which life a snapshot is")
            for _ in self._index.restore(engine.id, index, self._clock.now_s()):
                await asyncio.sleep(0)
        except WireError:
            self._begin(engine, events, replay)
            return False
        if engine.kv is joining:  # else it was left meanwhile
            self._begin(engine, events, replay, position)
        return True

    def position(self, engine: Engine) -> StreamPosition | None:
        """How far an engine was heard; None if nothing was."""
        subscriber = self._subscribers.get(engine.id)
        return subscriber.position() if subscriber is not None else None

    def snapshot(self, engine: Engine) -> bytes | None:
        """What a router that comes late needs to know of an engine, for its `join`; None if nothing was
        heard."""
        position = self.position(engine)
        return None if position is None else kv_snapshot.encode(position, self._index.snapshot(engine.id))

    def resync(self, engine: Engine) -> None:
        """The engine was away: have its stream looked at now, in case this is another life of it."""
        subscriber = self._subscribers.get(engine.id)
        if subscriber is not None:
            subscriber.resync()

    def _begin(
        self, engine: Engine, events: str, replay: str | None, position: StreamPosition | None = None
    ) -> None:
        subscriber = KvSubscriber(engine.id, events, replay, self, begin=position)
        engine.kv = KvFollowing(events, replay, subscriber.status)
        if position is not None:
            engine.kv.seq = position.seq
        engine.kv.changes.forget(self._clock.now_s())
        self._subscribers[engine.id] = subscriber
        subscriber.start()

    async def leave(self, engine: Engine) -> None:
        """Follow an engine no longer, if it was followed; before it is detached from the index."""
        await self._end(engine)
        engine.drift.begin_anew()

    async def rebuild(self, engine: Engine) -> None:
        """Forget what an engine's events have told, and begin to take them in from the first that it can
        replay; nothing happens if they are not followed."""
        if engine.kv.address and engine.id in self._subscribers:
            events, replay = engine.kv.address, engine.kv.replay
            while engine.profile is not None and engine.id in self._subscribers:
                await self._end(engine)  # twice, if the monitor was at it too
            if engine.profile is not None:  # else it has left meanwhile
                self._begin(engine, events, replay)

    async def _end(self, engine: Engine) -> None:
        subscriber = self._subscribers.pop(engine.id, None)
        if subscriber is not None:
            await subscriber.stop()
            self._index.forget(engine.id)
        engine.kv = KvFollowing()

    async def stop(self) -> None:
        """Stop all subscribers."""
        for engine in self._fleet:
            await self.leave(engine)

    # What a subscriber says

    def on_batch(self, engine: EngineId, batch: KvBatch) -> None:
        self._index.apply(engine, batch, self._clock.now_s())
        self._judge(engine, batch)
        self._caches.taken_in(engine)
        kv = self._fleet[engine].kv
        _note_changes(kv.changes, batch, self._clock.now_s())
        kv.seq = batch.seq
        if not kv.status.replaying:
            kv.lag_s = max(0.0, self._wall_s() - batch.timestamp_s)

    def _judge(self, engine: EngineId, batch: KvBatch) -> None:
        """An engine without lower tiers that has cleared its device has nothing that was not heard of."""
        known = self._fleet[engine]
        device_only = known.profile is not None and not known.profile.chunk_blocks
        if known.kv.status.partial and device_only and any(isinstance(e, AllCleared) for e in batch.events):
            self._subscribers[engine].proven()

    def on_restart(self, engine: EngineId) -> None:
        self._caches.forget(engine)
        known = self._fleet[engine]
        known.kv.seq = -1
        known.kv.changes.forget(self._clock.now_s())
        known.drift.begin_anew()
        self._emit(KvStreamRestarted(engine))

    def on_gap(self, engine: EngineId, first: int, last: int) -> None:
        self._index.forget(engine)
        self._fleet[engine].kv.changes.forget(self._clock.now_s())
        self._emit(KvStreamGap(engine, last - first + 1))

    def on_error(self, engine: EngineId, error: Exception) -> None:
        self._emit(SupervisorCaught.of("kv", error))


def _note_changes(changes: RecentChanges, batch: KvBatch, now_s: float) -> None:
    for event in batch.events:
        match event:
            case BlocksStored(tier=Tier.DEVICE):
                changes.add(event.hashes, now_s, gone=False)
            case BlocksRemoved(tier=Tier.DEVICE):
                changes.add(event.hashes, now_s, gone=True)
            case AllCleared():
                changes.forget(now_s)
            case _:
                pass
