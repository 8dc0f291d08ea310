"""/metrics of engines with tiers below the device: what was copied, and where cached tokens came from."""

import asyncio
import re
from pathlib import Path

import pytest

from anbar.apps.calibrate.metrics_page import parse_counters
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.core.cost import CopyCost, EngineCost
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier

from .client import call

BLOCK, TOKEN_BYTES = 16, 1000
SHAPE = EngineShape(BLOCK, 100, max_model_len=1024, kv_bytes_per_token=TOKEN_BYTES)
COST = EngineCost(load=CopyCost(s_per_byte=1e-8), store=CopyCost(s_per_byte=2e-8))
PROMPT = list(range(5, 5 + 4 * BLOCK + 1))
ASKED = {"prompt": PROMPT, "max_tokens": 1}


async def _settled(engine: EmulatedEngine) -> str:
    """The page when nothing is under way."""
    while not engine.is_idle:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    return (await call(engine, "/metrics"))[1]


async def test_copies(model_dir: Path) -> None:
    """A prompt's four blocks are stored once, and loaded when the device has forgotten them; at twice the
    speed that takes half the time. `calibrate` reads the same."""
    settings = EngineSettings(
        model_dir=model_dir, port=0, shape=SHAPE, host_tier=HostShape(20, 1), cost=COST, speed=2.0
    )
    async with EmulatedEngine(settings) as engine:
        page = await _settled(engine)
        assert "# TYPE vllm:kv_offload_load_bytes_total counter" in page
        assert parse_counters(page.encode()).has_offload
        assert "\nvllm:kv_offload_load_bytes_total{" not in page
        await call(engine, "/v1/completions", ASKED)
        stored = parse_counters((await _settled(engine)).encode())
        num_bytes = 4 * BLOCK * TOKEN_BYTES
        assert (stored.store_bytes, stored.load_bytes) == (num_bytes, 0)
        assert stored.store_s == pytest.approx(num_bytes * 2e-8 / 2)
        assert engine.reset_prefix_cache()
        await call(engine, "/v1/completions", ASKED)
        page = await _settled(engine)
        loaded = parse_counters(page.encode())
        assert (loaded.store_bytes, loaded.load_bytes) == (num_bytes, num_bytes)
        assert loaded.load_s == pytest.approx(num_bytes * 1e-8 / 2)
        assert f'transfer_type="CPU_to_GPU"}} {float(num_bytes)}' in page


async def test_sources_of_cached_tokens(model_dir: Path) -> None:
    """What another engine stored is the disk's for the request that fetches it, and host RAM's for the next
    one; of the first chunk of two blocks one is on the device."""
    settings = EngineSettings(
        model_dir=model_dir, port=0, shape=SHAPE, host_tier=HostShape(20, 2), shared=SharedTier(100)
    )
    async with EmulatedEngine(settings) as one, EmulatedEngine(settings) as other:
        await call(one, "/v1/completions", ASKED)
        await _settled(one)
        await call(other, "/v1/completions", {**ASKED, "prompt": PROMPT[: BLOCK + 1]})
        await call(other, "/v1/completions", ASKED)
        assert _by_source(await _settled(other)) == {"device": BLOCK, "host": 0, "disk": 3 * BLOCK}
        assert other.reset_prefix_cache()
        await call(other, "/v1/completions", ASKED)
        wanted = {"device": BLOCK, "host": 4 * BLOCK, "disk": 3 * BLOCK}
        assert _by_source(await _settled(other)) == wanted
        assert other.counters.num_external_hits == 7 * BLOCK


def _by_source(page: str) -> dict[str, float]:
    found = re.findall(r'prompt_tokens_cached_by_source_total\{.*source="(\w+)"\} (\S+)', page)
    return {source: float(value) for source, value in found if source in ("device", "host", "disk")}


async def test_no_tiers_no_families(model_dir: Path) -> None:
    """An engine without a host tier has no metrics of the connector."""
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0)) as engine:
        assert "kv_offload" not in await _settled(engine)
