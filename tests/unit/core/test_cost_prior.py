"""What a router expects of an engine whose cost file it has."""

import pytest

from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.core.cost import CopyCost, EngineCost, PrefillCost, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured
from anbar.core.cost_prior import host_load, prefill_prior
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape


def content(cost: EngineCost, budget: int = 2048) -> CostFile:
    kind = EngineType("m", "d", "bfloat16", "0.32.0", 16, KV_BYTES_PER_TOKEN, budget)
    return CostFile(kind, Measured("", "", 0.0), cost)


class NoKeys:
    """Blocks that nothing else has."""

    def first(self, num_blocks: int) -> list[int]:
        return list(range(num_blocks))


def alone_s(cost: EngineCost, num_tokens: int, budget: int) -> float:
    """Time to first token of a prompt alone on the engine model."""
    shape = EngineShape(16, 4000, max_num_batched_tokens=budget, max_model_len=40_000)
    engine = Engine(shape, StepCost(cost))
    engine.add(EngineRequest(RequestId("r"), num_tokens, 1, NoKeys()))
    now_s = 0.0
    while (running := engine.start_step(now_s)) is not None:
        now_s = running.ends_s
        engine.finish_step()
    return now_s + cost.front_s


@pytest.mark.parametrize("budget", [2048, 8192])
@pytest.mark.parametrize("num_tokens", [16, 100, 500, 2000, 8000, 32_000])
def test_prompts_are_expected_to_take_what_the_engine_model_takes(num_tokens: int, budget: int) -> None:
    """Three coefficients for a curve with a knee: within 15 % at every length."""
    prior = prefill_prior(content(H100_8B, budget))
    assert prior.seconds(num_tokens) == pytest.approx(alone_s(H100_8B, num_tokens, budget), rel=0.15)
    assert prior.b_s_per_token2 == H100_8B.prefill_s_per_token2


def test_a_straight_curve_is_found_again() -> None:
    """A step that costs 10 ms and 0.1 ms a token: those, and 2 ms outside of it, are the coefficients for
    prompts of up to one step."""
    curve = TokenCurve(((1, 0.0101), (100_000, 10.01)))
    prior = prefill_prior(content(EngineCost(curve, front_s=0.002), 1_000_000))
    assert prior.overhead_s == pytest.approx(0.012, rel=1e-3)
    assert prior.a_s_per_token == pytest.approx(1e-4, rel=1e-3)


def test_no_coefficient_is_negative() -> None:
    """A curve that costs nothing for few tokens and much for many: no overhead, and a rate between."""
    prior = prefill_prior(content(EngineCost(TokenCurve(((1, 0.0), (1000, 0.0), (2048, 5.0))))))
    assert prior.overhead_s == 0.0
    assert prior.a_s_per_token > 0


def test_steps_that_take_no_time_have_no_rate() -> None:
    """Nothing to begin with: whoever asked is told so."""
    assert prefill_prior(content(EngineCost())) == PrefillCost(0.0)


def test_a_load_costs_its_bytes_and_its_copies() -> None:
    """50 GB/s and a microsecond for each block of 16 tokens."""
    cost = host_load(content(EngineCost(load=CopyCost(2e-5, 1.6e-5, 2e-11))))
    assert cost.seconds(1000) == pytest.approx(2e-5 + 1000 * (KV_BYTES_PER_TOKEN * 2e-11 + 1e-6))


def test_an_answer_takes_its_part_of_a_step_and_a_half() -> None:
    """16 answers with 1,000 tokens of context each make a step of the engine model longer by as much as the
    prior says of each, one and a half times."""
    curve, kv_bytes = H100_8B.tokens, KV_BYTES_PER_TOKEN
    reading_s = H100_8B.decode_s_per_kv_byte * kv_bytes * 1000
    expected_s = 1.5 * ((curve.seconds(17) - curve.seconds(1)) / 16 + reading_s)
    assert prefill_prior(content(H100_8B)).s_per_answer == pytest.approx(expected_s)
    assert prefill_prior(content(EngineCost(curve))).s_per_answer < expected_s
