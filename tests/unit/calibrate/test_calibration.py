"""Calibration against an engine whose cost is known."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from anbar.apps.calibrate.campaign import FULL, QUICK, Plan
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.prompts import Prompts
from anbar.apps.calibrate.run import Calibration, Session, calibrate
from anbar.apps.calibrate.target import Ask, EngineFacts
from anbar.core.cost import CopyCost, EngineCost, TokenCurve
from anbar.core.cost_file import render
from anbar.core.errors import MeasureError
from anbar.sim.engine.engine import Tiers
from anbar.sim.engine.shape import EngineShape, HostShape
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


async def test_noise_shows_as_noise() -> None:
    """With 5 % of noise in every step: steps within 10 %, and the report says how noisy it was."""
    result = await _calibrate(VirtualEngine(SHAPE, COST, noise=0.05), FULL)
    for tokens in (1, 4, 16, 64, 300, 2000):
        found = result.content.cost.tokens.seconds(tokens)
        assert found == pytest.approx(COST.tokens.seconds(tokens), rel=0.1)
    assert 0.05 < result.content.measured.residuals[0].spread < 0.2
    assert all(row.low <= row.high for row in result.coefficients)
    assert any(row.low < row.value < row.high for row in result.coefficients)


@pytest.mark.parametrize(("plan", "most_s"), [(QUICK, 60.0), (FULL, 300.0)])
@pytest.mark.parametrize("slower", [0.01, 0.3, 1.0, 2.0])
async def test_it_ends_in_time(plan: Plan, most_s: float, slower: float) -> None:
    """Whatever the engine's speed: it measures less of a slow one, not longer."""
    points = tuple((tokens, seconds * slower) for tokens, seconds in COST.tokens.points)
    engine = VirtualEngine(SHAPE, replace(COST, tokens=TokenCurve(points)))
    result = await _calibrate(engine, plan)
    assert engine.clock.now_s() < most_s
    assert result.content.measured.seconds == pytest.approx(engine.clock.now_s(), abs=0.1)


async def test_equal_runs_write_equal_files() -> None:
    """The same engine, prompts and clock give the same bytes."""
    first, second = [await _calibrate(VirtualEngine(SHAPE, COST, noise=0.05)) for _ in range(2)]
    assert render(first.content) == render(second.content)


async def test_progress() -> None:
    """Whoever waits is told what is measured, in shares that only grow."""
    engine, seen = VirtualEngine(SHAPE, COST), list[str]()
    await calibrate(engine, FACTS, GIVEN, QUICK, _session(engine, seen))
    shares = [line.split()[0] for line in seen]
    assert shares == sorted(shares)
    assert seen[0] == "0.00 warming up"
    assert "round 3 of 3" in seen[-1]


async def test_a_busy_engine_is_refused() -> None:
    """Somebody else's requests would be measured too: nothing is sent."""
    engine = VirtualEngine(SHAPE, COST)
    engine.num_running = 3
    with pytest.raises(MeasureError, match="http://e is busy: 3 requests running"):
        await _calibrate(engine)
    assert engine.clock.now_s() == 0.0


async def test_company_is_named() -> None:
    """Somebody else's request amid the measurements: the report says how many tokens it was."""
    engine = VirtualEngine(SHAPE, COST)

    def join(stage: str, share: float) -> None:
        if stage.startswith("decodes, round 2"):
            engine.play([Ask(tuple(range(500)), 3)])

    session = replace(_session(engine), progress=join)
    result = await calibrate(engine, FACTS, GIVEN, QUICK, session)
    assert "500 prompt tokens" in result.notes[0]


async def test_kv_bytes_that_nobody_knows() -> None:
    """A model that is not on this machine, and no host tier: the user is asked, with the formula, before
    anything is measured."""
    engine = VirtualEngine(SHAPE, COST)
    with pytest.raises(MeasureError, match="kv_bytes_per_token=N"):
        await calibrate(engine, FACTS, Given(device="cpu"), QUICK, _session(engine))
    assert engine.clock.now_s() == 0.0


HOST_COST = replace(COST, load=CopyCost(0.0, 0.0, 2e-7), store=CopyCost(0.0, 0.0, 3e-7), copy_delay=1.0)
TIERS = Tiers(HostShape(num_chunks=4000))


