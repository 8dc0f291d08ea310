"""Stores of the configuration as emulated engines model them: every kind, its costs, members and faults."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.flags import parse
from anbar.apps.emulator.launch import plan
from anbar.apps.emulator.store_costs import STORES
from anbar.core.cost import EngineCost, StoreCost, TierCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured, render
from anbar.core.errors import ConfigError
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import StorePart, StoreParts
from anbar.tier.breaker import BreakerState

from .client import call

DIRECTORY = {"kind": "files", "path": "/a", "timeout_s": 2.0}
OTHER = {"kind": "files", "path": "/b", "capacity_bytes": 10**9}
VALKEY = {"kind": "valkey", "valkey": {"nodes": ["cache:6379"]}}
BUCKET = {"kind": "s3", "s3": {"bucket": "kv-cache"}}
LAYERED = {"kind": "layered", "members": [DIRECTORY, BUCKET]}
REPLICATED = {"kind": "replicated", "copies": 2, "members": [DIRECTORY, OTHER]}


def settings(model_dir: Path, store: Mapping[str, Any], *argv: str, **tier: object) -> EngineSettings:
    """Of one engine, as the rendered command line says it."""
    transfer = {
        "kv_connector": "AnbarConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 1 << 30,
            "secondary_tiers": [{"type": "AnbarSharedTier", "store": store, **tier}],
        },
    }
    flags = parse(["--kv-transfer-config", json.dumps(transfer), "--port", "0", *argv])
    (engine,) = plan(flags, model_dir, {})
    return engine


def stored(model_dir: Path, store: Mapping[str, Any], **tier: object) -> SharedTier:
    """The store of such an engine."""
    shared = settings(model_dir, store, **tier).shared
    assert shared is not None
    return shared


@pytest.mark.parametrize(
    "store", [DIRECTORY, VALKEY, BUCKET, LAYERED, REPLICATED], ids=lambda store: store["kind"]
)
async def test_every_kind_serves_what_another_engine_stored(model_dir: Path, store: dict[str, Any]) -> None:
    """Two engines on one store: the second loads what the first has computed, and tells it by the plugin's
    own metrics."""
    setup = settings(model_dir, store, "--cost", "none", "--enable-prompt-tokens-details")
    asked = {"prompt": list(range(5, 70)), "max_tokens": 1}
    async with EmulatedEngine(setup) as one, EmulatedEngine(setup) as other:
        await call(one, "/v1/completions", asked)
        while not one.is_idle:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        await call(other, "/v1/completions", asked)
        page = (await call(other, "/metrics"))[1]
        assert other.counters.num_shared_hits == 64
    assert 'anbar_tier_decisions_total{engine="0"' in page
    assert "anbar_tier_reuse_filter{" in page
    has_parts = store["kind"] in ("layered", "replicated")
    assert ('operation="load",result="hit"' in page.partition("anbar_tier_part_keys_total{")[2]) is has_parts


def test_costs_are_those_of_the_kind(model_dir: Path, tmp_path: Path) -> None:
    """The estimates, unless the cost file says otherwise; deadlines are the configuration's."""
    shared = stored(model_dir, BUCKET)
    assert isinstance(shared.store, StorePart)
    assert shared.store.cost.load == STORES["s3"].load
    assert (shared.cost.timeout_s, shared.cost.deadline_s) == (0.5, 5.0)
    shared = stored(model_dir, LAYERED)
    assert isinstance(shared.store, StoreParts)
    near, far = shared.store.members
    assert isinstance(near, StorePart)
    assert isinstance(far, StorePart)
    assert (near.cost.load, near.cost.deadline_s) == (STORES["files"].load, 2.0)
    assert far.cost.lookup_s == STORES["s3"].lookup_s
    costs = {"valkey": StoreCost(0.5, TierCost(0.25, 1e6), TierCost(0.125, 1e6))}
    kind = EngineType("m", "cpu", "float32", "0.32.0", 32, 1000, 2048)
    measured = EngineCost(TokenCurve(((1, 0.01), (2, 0.02))))
    file = tmp_path / "cost.json"
    file.write_text(render(CostFile(kind, Measured("", "", 0.0), measured, costs)))
    shared = settings(model_dir, VALKEY, "--cost", str(file)).shared
    assert shared is not None
    assert (shared.cost.lookup_s, shared.cost.load.latency_s, shared.cost.store.latency_s) == (
        0.5,
        0.25,
        0.125,
    )


def test_loading_whatever_is_found(model_dir: Path) -> None:
    """`cache.load: always` as the plugin reads it; other words are refused."""
    assert stored(model_dir, DIRECTORY).weighs_loads
    assert not stored(model_dir, DIRECTORY, load="always").weighs_loads
    with pytest.raises(ConfigError, match="load is 'often', allowed: auto, always"):
        settings(model_dir, DIRECTORY, load="often")
    with pytest.raises(ConfigError, match=r"store\.valkey is required"):
        settings(model_dir, {"kind": "valkey"})


async def test_trouble_with_the_store(model_dir: Path) -> None:
    """Armed and ended by a call, for the whole store or for one of its parts; clear ends all."""
    setup = settings(model_dir, REPLICATED, "--cost", "none")
    assert setup.shared is not None
    async with EmulatedEngine(setup) as engine:
        part = setup.shared.store.parts()[0].id
        for body, status in (
            ({"kind": "dead"}, 200),
            ({"kind": "frozen", "part": part}, 200),
            ({"kind": "dead", "part": "x"}, 400),
            ({"kind": "broken"}, 400),
        ):
            answer = await call(engine, "/emulator/store", body)
            assert answer[0] == status, answer
        assert set(setup.shared.faults) == {"", part}
        await call(engine, "/emulator/store", {"part": part})
        assert set(setup.shared.faults) == {""}
        await call(engine, "/v1/completions", {"prompt": list(range(5, 200)), "max_tokens": 4})
        link = engine.life.engine.connector.link  # type: ignore[union-attr]
        assert link is not None
        for number in range(3):
            asked = {"prompt": list(range(6 + number, 200)), "max_tokens": 1}
            assert (await call(engine, "/v1/completions", asked))[0] == 200
        assert link.breaker.state() is not BreakerState.CLOSED
        await call(engine, "/emulator/clear", {})
        assert not setup.shared.faults
