"""`anbar calibrate` on real vLLM: its pages and counters are what calibration takes them for."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from anbar.apps.calibrate.campaign import QUICK
from anbar.apps.calibrate.client import EngineClient
from anbar.apps.calibrate.files import read_cost_file, write_cost_file
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.live import calibrate_url
from anbar.apps.calibrate.target import Ask
from anbar.apps.calibrate.work import Kind
from anbar.core.cost_file import CostFile
from anbar.plan import kv_bytes_per_token
from tests.engine.conftest import Launcher, unique
from tests.engine.engine import Engine, EngineConfig, native

UNSEEN = 300
"""Tokens of a prompt that calibration does not ask for."""


@pytest.fixture(scope="module")
def engine(launch: Launcher, smollm2: Path) -> Iterator[Engine]:
    """One with a host tier, and a device that can be cleared."""
    started = launch(EngineConfig(unique("calibrate"), smollm2, native(), num_blocks=200))
    started.wait_ready()
    yield started
    started.terminate()


@pytest.fixture(scope="module")
def times() -> list[float]:
    """Seconds that `UNSEEN` tokens took before, in and after the calibration (`content`)."""
    return []


@pytest.fixture(scope="module")
def content(engine: Engine, times: list[float], tmp_path_factory: pytest.TempPathFactory) -> CostFile:
    """What a quick calibration of it wrote and read."""
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    given = Given(device="cpu", dtype="float32")
    times += asyncio.run(_times(engine, seed=5))
    found = asyncio.run(calibrate_url(engine.url, None, given, QUICK, lambda stage, share: None))
    times += asyncio.run(_times(engine, seed=6))
    prompts = [sample for sample in found.samples if sample.kind is Kind.PROMPT]
    sizes = [sum(tokens * repeats for tokens, repeats in sample.work.steps) for sample in prompts]
    times += [
        UNSEEN / size * sample.seconds for sample, size in zip(prompts, sizes, strict=True) if size >= 64
    ]
    write_cost_file(path, found.content)
    return read_cost_file(path)


def test_what_was_measured(content: CostFile, smollm2: Path) -> None:
    """Every kind of measurement was made, in a minute, and the engine's own figures were found."""
    assert {residual.what for residual in content.measured.residuals} == {str(kind) for kind in Kind}
    assert content.measured.seconds < 10 * 60
    config = json.loads((smollm2 / "config.json").read_text())
    assert content.engine.kv_bytes_per_token == kv_bytes_per_token(config, "float32")
    assert content.engine.block_size == 32


def test_copies_cost_less_than_computing(content: CostFile) -> None:
    """Bandwidths come from vLLM's counters: a copy of a token's KV takes a small part of computing it."""
    cost, size = content.cost, content.engine.kv_bytes_per_token
    assert 0 < cost.load.s_per_byte * size < cost.tokens.s_per_token
    assert 0 < cost.store.s_per_byte * size < cost.tokens.s_per_token


def test_prediction(times: list[float], content: CostFile) -> None:
    """Prompts that calibration has not seen take about as long as the cost says.

    They were computed before it and after it, and what calibration itself saw of prompts counts too: tests
    beside this one slow an engine several times, and not evenly.
    """
    cost = content.cost
    predicted_s = cost.front_s + cost.tokens.seconds(UNSEEN) + cost.prefill_s_per_token2 * UNSEEN**2
    assert min(times) / 3 < predicted_s < 3 * max(times)


async def _times(engine: Engine, seed: int) -> list[float]:
    """Seconds to the first token of ten prompts of `UNSEEN` tokens, one at a time."""
    rng = random.Random(seed)
    async with aclosing(EngineClient(engine.url)) as client:
        await client.facts()
        prompts = [tuple(rng.choices(range(1000, 9000), k=UNSEEN)) for _ in range(10)]
        return [(await client.run([Ask(prompt, 1)]))[0].ttft_s for prompt in prompts]
