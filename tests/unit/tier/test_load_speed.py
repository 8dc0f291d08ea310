"""What is learned of a store from loads, in virtual time."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.core.cost import TierCost
from anbar.tier.load_speed import EAGER, EVERY_S, HALF_LIFE_S, PRIOR, LoadSpeed

MIB = 1 << 20


def taught(
    truth: TierCost, *, count: int = 60, noise: float = 0.1, clock: ManualClock | None = None
) -> LoadSpeed:
    """Loads of 1 to 256 MiB, of which one in twenty hangs for ten times as long."""
    speed, rng = LoadSpeed(clock or ManualClock()), Random(3)
    for _ in range(count):
        num_bytes = int(MIB * 2 ** rng.uniform(0, 8))
        factor = 10.0 if rng.random() < 0.05 else 1 + rng.uniform(-noise, noise)
        speed.observe(num_bytes, factor * truth.seconds(num_bytes))
    return speed


@pytest.mark.parametrize(
    "truth",
    [TierCost(0.0005, 5e9), TierCost(0.1, 1e9), TierCost(0.02, 5e7), TierCost(0.0001, 3e10)],
    ids=["local disk", "object store", "slow network", "memory"],
)
def test_latency_and_bandwidth_are_found(truth: TierCost) -> None:
    """Whatever the store, what it takes to load 2 MiB and 200 MiB is known within a third."""
    speed = taught(truth)
    assert speed.is_known
    for num_bytes in (2 * MIB, 200 * MIB):
        assert speed.cost.seconds(num_bytes) == pytest.approx(truth.seconds(num_bytes), rel=0.35)


def test_loads_of_one_size_teach_their_own_time() -> None:
    """Nothing tells latency and bandwidth apart, and the size that is loaded is predicted well all the
    same."""
    speed = LoadSpeed(ManualClock())
    for _ in range(20):
        speed.observe(8 * MIB, 0.05)
    assert speed.cost.seconds(8 * MIB) == pytest.approx(0.05, rel=0.1)


def test_one_load_that_hung_decides_nothing() -> None:
    """After 20 loads of 10 ms one of 5 s raises the estimate by less than half."""
    speed = LoadSpeed(ManualClock())
    for _ in range(20):
        speed.observe(8 * MIB, 0.01)
    speed.observe(8 * MIB, 5.0)
    assert speed.cost.seconds(8 * MIB) < 0.015


def test_a_store_that_became_slow_is_noticed() -> None:
    """Ten times slower for 40 loads: known within a third."""
    clock = ManualClock()
    speed = taught(TierCost(0.001, 2e9), clock=clock)
    for _ in range(40):
        clock.advance(EVERY_S)
        speed.observe(8 * MIB, 10 * TierCost(0.001, 2e9).seconds(8 * MIB))
    assert speed.cost.seconds(8 * MIB) == pytest.approx(0.052, rel=0.35)


def test_what_is_known_is_forgotten() -> None:
    """Without loads for twenty minutes nothing is known any more."""
    clock = ManualClock()
    speed = LoadSpeed(clock)
    assert not speed.is_known
    assert speed.cost == PRIOR
    for _ in range(40):
        speed.observe(8 * MIB, 5.0)
    assert speed.is_known
    clock.advance(2 * HALF_LIFE_S)
    assert not speed.is_known


def test_two_loads_are_nothing_to_go_by() -> None:
    """One of them may have hung: only the third makes it known, and that one costs a third at most."""
    speed = LoadSpeed(ManualClock())
    speed.observe(8 * MIB, 3.0)
    speed.observe(8 * MIB, 0.01)
    assert not speed.is_known
    speed.observe(8 * MIB, 0.01)
    assert speed.is_known
    assert speed.cost.seconds(8 * MIB) < 0.02


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 1 << 40) | st.integers(1, 1 << 24),
            st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 10.0),
            st.floats(0, 1000.0),
        ),
        max_size=30,
    )
)
def test_the_estimate_is_always_one(samples: list[tuple[int, float, float]]) -> None:
    """Whatever is measured, at whatever times: a latency of 0 or more and a bandwidth above 0, and more bytes
    never take less time."""
    clock = ManualClock()
    speed = LoadSpeed(clock)
    for num_bytes, seconds, passed_s in samples:
        speed.observe(num_bytes, seconds)
        clock.advance(passed_s)
        cost = speed.cost
        assert cost.latency_s >= 0
        assert 0 < cost.bytes_per_s < float("inf")
        assert cost.seconds(MIB) <= cost.seconds(2 * MIB)


def test_of_many_loads_few_teach() -> None:
    """A thousand loads a second: once something is known, those within a moment of the last that taught say
    nothing, however slow they were; the next one after it does."""
    clock = ManualClock()
    speed = taught(TierCost(0.001, 2e9), count=EAGER, clock=clock)
    before = speed.cost
    for _ in range(90):
        clock.advance(EVERY_S / 100)
        speed.observe(8 * MIB, 1.0)
    assert speed.cost == before
    clock.advance(EVERY_S)
    speed.observe(8 * MIB, 1.0)
    assert speed.cost.seconds(8 * MIB) > before.seconds(8 * MIB)
