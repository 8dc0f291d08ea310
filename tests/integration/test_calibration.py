"""`anbar calibrate` on emulated engines: what an emulator was told comes back over HTTP."""

from dataclasses import replace
from pathlib import Path

import pytest

from anbar.apps.calibrate.campaign import Plan
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.live import calibrate_url
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.core.cost import EngineCost, TokenCurve
from anbar.core.errors import MeasureError
from anbar.sim.engine.shape import EngineShape

COST = EngineCost(TokenCurve(((1, 0.010), (8, 0.020), (264, 0.148))), 1e-7, 1e-9, front_s=0.005)
SHAPE = EngineShape(block_size=16, num_blocks=2000, max_model_len=2048, kv_bytes_per_token=1000)
GIVEN = Given(device="cpu", dtype="float32", kv_bytes_per_token=1000)
SHORT = Plan(seconds=6.0, num_rounds=2, max_prompt_tokens=512, max_batch=8, num_decode_tokens=6)


def _settings(model_dir: Path) -> EngineSettings:
    return EngineSettings(model_dir, port=0, shape=SHAPE, cost=COST, prompt_tokens_details=True)


async def test_the_cost_comes_back(tokenizer_dir: Path) -> None:
    """Steps, from one token to many, are found as they were given, also on a busy machine."""
    async with EmulatedEngine(_settings(tokenizer_dir)) as engine:
        found = (await calibrate_url(engine.url, None, GIVEN, SHORT, lambda stage, share: None)).content
    for tokens in (1, 8, 64, 512):
        ratio = found.cost.tokens.seconds(tokens) / COST.tokens.seconds(tokens)
        assert 0.6 < ratio < 3
    assert found.engine.block_size == 16
    assert found.cost.front_s < 3 * 0.005


async def test_an_engine_without_details_is_refused(tokenizer_dir: Path) -> None:
    """Without the number of cached tokens nothing can be measured; the message says which flag is missing."""
    settings = replace(_settings(tokenizer_dir), prompt_tokens_details=False)
    async with EmulatedEngine(settings) as engine:
        with pytest.raises(MeasureError, match="--enable-prompt-tokens-details"):
            await calibrate_url(engine.url, None, GIVEN, SHORT, lambda stage, share: None)
