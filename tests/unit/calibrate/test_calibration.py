"""Calibration against an engine whose cost is known."""

import random
from datetime import UTC, datetime

import pytest

from anbar.apps.calibrate.campaign import QUICK, Plan
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.prompts import Prompts
from anbar.apps.calibrate.run import Calibration, Session, calibrate
from anbar.apps.calibrate.target import EngineFacts
from anbar.core.cost import EngineCost, TokenCurve
from anbar.sim.engine.shape import EngineShape
from tests.unit.calibrate.virtual_engine import VirtualEngine

SHAPE = EngineShape(block_size=32, num_blocks=1000, max_model_len=4096, kv_bytes_per_token=1000)
COST = EngineCost(
    tokens=TokenCurve(((1, 0.040), (4, 0.070), (16, 0.110), (272, 0.910))),
    prefill_s_per_token2=2e-7,
    decode_s_per_kv_byte=5e-9,
    front_s=0.008,
    front_s_per_token=3e-6,
)
FACTS = EngineFacts("http://e", "m", "/nowhere", "0.32.0", 4096, 32, 1000, has_offload=False)
GIVEN = Given(device="cpu", dtype="float32", kv_bytes_per_token=1000)


def _session(engine: VirtualEngine, seen: list[str] | None = None) -> Session:
    stages = seen if seen is not None else []
    return Session(
        Prompts(range(1000, 1100), random.Random(7)),
        engine.clock,
        lambda stage, share: stages.append(f"{share:.2f} {stage}"),
        "cpu",
        lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )


async def _calibrate(engine: VirtualEngine, plan: Plan = QUICK) -> Calibration:
    return await calibrate(engine, FACTS, GIVEN, plan, _session(engine))


async def test_it_finds_the_cost_of_a_quiet_engine() -> None:
    """Without noise the figures are those of the engine, within what a piecewise line leaves open."""
    result = await _calibrate(VirtualEngine(SHAPE, COST))
    found = result.content.cost
    for tokens in (1, 2, 4, 8, 16, 64, 300, 2000):
        assert found.tokens.seconds(tokens) == pytest.approx(COST.tokens.seconds(tokens), rel=0.02)
    assert found.prefill_s_per_token2 == pytest.approx(2e-7, rel=0.1)
    assert found.decode_s_per_kv_byte == pytest.approx(5e-9, rel=0.1)
    assert found.front_s == pytest.approx(0.008, rel=0.1)
    assert found.front_s_per_token == pytest.approx(3e-6, rel=0.1)
    assert all(residual.worst_error < 0.02 for residual in result.content.measured.residuals)
