"""The emulator keeps the contract that real vLLM keeps (`tests/engine/test_api_contract.py`)."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator import EmulatedEngine, EngineSettings, Runner, steady
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.testing.engine_contract import ALL, EMBEDDING, Check, Target
from tests.contract import hold
from tests.integration.harness import eventually

MODEL = "emulated-model"
SHAPE = EngineShape(16, 101, max_model_len=1024)
SLOW = ("disconnect", "resets", "sleep")
"""In these checks a request must still run when something is done to it, also where that comes late."""
BELOW = ("tier", "families", "cached", "blocks", "events", "salts", "replay", "accounting", "stream")
"""What these check depends on tiers below the device."""


def params(checks: Iterable[Check]) -> list[Any]:
    return [pytest.param(check, id=named(check)) for check in checks]


def named(check: Check) -> str:
    return check.__name__.removeprefix("check_")


async def held(check: Check, settings: EngineSettings, skipped: Collection[str] = (), **facts: Any) -> None:
    """The check holds for one engine that has nothing left to do afterwards."""
    async with EmulatedEngine(settings) as engine:
        if settings.events is not None:
            facts |= {"events": settings.events.endpoint, "replay": settings.events.replay_endpoint}
        target = Target(engine.url, MODEL, **facts)
        await asyncio.to_thread(hold, check, target, skipped)
        await eventually(lambda: engine.is_idle and not engine.records.num_open)
        engine.check_integrity()
        assert engine.num_defects == 0


@pytest.mark.parametrize("check", params(ALL))
async def test_everything(check: Check, tokenizer_dir: Path, socket_dir: Path) -> None:
    """Every check, on an engine that has all that there is and that nobody else uses."""
    settings = EngineSettings(
        tokenizer_dir,
        port=0,
        prompt_tokens_details=True,
        events=PublisherConfig(f"ipc://{socket_dir}/events", f"ipc://{socket_dir}/replay"),
        shape=SHAPE,
        cost=steady(step_s=0.05 if any(name in check.__name__ for name in SLOW) else 0.001),
        loras={"tuned": "/adapters/tuned"},
        runtime_loras=True,
        dev_mode=True,
        request_id_headers=True,
        per_request_metrics=True,
    )
    facts = {"dev_mode": True, "request_ids": True, "timed": True, "lora": "tuned", "alone": True}
    await held(check, settings, {"check_counters_of_tiers"}, runtime_lora="/adapters/other", **facts)


@pytest.mark.parametrize("check", params(EMBEDDING))
async def test_embeddings(check: Check, tokenizer_dir: Path) -> None:
    """A pooling engine, with a key and little else."""
    settings = EngineSettings(
        tokenizer_dir,
        port=0,
        prompt_tokens_details=True,
        shape=SHAPE,
        runner=Runner.POOLING,
        api_keys=("key",),
    )
    await held(check, settings, embeds=True, api_key="key")


@pytest.mark.parametrize("check", [c for c in ALL if any(word in c.__name__ for word in BELOW)], ids=named)
@pytest.mark.parametrize("shared", [False, True], ids=["host", "shared"])
async def test_tiers(check: Check, shared: bool, tokenizer_dir: Path, socket_dir: Path) -> None:
    """What the contract says of caches, events and metrics holds with tiers below the device."""
    settings = EngineSettings(
        tokenizer_dir,
        port=0,
        prompt_tokens_details=True,
        events=PublisherConfig(f"ipc://{socket_dir}/events", f"ipc://{socket_dir}/replay"),
        shape=replace(SHAPE, kv_bytes_per_token=1000),
        host_tier=HostShape(200, 2),
        shared=SharedTier(1000) if shared else None,
    )
    skipped = {"check_blocks_computed_again", "check_adapter_events"}
    await held(check, settings, skipped, offloads=True, alone="counters" in check.__name__)


@pytest.mark.parametrize("check", [check for check in ALL if "tool" in named(check)], ids=named)
async def test_tools(check: Check, tokenizer_dir: Path) -> None:
    """What is refused of tools is refused as well by an engine that finds calls of them in answers."""
    settings = EngineSettings(tokenizer_dir, port=0, prompt_tokens_details=True, shape=SHAPE, auto_tools=True)
    await held(check, settings, {"check_tools_need_a_parser"}, auto_tools=True)
