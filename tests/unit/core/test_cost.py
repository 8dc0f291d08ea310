"""Costs in seconds, and predictions made of them."""

import math

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost, TierCost
from anbar.core.fleet import Prediction, PrefixMatch


def test_prefill() -> None:
    """Overhead, the linear part of what is left, and attention over all that came before."""
    cost = PrefillCost(0.001, 1e-6, 0.01)
    assert math.isclose(cost.seconds(1000), 0.01 + 1.0 + 1.0)
    assert math.isclose(cost.seconds(1000, 500), 0.01 + 0.5 + 0.75)
    assert cost.seconds(1000, 1000) == cost.seconds(10, 11) == 0.0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(1e-6, 1.0), st.floats(0, 1e-3))
def test_computing_in_two_parts_costs_the_same(left: int, right: int, a: float, b: float) -> None:
    """Without overhead, computing a prompt in chunks takes as long as at once."""
    cut, whole = sorted((left, right))
    cost = PrefillCost(a, b)
    assert math.isclose(cost.seconds(cut) + cost.seconds(whole, cut), cost.seconds(whole), rel_tol=1e-6)


def test_tier() -> None:
    """Latency and bandwidth; loading nothing takes no time."""
    cost = TierCost(0.5, 100.0)
    assert cost.seconds(50) == 1.0
    assert cost.seconds(0) == 0.0


def test_prediction() -> None:
    """Time to first token is the sum of its parts; what is cached is what all tiers give."""
    assert Prediction(wait_s=1.0, load_s=2.0, prefill_s=4.0).ttft_s == 7.0
    assert PrefixMatch(1, 2, 3).total == 3