@pytest.mark.parametrize("can_clear", [True, False])
async def test_host_memory(can_clear: bool) -> None:
    """Prompts leave the device, by request or displaced by others, and come back: bandwidth both ways and the
    size of a token's KV are found, and none of it is in the cost of computing."""
    engine = VirtualEngine(replace(SHAPE, num_blocks=300), HOST_COST, TIERS)
    engine.can_clear = can_clear
    facts = replace(FACTS, has_offload=True, num_blocks=300)
    plan = replace(QUICK, seconds=150.0)
    given = Given(device="cpu", dtype="float32")
    result = await calibrate(engine, facts, given, plan, _session(engine))
    assert result.notes == ()
    assert result.content.engine.kv_bytes_per_token == 1000
    cost = result.content.cost
    for tokens in (1, 16, 300):
        assert cost.tokens.seconds(tokens) == pytest.approx(HOST_COST.tokens.seconds(tokens), rel=0.01)
    assert cost.prefill_s_per_token2 == pytest.approx(2e-7, rel=0.05)
    assert cost.load.s_per_byte == pytest.approx(2e-7)
    assert cost.store.s_per_byte == pytest.approx(3e-7)
    assert cost.load.latency_s < 0.005
    assert result.content.measured.residuals[-1].what == "prefixes from host memory"
    assert result.content.measured.residuals[-1].median_error < 0.01


@pytest.mark.parametrize("num_chunks", [40, 50, 60, 64])
async def test_prompts_that_are_half_in_host_memory(num_chunks: int) -> None:
    """A tier too small for all of them gives back parts of some, or of none the most: the size of a token's
    KV is that of all that was loaded, by all that it was."""
    tiers = Tiers(HostShape(num_chunks))
    engine = VirtualEngine(replace(SHAPE, num_blocks=300), HOST_COST, tiers)
    facts, plan = replace(FACTS, has_offload=True, num_blocks=300), replace(QUICK, seconds=150.0)
    result = await calibrate(engine, facts, Given(device="cpu", dtype="float32"), plan, _session(engine))
    assert result.content.engine.kv_bytes_per_token == 1000
    assert result.content.cost.load.s_per_byte == pytest.approx(2e-7)


async def test_a_host_tier_hardly_larger_than_the_device() -> None:
    """What displaces prompts from the device does not displace them from host memory too."""
    engine = VirtualEngine(replace(SHAPE, num_blocks=300), HOST_COST, Tiers(HostShape(num_chunks=420)))
    engine.can_clear = False
    facts, plan = replace(FACTS, has_offload=True, num_blocks=300), replace(QUICK, seconds=150.0)
    result = await calibrate(engine, facts, GIVEN, plan, _session(engine))
    assert result.notes == ()
    assert result.content.cost.load.s_per_byte == pytest.approx(2e-7)


async def test_a_device_of_unknown_size() -> None:
    """An engine that does not say how many blocks it has cannot be displaced: the note says just that."""
    engine = VirtualEngine(SHAPE, HOST_COST, TIERS)
    engine.can_clear = False
    facts = replace(FACTS, has_offload=True, num_blocks=0)
    result = await calibrate(engine, facts, GIVEN, QUICK, _session(engine))
    assert "the device holds an unknown number of tokens" in result.notes[0]


async def test_prompts_below_a_block_have_no_cached_prefix() -> None:
    """An engine so slow, or blocks so large, that no measured prompt fills one: nothing is said to be cached
    that is not."""
    engine = VirtualEngine(replace(SHAPE, block_size=4096), COST)
    result = await calibrate(engine, replace(FACTS, block_size=4096), GIVEN, QUICK, _session(engine))
    kinds = [residual.what for residual in result.content.measured.residuals]
    assert kinds == ["prompts, nothing cached", "decodes", "a prompt beside decodes"]


async def test_host_memory_without_time() -> None:
    """A device that cannot be cleared and is too large to be displaced: said, and the rest is written."""
    engine = VirtualEngine(SHAPE, HOST_COST, TIERS)
    engine.can_clear = False
    result = await calibrate(engine, replace(FACTS, has_offload=True), GIVEN, QUICK, _session(engine))
    assert result.content.cost.load == CopyCost()
    assert "32,000 tokens" in result.notes[0]


async def test_a_restless_machine_is_named() -> None:
    """When many measurements are far from their like, the report says that the figures are worth little; a
    quiet machine needs no note."""
    assert (await _calibrate(VirtualEngine(SHAPE, COST, noise=0.05))).notes == ()
    result = await _calibrate(VirtualEngine(SHAPE, COST, noise=0.5))
    assert "the machine was not quiet" in result.notes[0]
