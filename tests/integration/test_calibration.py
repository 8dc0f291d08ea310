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

COST = EngineCost(TokenCurve(((1, 0.020), (8, 0.040), (264, 0.296))), 1e-7, 1e-9, front_s=0.010)
SHAPE = EngineShape(block_size=16, num_blocks=2000, max_model_len=2048, kv_bytes_per_token=1000)
GIVEN = Given(device="cpu", dtype="float32", kv_bytes_per_token=1000)
SHORT = Plan(seconds=8.0, num_rounds=2, max_prompt_tokens=512, max_batch=8, num_decode_tokens=6)
ATTEMPTS = 6
"""A machine that stands still in the middle of a measurement spoils it: then all is measured again."""


def _settings(model_dir: Path) -> EngineSettings:
    return EngineSettings(model_dir, port=0, shape=SHAPE, cost=COST, prompt_tokens_details=True)


async def test_the_cost_comes_back(tokenizer_dir: Path) -> None:
    """Steps, from one token to many, are found as they were given, also on a busy machine."""
    misses = []
    async with EmulatedEngine(_settings(tokenizer_dir)) as engine:
        for _ in range(ATTEMPTS):
            found = (await calibrate_url(engine.url, None, GIVEN, SHORT, lambda stage, share: None)).content
            assert found.engine.block_size == 16
            curves = found.cost.tokens, COST.tokens
            ratios = [curves[0].seconds(tokens) / curves[1].seconds(tokens) for tokens in (1, 8, 64, 512)]
            if all(0.6 < ratio < 3 for ratio in ratios) and found.cost.front_s < 5 * COST.front_s:
                return
            misses.append((ratios, found.cost.front_s))
    pytest.fail(f"found and given in proportion, and seconds in front: {misses}")


async def test_an_engine_without_details_is_refused(tokenizer_dir: Path) -> None:
    """Without the number of cached tokens nothing can be measured; the message says which flag is missing."""
    settings = replace(_settings(tokenizer_dir), prompt_tokens_details=False)
    async with EmulatedEngine(settings) as engine:
        with pytest.raises(MeasureError, match="--enable-prompt-tokens-details"):
            await calibrate_url(engine.url, None, GIVEN, SHORT, lambda stage, share: None)
