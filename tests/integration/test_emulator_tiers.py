"""Emulated engines with host RAM and a shared store: requests can limit both, resets empty both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.emulator import EmulatedEngine, EngineSettings, steady
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from tests.integration.harness import call, eventually
from tests.ports import free_port

MODEL = "emulated-model"
BLOCK = 16
PROMPT = list(range(10, 10 + 10 * BLOCK))


@asynccontextmanager
async def emulated(tokenizer_dir: Path, **changes: Any) -> AsyncIterator[EmulatedEngine]:
    settings: dict[str, Any] = {
        "model_dir": tokenizer_dir,
        "port": free_port(),
        "prompt_tokens_details": True,
        "shape": EngineShape(BLOCK, 101, max_model_len=1024),
        "host_tier": HostShape(200, 2),
        **changes,
    }
    async with EmulatedEngine(EngineSettings(**settings)) as engine:
        yield engine


async def cached(engine: EmulatedEngine, **fields: Any) -> int:
    """Tokens of the prompt that were not computed; what the request caused is over when this returns."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1, **fields}
    answer = await call(engine.port, "POST", "/v1/completions", body)
    await eventually(lambda: engine.is_idle)
    engine.check_integrity()
    return answer.cached


async def test_limits_of_a_request(tokenizer_dir: Path) -> None:
    """`max_load_tokens` bounds what comes back from host RAM, `max_offload_tokens` what goes there."""
    async with emulated(tokenizer_dir) as engine:
        await cached(engine)
        for limit, wanted in ((0, 0), (5 * BLOCK, 4 * BLOCK), (None, 10 * BLOCK)):
            assert engine.reset_prefix_cache()
            limits = {} if limit is None else {"max_load_tokens": limit}
            assert await cached(engine, kv_transfer_params=limits) == wanted, limit
    async with emulated(tokenizer_dir) as engine:
        await cached(engine, kv_transfer_params={"max_offload_tokens": 5 * BLOCK})
        assert engine.reset_prefix_cache()
        assert await cached(engine) == 4 * BLOCK


async def test_a_store_is_shared(tokenizer_dir: Path) -> None:
    """What one engine stored another one loads, and the first one too when it has lost all it had; a request
    that may load from host RAM alone does not see it, nor does one of another scope."""
    store = SharedTier(1000)
    async with (
        emulated(tokenizer_dir, shared=store) as first,
        emulated(tokenizer_dir, shared=store) as second,
    ):
        assert await cached(first) == 0
        local = {"kv_load_tiers": [{"medium": "CPU"}]}
        assert await cached(second, kv_transfer_params=local, cache_salt="x") == 0
        assert await cached(second, kv_transfer_params={"anbar": {"v": 1, "scope": "other"}}) == 0
        await second.restart()
        assert await cached(second) == 10 * BLOCK
        await first.restart()
        assert await cached(first) == 10 * BLOCK
        assert first.counters.num_external_hits == 10 * BLOCK


@pytest.mark.parametrize("preempts", [False, True])
async def test_resets_of_all_tiers(tokenizer_dir: Path, preempts: bool) -> None:
    """`reset_external` empties host RAM too; `reset_running_requests` makes running requests start again."""
    async with emulated(tokenizer_dir, dev_mode=True) as engine:
        await cached(engine)
        query = f"reset_external=true&reset_running_requests={str(preempts).lower()}"
        asked = None
        if preempts:
            engine.pace.cost = steady(step_s=0.5)
            body = {"model": MODEL, "prompt": "water", "max_tokens": 200, "ignore_eos": True}
            asked = asyncio.create_task(call(engine.port, "POST", "/v1/completions", body))
            await eventually(lambda: engine.num_running == 1)
        page = await call(engine.port, "POST", f"/reset_prefix_cache?{query}")
        assert page.json == {"success": True}
        engine.pace.cost = steady()
        if asked is not None:
            assert (await asked).json["usage"]["completion_tokens"] == 200
            assert engine.counters.num_preemptions == 1
        assert await cached(engine) == 0
