"""Several routers in front of the same engines count each other's requests."""

import asyncio
from pathlib import Path

import pytest

from anbar.apps.emulator import Fault, FaultKind
from anbar.apps.router.worker import Worker
from tests.integration.harness import call, eventually
from tests.integration.routers import sibling_of, siblings_of
from tests.integration.stack import Setup, engines_of

TOKENS = 101 * 16 + 1
"""All but the last token of a prompt are in whole blocks."""


@pytest.fixture
def setup(tokenizer_dir: Path, socket_dir: Path) -> Setup:
    return Setup(tokenizer_dir, socket_dir)


async def test_a_burst_through_two_routers_stays_together(setup: Setup) -> None:
    """Equal new prompts come to two routers before any is answered: the second router sends its own where
    those of the first are, and predicts what they will leave in the cache. Afterwards nobody counts
    anything."""
    async with engines_of(setup) as engines, siblings_of(setup, engines) as (a, b):
        for engine in engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = [asyncio.create_task(a.complete([11] * TOKENS)) for _ in range(3)]
        await b.hears(3)
        asked += [asyncio.create_task(b.complete([11] * TOKENS)) for _ in range(3)]
        await a.hears(3)
        await eventually(lambda: b.num_open == 6, what="all requests are with an engine")
        for engine in engines.values():
            engine.faults.clear()
        answers = await asyncio.gather(*asked)
        assert len({answer.engine for answer in answers}) == 1
        assert sorted(answer.predicted for answer in answers) == [0] + [TOKENS - 1] * 5
        for each in (a, b):
            await each.hears(0)
            await each.assert_idle()


async def test_the_others_load_counts(setup: Setup) -> None:
    """One router has an engine busy with a long prompt; another router, asked for something else, takes the
    other engine."""
    async with engines_of(setup) as engines, siblings_of(setup, engines) as (a, b):
        for engine in engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = asyncio.create_task(a.complete([12] * TOKENS))
        await b.hears(1)
        other = asyncio.create_task(b.complete([13] * TOKENS))
        await a.hears(1)
        for engine in engines.values():
            engine.faults.clear()
        assert (await asked).engine != (await other).engine


async def test_a_late_router_hears_everything_and_a_lost_one_is_forgotten(setup: Setup) -> None:
    """A router that joins is told what is in flight and which engines are drained. When the router that had
    it is gone, its requests count no more."""
    async with engines_of(setup) as engines:
        workers = [Worker(place, 2, setup.directory) for place in range(2)]
        async with sibling_of(setup, engines, workers[0]) as a:
            for engine in engines.values():
                engine.arm(Fault(FaultKind.HANG, count=0))
            asked = [asyncio.create_task(a.complete([14 + at] * TOKENS)) for at in range(3)]
            await eventually(lambda: a.num_open == 3, what="all requests are with an engine")
            drained = await call(a.port, "POST", "/admin/engines/e1/drain")
            assert drained.status == 200
            async with sibling_of(setup, engines, workers[1], ready=["e0"]) as b:
                await b.hears(3)
                assert await b.state("e1") == "draining"
                assert a.router.exchange is not None
                await a.router.exchange.stop()
                await b.hears(0)
            for engine in engines.values():
                engine.faults.clear()
            await asyncio.gather(*asked)
            await call(a.port, "POST", "/admin/engines/e1/undrain")
