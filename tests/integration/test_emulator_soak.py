"""An emulated engine under everything at once: nothing is lost, nothing leaks, nothing breaks."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator import EmulatedEngine, EngineSettings, Fault, FaultKind, steady
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from tests.integration.harness import Raw, call, eventually

NUM_REQUESTS = 150


def _body(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": rng.choice(["emulated-model", "tuned"]),
        "prompt": [rng.choice([1, 5, 7]), *range(10, 10 + rng.randint(1, 200))],
        "max_tokens": rng.randint(1, 100),
        "ignore_eos": rng.random() < 0.7,
        "stream": rng.random() < 0.5,
        "n": rng.choice([1, 1, 2, 3]),
    }
    for field, values in (
        ("stop", [["the", "wa"]]),
        ("logprobs", [0, 2]),
        ("cache_salt", ["a", "b"]),
        ("stream_interval", [4]),
        ("kv_transfer_params", [{"max_load_tokens": 32}, {"max_offload_tokens": 64}]),
    ):
        if rng.random() < 0.2:
            body[field] = rng.choice(values)
    return body


async def _ask(engine: EmulatedEngine, rng: random.Random) -> object:
    """One client: what it got, or that it left."""
    await asyncio.sleep(rng.random())
    if rng.random() < 0.15:
        engine.arm(Fault(rng.choice(list(FaultKind)), delay_s=0.01, drip_bytes=50))
    try:
        async with Raw.open(engine.port) as raw:
            raw.post("/v1/completions", _body(rng))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.3)
                await raw.abort()
                return "left"
            return (await asyncio.wait_for(raw.answer(), 200)).status
    except (ConnectionError, asyncio.IncompleteReadError):
        return "broken"


async def _disturb(engine: EmulatedEngine, rng: random.Random) -> None:
    """Hangs end, caches are dropped, the engine sleeps and wakes."""
    while True:
        await asyncio.sleep(0.2)
        engine.faults.clear()
        engine.reset_prefix_cache()
        if rng.random() < 0.2:
            await call(engine.port, "POST", f"/sleep?level=1&mode={rng.choice(['abort', 'keep'])}")
            await call(engine.port, "POST", "/wake_up")


@pytest.mark.parametrize("seed", range(2))
async def test_everything_at_once(tokenizer_dir: Path, socket_dir: Path, seed: int) -> None:
    """Requests of all kinds on a cache that is too small, faults, clients that leave, resets and sleep."""
    settings = EngineSettings(
        model_dir=tokenizer_dir,
        port=0,
        shape=EngineShape(16, 80, max_model_len=400, max_num_seqs=12, max_num_batched_tokens=128),
        host_tier=HostShape(60, 2),
        shared=SharedTier(100),
        events=PublisherConfig(f"ipc://{socket_dir}/e", f"ipc://{socket_dir}/r"),
        cost=steady(step_s=0.001, prefill_s_per_token=1e-5),
        loras={"tuned": "/adapters/tuned"},
        dev_mode=True,
    )
    async with EmulatedEngine(settings) as engine:
        disturbing = asyncio.create_task(_disturb(engine, random.Random(seed)))
        clients = (_ask(engine, random.Random(f"{seed} {number}")) for number in range(NUM_REQUESTS))
        got = Counter(await asyncio.gather(*clients))
        disturbing.cancel()
        engine.faults.clear()
        await call(engine.port, "POST", "/wake_up")
        await eventually(lambda: engine.is_idle and not engine.records.num_open)
        engine.check_integrity()
        assert (engine.usage, engine.num_running, engine.num_waiting, engine.num_defects) == (0, 0, 0, 0)
        assert set(got) <= {200, 500, "left", "broken"}
        assert got[200] > NUM_REQUESTS // 3, got
        assert engine.counters.num_preemptions > 0
        assert engine.counters.num_external_hits > 0
