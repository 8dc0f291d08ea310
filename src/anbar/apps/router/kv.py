"""Keeps the prefix index true: one subscriber per engine, and what it reports."""

from collections.abc import Callable

from anbar.adapters.vllm.kv_events import KvSubscriber
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet, KvFollowing
from anbar.core.clock import Clock
from anbar.core.events import KvBatch
from anbar.core.ids import EngineId
from anbar.core.outcome import Emit, KvStreamGap, KvStreamRestarted, SupervisorCaught


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

    async def follow(self, engine: Engine, events: str, replay: str | None) -> None:
        """Follow an engine's events; it must be attached to the index. Following the same address again
        changes nothing."""
        if engine.kv.address == events:
            return
        await self.leave(engine)
        subscriber = KvSubscriber(engine.id, events, replay, self)
        engine.kv = KvFollowing(events, subscriber.status)
        self._subscribers[engine.id] = subscriber
        subscriber.start()

    async def leave(self, engine: Engine) -> None:
        """Follow an engine no longer, if it was followed; before it is detached from the index."""
        subscriber = self._subscribers.pop(engine.id, None)
        if subscriber is not None:
            await subscriber.stop()
            engine.kv = KvFollowing()
            self._index.forget(engine.id)

    async def stop(self) -> None:
        """Stop all subscribers."""
        for engine in self._fleet:
            await self.leave(engine)

    # What a subscriber says

    def on_batch(self, engine: EngineId, batch: KvBatch) -> None:
        self._index.apply(engine, batch, self._clock.now_s())
        self._caches.taken_in(engine)
        kv = self._fleet[engine].kv
        kv.seq = batch.seq
        kv.lag_s = max(0.0, self._wall_s() - batch.timestamp_s)

    def on_restart(self, engine: EngineId) -> None:
        self._caches.forget(engine)
        self._fleet[engine].kv.seq = -1
        self._emit(KvStreamRestarted(engine))

    def on_gap(self, engine: EngineId, first: int, last: int) -> None:
        self._index.forget(engine)
        self._emit(KvStreamGap(engine, last - first + 1))

    def on_error(self, engine: EngineId, error: Exception) -> None:
        self._emit(SupervisorCaught("kv", type(error).__name__))
