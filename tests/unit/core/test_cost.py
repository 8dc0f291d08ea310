"""Costs in seconds, and predictions made of them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import CopyCost, EngineCost, PrefillCost, TierCost, TokenCurve
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


def test_curve() -> None:
    """Straight between its points, on past the last, and back before the first; no tokens cost nothing."""
    curve = TokenCurve(((4, 0.04), (8, 0.05), (108, 0.25)))
    assert math.isclose(curve.seconds(6), 0.045)
    assert math.isclose(curve.seconds(8), 0.05)
    assert math.isclose(curve.seconds(208), 0.45)
    assert math.isclose(curve.seconds(2), 0.035)
    assert curve.seconds(0) == TokenCurve().seconds(5) == 0.0
    assert math.isclose(curve.s_per_token, 0.002)


@pytest.mark.parametrize(
    "points", [((1, 0.1),), ((0, 0.1), (1, 0.2)), ((1, 0.2), (2, 0.1)), ((2, 0.1), (1, 0.2))]
)
def test_curve_that_is_none(points: tuple[tuple[int, float], ...]) -> None:
    """More tokens never take less time, and one point is no line."""
    with pytest.raises(ValueError, match="curve"):
        TokenCurve(points)


# Source: blog.vllm.ai/2026/01/08/kv-offloading-connector.html, figures 3 and 4: KiB per copy and GB/s of an
# H100 that copies 1,000 blocks with its copy engines.
_TO_HOST = {
    8: 2.2,
    16: 4.6,
    32: 8.1,
    64: 15.3,
    128: 21.6,
    256: 29.2,
    512: 37.1,
    1024: 42.5,
    2048: 46.2,
    16384: 50.7,
}
_TO_DEVICE = {
    8: 2.3,
    16: 4.2,
    32: 7.5,
    64: 14.4,
    128: 22.8,
    256: 31.7,
    512: 39.5,
    1024: 44.4,
    2048: 47.7,
    16384: 51.2,
}


@pytest.mark.parametrize("published", [_TO_HOST, _TO_DEVICE])
def test_bandwidth_by_size_of_copies(published: dict[int, float]) -> None:
    """A constant per copy explains vLLM's published bandwidths, small copies and large."""
    cost = CopyCost(0.0, 3.4e-6, 1 / 51e9)
    for kib, gigabytes_per_s in published.items():
        num_bytes = 1000 * kib * 1024
        assert cost.seconds(num_bytes, 1000) == pytest.approx(num_bytes / (gigabytes_per_s * 1e9), rel=0.11)


def test_front_end() -> None:
    """Every request pays for its way in and out; only text is tokenized."""
    cost = EngineCost(front_s=0.01, front_s_per_token=1e-4)
    assert cost.front_seconds(0) == 0.01
    assert math.isclose(cost.front_seconds(500), 0.06)


def test_negative_costs_are_refused() -> None:
    """A cost below nothing is a defect of whoever made it."""
    with pytest.raises(ValueError, match="front_s"):
        EngineCost(front_s=-1.0)
    with pytest.raises(ValueError, match="copy_delay"):
        EngineCost(copy_delay=1.5)
    with pytest.raises(ValueError, match="s_per_byte"):
        CopyCost(s_per_byte=-1.0)
