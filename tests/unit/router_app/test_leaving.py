"""Engines that leave the configuration while something that concerns them is under way."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from test_kv_feed import Router, prompt

from anbar.apps.router import self_check
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Fleet, KvFollowing
from anbar.apps.router.members import Members, MembersParts
from anbar.apps.router.monitor import CacheSetup, Monitor, MonitorParts
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.record import Record
from anbar.apps.router.self_check import SelfCheck
from anbar.apps.router.token_probe import TokenProbe
from anbar.core.clock import ManualClock
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import RequestId
from anbar.core.outcome import Outcome
from anbar.core.request import RouteQuery
from anbar.route import Placements
from anbar.route.drift import DriftLimits, Trust


@asynccontextmanager
async def members_of(router: Router) -> AsyncIterator[Members]:
    """Who takes the router's engine out; it is not watched."""
    clock, fleet, emit = ManualClock(), Fleet([router.engine]), router.events.append
    caches = Caches(fleet, router.index, Placements(), clock)
    with ThreadPoolExecutor(1) as executor:
        probe = TokenProbe(Prompts(executor), executor, emit)
        watched = MonitorParts(caches, router.feed, probe, executor, emit, clock, CacheSetup(), 1.0)
        parts = MembersParts(
            fleet, Monitor(watched), router.feed, caches, lambda entry: router.engine, lambda engine: None
        )
        members = Members(parts)
        try:
            yield members
        finally:
            await members.stop()
            await router.feed.stop()


async def test_a_rebuild_of_an_engine_that_leaves(tmp_path: Path) -> None:
    """The engine leaves while its stream is stopped to be begun anew: it is not followed again."""
    router = Router()
    async with members_of(router) as members:
        await router.feed.follow(router.engine, f"ipc://{tmp_path}/e", f"ipc://{tmp_path}/r")
        rebuilding = asyncio.create_task(router.feed.rebuild(router.engine))
        await asyncio.sleep(0)
        await members._leave(router.engine, "it leaves")
        assert not rebuilding.done()
        await rebuilding
        assert router.engine.kv.address == ""


async def test_suspicions_of_an_engine_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many answers as make drift contradict the index, and the engine leaves before they are judged: they
    say nothing any more, and nothing is rebuilt."""
    monkeypatch.setattr(self_check, "SETTLE_S", 0.0)
    router = Router()
    query = RouteQuery(RequestId("r"), "m", (*prompt(1), 0), 5)
    router.engine.kv = KvFollowing("ipc://nobody")  # without a stream to end it leaves at once
    check = SelfCheck(router.index, router.feed, router.events.append)
    for _ in range(DriftLimits().min_requests):
        record = Record(request_id=RequestId("r"), endpoint="/", started_s=0.0)
        record.decided_s, record.reported_cached_tokens = 1.0, 0
        record.ended(Outcome.OK, 200)
        check.answered(router.engine, query, PrefixMatch(device=64), record)
    suspicions = tuple(check._tasks)
    assert len(suspicions) == DriftLimits().min_requests
    await router.feed.leave(router.engine)
    await asyncio.wait(suspicions)
    assert (router.engine.checks.over, router.engine.drift.trust) == (0, Trust.PRECISE)
    assert not check._tasks
    await check.stop()
