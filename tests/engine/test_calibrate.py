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


@pytest.fixture(scope="module")
def engine(launch: Launcher, smollm2: Path) -> Iterator[Engine]:
    """One with a host tier, and a device that can be cleared."""
    started = launch(EngineConfig(unique("calibrate"), smollm2, native(), num_blocks=200))
    started.wait_ready()
    yield started
    started.terminate()


@pytest.fixture(scope="module")
def content(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> CostFile:
    """What a quick calibration of it wrote and read."""
    path = tmp_path_factory.mktemp("cost") / "cost.json"
    given = Given(device="cpu", dtype="float32")
    found = asyncio.run(calibrate_url(engine.url, None, given, QUICK, lambda stage, share: None))
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


def test_prediction(engine: Engine, content: CostFile) -> None:
    """A prompt that calibration has not seen takes about as long as the cost says."""
    num_tokens, rng = 300, random.Random(5)

    async def ask() -> float:
        async with aclosing(EngineClient(engine.url)) as client:
            await client.facts()
            prompts = [tuple(rng.choices(range(1000, 9000), k=num_tokens)) for _ in range(10)]
            return min([(await client.run([Ask(prompt, 1)]))[0].ttft_s for prompt in prompts])

    cost = content.cost
    predicted_s = cost.front_s + cost.tokens.seconds(num_tokens) + cost.prefill_s_per_token2 * num_tokens**2
    assert 1 / 5 < predicted_s / asyncio.run(ask()) < 5
