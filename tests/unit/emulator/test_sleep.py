"""Going to sleep: what the answer to /sleep waits for."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anbar.apps.emulator import EmulatedEngine, EngineSettings, steady

from .client import call

LONG = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[EmulatedEngine]:
    settings = EngineSettings(model_dir=model_dir, port=0, dev_mode=True, cost=steady(step_s=0.005))
    async with EmulatedEngine(settings) as engine:
        yield engine


async def _running(engine: EmulatedEngine) -> asyncio.Task[tuple[int, str]]:
    """A request that the engine works on."""
    asked = asyncio.create_task(call(engine, "/v1/completions", LONG))
    while not engine.counters.num_generated:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    return asked


async def test_wait_is_answered_when_all_is_done(engine: EmulatedEngine) -> None:
    """By `wait` the engine finishes what runs, drops its cache and only then says that it sleeps; what comes
    meanwhile waits for the waking."""
    asked = await _running(engine)
    sleeping = asyncio.create_task(call(engine, "/sleep?mode=wait", {}))
    await asyncio.sleep(0.02)
    assert not sleeping.done()
    assert json.loads((await call(engine, "/is_sleeping"))[1]) == {"is_sleeping": True}
    late = asyncio.create_task(call(engine, "/v1/completions", LONG))
    assert await sleeping == (200, '{"status":"sleeping","level":1}')
    assert engine.counters.num_generated == 20
    assert engine.num_running == 0
    assert json.loads((await asked)[1])["choices"][0]["finish_reason"] == "length"
    await asyncio.sleep(0.02)
    assert not late.done()
    assert (await call(engine, "/wake_up", {}))[0] == 200
    assert (await late)[0] == 200
    assert engine.counters.num_prefix_hits == 0


@pytest.mark.parametrize(("mode", "finish"), [("abort", "abort"), ("keep", "length")])
async def test_other_modes_are_answered_at_once(engine: EmulatedEngine, mode: str, finish: str) -> None:
    """What runs is given up, or goes on after the waking."""
    asked = await _running(engine)
    assert (await call(engine, f"/sleep?mode={mode}", {}))[0] == 200
    assert engine.counters.num_generated < 20
    assert (await call(engine, "/wake_up", {}))[0] == 200
    assert json.loads((await asked)[1])["choices"][0]["finish_reason"] == finish


async def test_wait_ends_when_the_last_client_leaves(engine: EmulatedEngine) -> None:
    """Nobody is left to wait for, and nothing runs: asleep at once."""
    asked = await _running(engine)
    sleeping = asyncio.create_task(call(engine, "/sleep?mode=wait", {}))
    await asyncio.sleep(0.01)
    asked.cancel()
    assert (await sleeping)[0] == 200
    assert engine.counters.num_generated < 20
    assert (await call(engine, "/sleep?mode=wait", {}))[0] == 200
