"""Engines that leave the configuration while something that concerns them is under way."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from test_kv_feed import Router

from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Fleet
from anbar.apps.router.members import Members, MembersParts
from anbar.apps.router.monitor import CacheSetup, Monitor, MonitorParts
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.token_probe import TokenProbe
from anbar.core.clock import ManualClock
from anbar.route import Placements


@asynccontextmanager
async def members_of(router: Router) -> AsyncIterator[Members]:
    """Who takes the router's engine out; it is not watched."""
    clock, fleet, emit = ManualClock(), Fleet([router.engine]), router.events.append
    caches = Caches(fleet, router.index, Placements(), clock)
    with ThreadPoolExecutor(1) as executor:
        probe = TokenProbe(Prompts(executor), executor, emit)
        watched = MonitorParts(caches, router.feed, probe, executor, emit, clock, CacheSetup(), 1.0)
        parts = MembersParts(fleet, Monitor(watched), router.feed, caches, lambda entry: router.engine)
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
        await members._leave(router.engine)
        assert not rebuilding.done()
        await rebuilding
        assert router.engine.kv.address == ""
