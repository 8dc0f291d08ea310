"""What a step costs: tokens, attention, copies, and strides as sums of steps."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import CopyCost, EngineCost, TokenCurve
from anbar.core.ids import RequestId
from anbar.sim.engine.pace import ZERO, StepCost
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape
from anbar.sim.engine.step import Piece, Step

SHAPE = EngineShape(block_size=32, num_blocks=100, kv_bytes_per_token=1000)
COST = StepCost(
    EngineCost(
        tokens=TokenCurve(((1, 0.010), (4, 0.016), (104, 0.216))),
        prefill_s_per_token2=1e-6,
        decode_s_per_kv_byte=1e-9,
        load=CopyCost(0.001, 0.0001, 1e-9),
        store=CopyCost(0.002, 0.0002, 2e-9),
        copy_delay=0.5,
    )
)


class _NoKeys:
    def first(self, num_blocks: int) -> tuple[int, ...]:
        return ()


REQUEST = EngineRequest(RequestId("r"), 100, 10, _NoKeys())


def _step(*pieces: tuple[int, int], **fields: int) -> Step:
    return replace(Step([Piece(REQUEST, before, new) for before, new in pieces]), **fields)


def test_prompt_piece() -> None:
    """A piece of a prompt pays for its tokens and for attending to all that came before it."""
    expected = 0.016 + 0.002 * 60 + 1e-6 * (100**2 - 36**2)
    assert math.isclose(COST.seconds(_step((36, 64)), SHAPE), expected)


def test_decodes() -> None:
    """Decodes share the weights' pass and each read their context, the new token's KV included."""
    expected = 0.012 + 1e-6 * (100 + 200)
    assert math.isclose(COST.seconds(_step((99, 1), (199, 1)), SHAPE), expected)


def test_mixed_step() -> None:
    """Decodes beside a prompt cost its tail's slope each, not a pass of their own."""
    alone = COST.seconds(_step((0, 64)), SHAPE)
    mixed = COST.seconds(_step((99, 1), (0, 64)), SHAPE)
    assert math.isclose(mixed - alone, 0.002 + 1e-6 * 100)


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=20),
    st.integers(1, 300),
)
def test_a_stride_is_the_sum_of_its_steps(contexts: list[int], repeats: int) -> None:
    """k decode steps in one stride take as long as one by one, contexts growing by a token each."""
    stride = COST.seconds(_step(*((before, 1) for before in contexts), num_repeats=repeats), SHAPE)
    one_by_one = sum(
        COST.seconds(_step(*((before + step, 1) for before in contexts)), SHAPE) for step in range(repeats)
    )
    assert math.isclose(stride, one_by_one, rel_tol=1e-9)


def test_copies_delay_by_their_share() -> None:
    """Half of the time of loads and stores is added to the computing beside them."""
    beside = COST.seconds(
        _step((36, 64), num_loaded_tokens=32, num_load_copies=1, num_stored_tokens=64, num_store_copies=2),
        SHAPE,
    )
    load_s = 0.001 + 0.0001 + 32e-6
    store_s = 0.002 + 0.0004 + 128e-6
    assert math.isclose(beside, COST.seconds(_step((36, 64)), SHAPE) + 0.5 * (load_s + store_s))


def test_a_step_lasts_until_its_loads_are_done() -> None:
    """A step with nothing to compute, or little, takes as long as what it loads."""
    load_s = COST.seconds(_step(num_loaded_tokens=320_000, num_load_copies=10_000), SHAPE)
    assert math.isclose(load_s, 0.001 + 1.0 + 0.32)
    beside = COST.seconds(_step((99, 1), num_loaded_tokens=320_000, num_load_copies=10_000), SHAPE)
    assert math.isclose(beside, load_s)


def test_nothing_costs_nothing() -> None:
    """An empty step takes no time, and neither does any step at zero cost."""
    assert COST.seconds(Step(), SHAPE) == 0.0
    step = _step((0, 512), (99, 1), num_loaded_tokens=32, num_load_copies=1)
    assert ZERO.seconds(step, SHAPE) == 0.0


def test_only_decodes_repeat() -> None:
    """A stride with a prompt in it would be priced wrongly: that is a defect of the caller."""
    with pytest.raises(AssertionError, match="decode"):
        COST.seconds(_step((0, 64), num_repeats=2), SHAPE)
