"""The router checks itself: what engines report as cached against what their events had told.

`route/drift.py` has the rules and the states. Here is what needs a loop: an over-prediction is judged a
moment after the answer, when events that crossed with it are in; an index that is not believed any more
is built anew."""

import asyncio
from collections.abc import Coroutine

from anbar.apps.router.engine import Engine
from anbar.apps.router.kv import KvFeed
from anbar.apps.router.record import Record
from anbar.apps.tasks import Tasks
from anbar.core.fleet import PrefixMatch
from anbar.core.outcome import Emit, Outcome, SupervisorCaught, TrustChanged
from anbar.core.request import RouteQuery
from anbar.route import PrefixIndex
from anbar.route.drift import Trust, Verdict

SETTLE_S = 0.5
"""How long events may be behind the answer that they explain: they come on another connection, and a
router that lags behind by more does not compare what they may explain."""

POLL_S = 0.05
"""How often a replay is looked at; its end is a plain value."""


class SelfCheck:
    """Compares the answers of all engines. Use within one event loop."""

    def __init__(self, index: PrefixIndex, feed: KvFeed, emit: Emit) -> None:
        self._index = index
        self._feed = feed
        self._emit = emit
        self._tasks = Tasks()

    async def stop(self) -> None:
        """Give up what still waits."""
        await self._tasks.give_up()

    def answered(self, engine: Engine, query: RouteQuery, told: PrefixMatch | None, record: Record) -> None:
        """An engine's answer is over; `told` is what its events told of its cache when it was chosen,
        None when nobody looked."""
        reported = record.reported_cached_tokens
        if told is None or reported is None or record.outcome is not Outcome.OK or not engine.kv.address:
            return
        if told.device - reported > engine.facts.block_size:
            self._start(self._suspect(engine, query, told.device, record))
        elif engine.kv.changes.covers(record.decided_s):
            self._observe(engine, told.device, reported)

    async def _suspect(self, engine: Engine, query: RouteQuery, told: int, record: Record) -> None:
        """Fewer cached than told. Unless the engine has said meanwhile that what was told is gone, it
        counts."""
        await asyncio.sleep(SETTLE_S)
        if not engine.kv.address:
            return  # it has left, and with it what was heard of it
        if engine.kv.behind_s > SETTLE_S:
            return  # what explains it may wait to be taken in
        if self._was_evicted(engine, query, told, record):
            engine.checks.evicted += 1
        else:
            self._observe(engine, told, record.reported_cached_tokens or 0)

    def _was_evicted(self, engine: Engine, query: RouteQuery, told: int, record: Record) -> bool:
        """Whether the first that was heard since of a block that was not found is that it is gone; also when
        not all that was heard is remembered."""
        changes, size = engine.kv.changes, engine.facts.block_size
        if not changes.covers(record.decided_s):
            return True
        num_found = (record.reported_cached_tokens or 0) // size
        missing = frozenset(self._index.chain(engine.id, query)[num_found : told // size])
        for name, gone in changes.since(record.decided_s):
            if self._index.named(engine.id, name) in missing:
                return gone
        return False

    def _observe(self, engine: Engine, told: int, reported: int) -> None:
        before, share = engine.drift.trust, engine.drift.share
        match engine.drift.observe(told, reported, engine.facts.block_size):
            case Verdict.AGREES:
                engine.checks.agreed += 1
            case Verdict.OVER:
                engine.checks.over += 1
            case Verdict.UNKNOWN_CONTENT:
                engine.checks.unknown_content += 1
            case Verdict.NOTHING:
                return
        if engine.drift.trust is not before:
            self._changed(engine, before, share)
            if engine.drift.trust is Trust.REBUILDING:
                self._start(self._rebuild(engine))

    async def _rebuild(self, engine: Engine) -> None:
        engine.checks.rebuilds += 1
        await self._feed.rebuild(engine)
        while engine.drift.trust is Trust.REBUILDING:
            if engine.kv.status.complete or engine.kv.status.num_gaps:
                engine.drift.rebuilt()
                self._changed(engine, Trust.REBUILDING, 0.0)
                return
            await asyncio.sleep(POLL_S)

    def _changed(self, engine: Engine, before: Trust, share: float) -> None:
        self._emit(TrustChanged(engine.id, before.value, engine.drift.trust.value, round(share, 3)))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.start(work).add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._emit(SupervisorCaught.of("self_check", error))
