"""What the benchmark emulator-fidelity says of runs, and the whole of it in virtual time."""

import random
from dataclasses import replace

import pytest
from benchmarks.emulator_fidelity import SEED, Outcome, Verdict, compare, make_trace, play, play_model, sizes

from anbar.apps.calibrate.campaign import QUICK
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.prompts import Prompts
from anbar.apps.calibrate.run import Session, calibrate
from anbar.apps.calibrate.target import EngineFacts
from anbar.core.cost import CopyCost, EngineCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType
from anbar.sim.engine.engine import Tiers
from tests.unit.calibrate.virtual_engine import VirtualEngine

COST = EngineCost(
    tokens=TokenCurve(((1, 0.030), (4, 0.050), (16, 0.080), (272, 0.400))),
    prefill_s_per_token2=2e-7,
    decode_s_per_kv_byte=5e-9,
    load=CopyCost(0.0, 0.0, 2e-7),
    store=CopyCost(0.0, 0.0, 3e-7),
    copy_delay=1.0,
    front_s=0.008,
)


def _verdicts(ttft_s: list[float], found_s: float) -> set[Verdict]:
    real = [Outcome((seconds, seconds), 1 / seconds) for seconds in ttft_s]
    return {one.verdict for one in compare("model", real, Outcome((found_s, found_s), 1 / found_s))}


@pytest.mark.parametrize(
    ("ttft_s", "found_s", "verdict"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0], 1.14, Verdict.CLOSE),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 1.19, Verdict.FAR),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 0.84, Verdict.FAR),
        ([0.95, 0.95, 1.0, 1.05, 1.05], 1.19, Verdict.CLOSE),
        ([0.95, 1.0, 1.0, 1.0, 9.0], 1.19, Verdict.FAR),
        ([0.8, 0.9, 1.0, 1.1, 1.2], 1.0, Verdict.RESTLESS),
    ],
)
def test_verdicts(ttft_s: list[float], found_s: float, verdict: Verdict) -> None:
    """15 % are allowed, or twice the spread of the runs; one run amiss allows nothing, and runs that differ
    more than 15 % fail whatever they are compared with."""
    assert _verdicts(ttft_s, found_s) == {verdict}


async def test_all_of_it_in_virtual_time() -> None:
    """An engine with 2 % of noise in its steps is calibrated, then plays the trace three times: the model at
    the calibrated cost is close enough to it, and at a third more it is not."""
    given = Given(device="cpu", dtype="float32", kv_bytes_per_token=1000)
    kind = EngineType("m", "cpu", "float32", "0.32.0", 32, 1000, 2048)
    shape, host = sizes(kind)
    engine = VirtualEngine(shape, COST, Tiers(host), noise=0.02)
    facts = EngineFacts(
        "http://e", "m", "/nowhere", "0.32.0", shape.max_model_len, 32, shape.num_blocks, True
    )
    prompts = Prompts(range(1000, 1100), random.Random(7))
    session = Session(prompts, engine.clock, lambda stage, share: None)
    content = (await calibrate(engine, facts, given, QUICK, session)).content
    trace = make_trace(random.Random(SEED), 20)
    real = [await play(trace, range(1000, 1100), seed, engine.run) for seed in range(3)]
    found = await play_model(trace, content)
    assert [one.verdict for one in compare("model", real, found)] == [Verdict.CLOSE] * 3
    slower = CostFile(kind, content.measured, _slower(content.cost, 4 / 3))
    found = await play_model(trace, slower)
    assert [one.verdict for one in compare("model", real, found)] == [Verdict.FAR] * 3


def _slower(cost: EngineCost, factor: float) -> EngineCost:
    points = tuple((tokens, seconds * factor) for tokens, seconds in cost.tokens.points)
    return replace(cost, tokens=TokenCurve(points))
