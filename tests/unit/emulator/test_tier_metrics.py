"""/metrics of engines with tiers below the device: what was copied, and where cached tokens came from."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from anbar.apps.calibrate.metrics_page import parse_counters
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.flags import parse
from anbar.apps.emulator.launch import plan
from anbar.core.cost import CopyCost, EngineCost
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import SharedCost

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


def _value(page: str, name: str, labels: str = "") -> float:
    """The sample whose own labels are these; 0 when there is none."""
    own = f",{labels}" if labels else ""
    found = re.search(
        rf'^{name}{{engine="0",model_name="emulated-model"{re.escape(own)}}} (\S+)$', page, re.M
    )
    return float(found[1]) if found else 0.0


async def test_lookups_and_moves(model_dir: Path) -> None:
    """Another engine's four blocks: host RAM is asked for each and has none; the store answers for all
    together and has them; they are fetched, and copied to the device. At twice the speed the store's answer
    takes half the time."""
    shared = SharedTier(100, SharedCost(lookup_s=0.2), capacity_bytes=10**6)
    settings = EngineSettings(
        model_dir=model_dir, port=0, shape=SHAPE, host_tier=HostShape(20, 1), shared=shared, speed=2.0
    )
    async with EmulatedEngine(settings) as one, EmulatedEngine(settings) as other:
        await call(one, "/v1/completions", ASKED)
        stored = await _settled(one)
        await call(other, "/v1/completions", ASKED)
        page = await _settled(other)
    tiering, tier, num_bytes = "vllm:kv_offload_tiering", 'tier="1:AnbarSharedTier"', 4 * BLOCK * TOKEN_BYTES
    assert _value(stored, f"{tiering}_write_bytes_total", tier) == num_bytes
    assert _value(stored, f"{tiering}_chunk_hits_total", tier) == 0
    for labels, hits in (('tier="0:primary"', 0), (tier, 4)):
        assert _value(page, f"{tiering}_chunk_queries_total", labels) == 4
        assert _value(page, f"{tiering}_chunk_hits_total", labels) == hits
    delays = f"{tiering}_lookup_async_delay_seconds"
    assert _value(page, f"{delays}_count", tier) == 4
    assert _value(page, f"{delays}_sum", tier) >= 4 * 0.0999
    assert _value(page, "vllm:kv_offload_lookup_async_delay_seconds_count") == 1
    assert _value(page, f"{tiering}_read_bytes_total", tier) == num_bytes
    assert _value(page, "vllm:kv_offload_load_size_sum") == num_bytes
    assert _value(page, "vllm:kv_offload_cpu_allocation_size_count") == 4
    store = 'store="emulated"'
    assert _value(page, "anbar_tier_loads_total", f'{store},result="hit"') == 4
    assert _value(page, "anbar_tier_seconds_total", f'{store},operation="lookup"') == pytest.approx(0.1)
    assert _value(page, "anbar_tier_used_bytes", store) == num_bytes
    assert _value(page, "anbar_tier_capacity_bytes", store) == 10**6


async def test_stores_that_find_no_place(model_dir: Path) -> None:
    """Four blocks do not go into a host tier of three: each time that they are offered is counted."""
    settings = EngineSettings(model_dir=model_dir, port=0, shape=SHAPE, host_tier=HostShape(3, 1))
    async with EmulatedEngine(settings) as engine:
        await call(engine, "/v1/completions", ASKED)
        page = await _settled(engine)
    failures = _value(page, "vllm:kv_offload_allocation_failure_total")
    assert failures >= 1
    assert _value(page, "vllm:kv_offload_cpu_allocation_size_count") == failures
    assert _value(page, "vllm:kv_offload_cpu_allocation_size_sum") == 4 * failures
    assert "vllm:kv_offload_store_bytes_total{" not in page


async def test_the_plain_spec_has_no_tiers(model_dir: Path) -> None:
    """vLLM's default spec shows nothing of tiers behind host RAM; a tier of another kind has its own name and
    none of Anbar's metrics."""
    host = HostShape(20, 1)
    settings = EngineSettings(model_dir=model_dir, port=0, shape=SHAPE, host_tier=host, tiering=False)
    async with EmulatedEngine(settings) as engine:
        page = await _settled(engine)
        assert "vllm:kv_offload_load_size" in page
        assert "tiering" not in page
    settings = EngineSettings(
        model_dir=model_dir, port=0, shape=SHAPE, host_tier=host, shared=SharedTier(9), tier_type="fs"
    )
    async with EmulatedEngine(settings) as engine:
        await call(engine, "/v1/completions", ASKED)
        page = await _settled(engine)
        assert 'tier="1:fs"' in page
        assert "anbar_" not in page


@pytest.mark.parametrize(
    ("extra", "tiering", "tier_type"),
    [
        ({}, False, "AnbarSharedTier"),
        ({"spec_name": "AnbarOffloadingSpec"}, True, "AnbarSharedTier"),
        ({"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs"}]}, True, "fs"),
    ],
    ids=["plain", "anbar", "tier"],
)
def test_names_from_flags(model_dir: Path, extra: dict[str, object], tiering: bool, tier_type: str) -> None:
    """The spec decides whether tiers have metrics, and the tier's type how these call it."""
    config = {"kv_connector_extra_config": {"cpu_bytes_to_use": 10**12, **extra}}
    (settings,) = plan(parse(["--kv-transfer-config", json.dumps(config)]), model_dir, {})
    assert (settings.tiering, settings.tier_type) == (tiering, tier_type)
