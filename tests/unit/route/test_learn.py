"""Learning what a prefill costs from finished requests."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost
from anbar.route.learn import PrefillGroup, PrefillLearner, PrefillSample

PRIOR = PrefillCost(a_s_per_token=1e-4, b_s_per_token2=1e-9, overhead_s=0.01)


def sample(
    num_tokens: int, scale: float, *, cached: int = 0, queued: int = 0, load_s: float = 0.0
) -> PrefillSample:
    """A request on an engine that is `scale` times slower than the prior says."""
    work_s = (num_tokens - cached) * 1e-4 + (num_tokens**2 - cached**2) * 1e-9 + queued * 1e-4
    return PrefillSample(num_tokens, cached, queued, 0.01 + load_s + scale * work_s, load_s)


def test_without_samples_the_prior_holds() -> None:
    """Before anything is known the estimate is the prior's."""
    assert PrefillLearner(PRIOR).cost == PRIOR


@settings(max_examples=30)
@given(st.floats(0.02, 50), st.integers(0, 2**32))
def test_the_true_cost_is_found(scale: float, seed: int) -> None:
    """Whatever the lengths, hits and queues, the estimate comes to the engine's true cost; what was spent
    waiting in the queue or loading is not taken for prefill."""
    learner = PrefillLearner(PRIOR)
    rng = Random(seed)
    for _ in range(200):
        num_tokens, cached, queued = rng.randint(200, 9000), rng.randint(0, 150), rng.randint(0, 5000)
        learner.observe(sample(num_tokens, scale, cached=cached, queued=queued, load_s=0.5))
    assert math.isclose(learner.cost.a_s_per_token, scale * 1e-4, rel_tol=0.05)
    assert math.isclose(learner.cost.b_s_per_token2, scale * 1e-9, rel_tol=0.05)
    assert learner.cost.overhead_s == PRIOR.overhead_s


def test_it_learns_from_few_requests() -> None:
    """Five requests bring an engine ten times slower than the prior within a factor of two."""
    learner = PrefillLearner(PRIOR)
    for _ in range(5):
        learner.observe(sample(2000, 10.0))
    assert 5e-4 < learner.cost.a_s_per_token < 1e-3


def test_it_follows_a_change() -> None:
    """An engine that becomes three times slower is seen as such after a few half-lives."""
    learner = PrefillLearner(PRIOR, half_life=8)
    for _ in range(50):
        learner.observe(sample(1000, 1.0))
    for _ in range(60):
        learner.observe(sample(1000, 3.0))
    assert math.isclose(learner.cost.a_s_per_token, 3e-4, rel_tol=0.05)


def test_one_outlier_does_not_matter_much() -> None:
    """A request that took an hour counts as a slow one, no more."""
    learner = PrefillLearner(PRIOR)
    for _ in range(40):
        learner.observe(sample(1000, 1.0))
    learner.observe(PrefillSample(1000, 0, 0, 3600.0))
    assert learner.cost.a_s_per_token < 1.3e-4


def test_hits_in_full_teach_nothing() -> None:
    """A request with almost nothing to compute measures overheads: it is ignored."""
    learner = PrefillLearner(PRIOR)
    learner.observe(PrefillSample(1000, 990, 0, 5.0))
    assert (learner.num_samples, learner.cost) == (0, PRIOR)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**7), st.floats(-10, 1e9)),
        max_size=30,
    )
)
def test_the_estimate_stays_positive_and_finite(samples: list[tuple[int, int, int, float]]) -> None:
    """Odd samples (negative times after a clock's correction, hits beyond the prompt) never break it."""
    learner = PrefillLearner(PRIOR)
    for num_tokens, cached, queued, ttft_s in samples:
        learner.observe(PrefillSample(num_tokens, cached, queued, ttft_s))
    assert 0 < learner.cost.a_s_per_token < math.inf
    assert 0 < learner.cost.b_s_per_token2 < math.inf


def test_arguments_are_checked() -> None:
    """A prior without a rate and a half-life of nothing are refused."""
    with pytest.raises(ValueError, match="half_life"):
        PrefillLearner(PRIOR, half_life=0)
    with pytest.raises(ValueError, match="a_s_per_token"):
        PrefillLearner(PrefillCost(0.0))


def test_engines_alike_learn_together() -> None:
    """One request on one engine of a slow fleet tells of all: the engine that has finished nothing must not
    look thirty times faster than the one that has."""
    group = PrefillGroup(PRIOR)
    busy, idle = group.join(), group.join()
    busy.observe(sample(1000, 30.0))
    assert math.isclose(idle.cost.a_s_per_token, 30e-4, rel_tol=0.15)
    assert math.isclose(busy.cost.a_s_per_token, idle.cost.a_s_per_token, rel_tol=0.15)


def test_an_engine_that_differs_is_told_apart() -> None:
    """Two kinds of engines behind one router: after a few dozen requests each has a cost of its own."""
    group = PrefillGroup(PRIOR)
    slow, fast = group.join(), group.join()
    for _ in range(60):
        slow.observe(sample(1000, 10.0))
        fast.observe(sample(1000, 1.0))
    assert math.isclose(slow.cost.a_s_per_token, 10e-4, rel_tol=0.2)
    assert fast.cost.a_s_per_token < 2.5e-4


def test_a_look_costs_the_same_in_a_large_fleet() -> None:
    """The estimates of 1,000 engines alike, as every request takes them, read no other engine's sums; and
    what they say together is what their sums say."""
    group = PrefillGroup(PRIOR)
    members = [group.join() for _ in range(1000)]
    for at, member in enumerate(members[:50]):
        for _ in range(at):
            member.observe(sample(500 + at, 1.0 + at))
    prior_s = group.PRIOR_SAMPLES * 1000 * PRIOR.a_s_per_token
    measured_s = prior_s + sum(member.measured_s for member in members)
    expected_s = prior_s + sum(member.expected_s for member in members)
    assert math.isclose(group.scale, measured_s / expected_s, rel_tol=1e-9)
    assert group.num_samples == sum(member.num_samples for member in members)
    looked_at, *others = members
    for other in others:
        del other.measured_s, other.expected_s
    assert looked_at.cost.a_s_per_token > 0
