"""Learning what a prefill costs from finished requests."""

import math
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost, PrefillWork
from anbar.core.least_squares import FadedSums, solve
from anbar.core.prefill_learner import PrefillGroup, PrefillLearner, PrefillSample

PRIOR = PrefillCost(a_s_per_token=1e-4, b_s_per_token2=2e-9, overhead_s=0.005)
TRUTHS = (
    PrefillCost(3.3e-5, 6.5e-10, 0.012),
    PrefillCost(1e-4, 5e-8, 0.01),
    PrefillCost(1e-4, 0.0, 0.005),
    PrefillCost(2e-3, 4e-7, 0.03),
)
"""A large GPU, one with costly attention, one without any, a laptop."""


def sample(truth: PrefillCost, num_tokens: int, *, cached: int = 0, factor: float = 1.0) -> PrefillSample:
    return PrefillSample(PrefillWork.of(num_tokens, cached), factor * truth.seconds(num_tokens, cached))


def taught(
    truth: PrefillCost, lengths: Callable[[Random], int], *, count: int = 200, noise: float = 0.1
) -> PrefillLearner:
    """An engine of its own that has finished `count` prompts, with noise that is not symmetric."""
    learner, rng = PrefillGroup(PRIOR).join(), Random(7)
    for _ in range(count):
        slow = 8.0 if rng.random() < 0.02 else math.exp(rng.gauss(0, noise))
        learner.observe(sample(truth, lengths(rng), factor=slow))
    return learner


def varied(rng: Random) -> int:
    return min(32_000, max(20, int(rng.lognormvariate(6.5, 1.2))))


def test_without_samples_the_prior_holds() -> None:
    """Before anything is known the estimate is the prior's."""
    assert PrefillGroup(PRIOR).join().cost == PRIOR


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_true_cost_is_found(truth: PrefillCost) -> None:
    """From prompts of many lengths, a tenth of noise and a request in fifty that took eight times as long,
    the estimate is within 15 % of the truth for prompts of the usual lengths, and within a factor of two far
    beyond them; `a` is within 20 %, and so is `b` if it
    makes a fifth at 10,000 tokens."""
    cost = taught(truth, varied).cost
    for num_tokens in (100, 1000, 10_000):
        assert cost.seconds(num_tokens) == pytest.approx(truth.seconds(num_tokens), rel=0.15)
    assert 0.5 < cost.seconds(100_000) / truth.seconds(100_000) < 2
    assert cost.a_s_per_token == pytest.approx(truth.a_s_per_token, rel=0.2)
    fifth = 0.2 * truth.a_s_per_token / 10_000
    assert cost.b_s_per_token2 == pytest.approx(truth.b_s_per_token2, rel=0.2, abs=fifth)


def test_it_is_deterministic() -> None:
    """The same samples give the same figures to the last bit."""
    assert taught(TRUTHS[0], varied).cost == taught(TRUTHS[0], varied).cost


@pytest.mark.parametrize("truth", TRUTHS)
def test_prompts_of_one_length_do_not_lead_astray(truth: PrefillCost) -> None:
    """From prompts of like length the coefficients cannot be told apart: then prompts of that length are
    predicted well, and one ten times as long between linearly and half as much again above the prior's
    shape."""
    cost = taught(truth, lambda rng: rng.randint(950, 1050)).cost
    at_hand = truth.seconds(1000)
    assert cost.seconds(1000) == pytest.approx(at_hand, rel=0.1)
    shape = PRIOR.seconds(10_000) / PRIOR.seconds(1000)
    assert 0.75 * 10 * at_hand < cost.seconds(10_000) < 1.5 * shape * at_hand


def test_the_shape_is_remembered_through_a_time_of_like_prompts() -> None:
    """After a thousand short prompts of one length a long one is still predicted as it was seen before."""
    truth, rng = TRUTHS[1], Random(3)
    learner = taught(truth, varied)
    for _ in range(1000):
        learner.observe(sample(truth, 500, factor=math.exp(rng.gauss(0, 0.1))))
    assert learner.cost.seconds(20_000) == pytest.approx(truth.seconds(20_000), rel=0.3)


def test_the_queue_before_it_is_no_part_of_its_cost() -> None:
    """Requests that waited behind others teach the same as those that did not, also when the queue was of
    many short prompts, which cost less than one long one."""
    truth, learner, rng = TRUTHS[1], PrefillGroup(PRIOR).join(), Random(5)
    for _ in range(300):
        before = [rng.randint(100, 3000) for _ in range(rng.randint(0, 5))]
        own = PrefillWork.of(rng.randint(100, 8000))
        queued = PrefillWork(sum(before), sum(length**2 for length in before))
        seconds = truth.overhead_s + truth.work_seconds(own) + truth.work_seconds(queued)
        learner.observe(PrefillSample(own, seconds, queued))
    assert learner.cost.seconds(8000) == pytest.approx(truth.seconds(8000), rel=0.05)
    assert learner.cost.b_s_per_token2 == pytest.approx(truth.b_s_per_token2, rel=0.1)


def test_it_learns_from_few_requests() -> None:
    """Five requests bring an engine twenty times slower than the prior within 30 %."""
    learner = PrefillGroup(PRIOR).join()
    for _ in range(5):
        learner.observe(sample(TRUTHS[3], 2000))
    assert learner.cost.seconds(2000) == pytest.approx(TRUTHS[3].seconds(2000), rel=0.3)


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_it_follows_a_change(factor: float) -> None:
    """An engine that becomes four times slower or faster is seen as such, within a quarter, after 100
    requests."""
    truth, rng = TRUTHS[0], Random(2)
    learner = taught(truth, varied)
    for _ in range(100):
        learner.observe(sample(truth, varied(rng), factor=factor))
    assert learner.cost.seconds(4000) == pytest.approx(factor * truth.seconds(4000), rel=0.25)


def test_one_outlier_does_not_matter_much() -> None:
    """A request that took an hour counts as one four times slower: less than 7 %. The very first one, which
    may be slow for reasons of its own (300 times here), is all but forgotten after ten."""
    learner = taught(TRUTHS[0], varied)
    before_s = learner.cost.seconds(4000)
    learner.observe(PrefillSample(PrefillWork.of(4000), 3600.0))
    for _ in range(3):  # a well-known engine is estimated anew after every fourth
        learner.observe(sample(TRUTHS[0], 4000))
    assert before_s < learner.cost.seconds(4000) < 1.07 * before_s
    fresh = PrefillGroup(PRIOR).join()
    fresh.observe(PrefillSample(PrefillWork.of(1000), 30.0))
    for _ in range(10):
        fresh.observe(sample(PRIOR, 1000))
    assert fresh.cost.seconds(1000) == pytest.approx(PRIOR.seconds(1000), rel=1.0)


def test_answers_that_run_are_told_from_the_computing() -> None:
    """Prompts among 0 to 40 answers, each of which costs them 5 ms, 25 times what was expected: what they
    take is learned, and prompts on an idle engine are not taken for slower."""
    learner, rng = PrefillGroup(PrefillCost(1e-4, 2e-9, 0.005, 2e-4)).join(), Random(6)
    for _ in range(200):
        count, own = rng.randint(0, 40), PrefillWork.of(varied(rng))
        seconds = TRUTHS[3].overhead_s + TRUTHS[3].work_seconds(own) + 0.005 * count
        learner.observe(PrefillSample(own, seconds * math.exp(rng.gauss(0, 0.1)), num_decoding=count))
    assert learner.cost.s_per_answer == pytest.approx(0.005, rel=0.2)
    assert learner.cost.seconds(100) == pytest.approx(TRUTHS[3].seconds(100), rel=0.15)
    assert learner.cost.seconds(10_000) == pytest.approx(TRUTHS[3].seconds(10_000), rel=0.15)


def test_short_prompts_teach_the_overhead() -> None:
    """Hits in full measure what a request costs beside its computing, and no more: a prompt of 20,000 tokens
    is not taken for slower because short ones take long."""
    learner = PrefillGroup(PRIOR).join()
    for _ in range(60):
        learner.observe(PrefillSample(PrefillWork.of(1000, 990), 0.05))
    assert learner.cost.seconds(1000, 990) == pytest.approx(0.05, rel=0.2)
    assert learner.cost.seconds(20_000) < 3 * PRIOR.seconds(20_000)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_times_that_no_clock_measures_are_ignored(seconds: float) -> None:
    """Nothing is learned from them, neither by the engine nor by those like it."""
    group = PrefillGroup(PRIOR)
    learner = group.join()
    learner.observe(PrefillSample(PrefillWork.of(1000), seconds))
    assert (learner.num_samples, group.num_samples, learner.cost) == (0, 0, PRIOR)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**7), st.floats(width=64)),
        max_size=40,
    )
)
def test_the_estimate_stays_positive_and_finite(samples: list[tuple[int, int, int, float]]) -> None:
    """Whatever comes (times of nothing and of years, hits beyond the prompt), `a` stays positive, `b` and the
    overhead not negative, and all of them within the bounds of the prior."""
    learner = PrefillGroup(PRIOR).join()
    for num_tokens, cached, queued, seconds in samples:
        learner.observe(
            PrefillSample(PrefillWork.of(num_tokens, cached), seconds, PrefillWork(queued, queued**2))
        )
    cost = learner.cost
    assert 1e-4 / 32**2 < cost.a_s_per_token / PRIOR.a_s_per_token < 1e4 * 32**2
    assert 0 <= cost.b_s_per_token2 / PRIOR.b_s_per_token2 < 1e4 * 32**2
    assert 0 <= cost.overhead_s / PRIOR.overhead_s < 8 * 32**2


def test_few_samples_do_not_change_the_shape_much() -> None:
    """Two odd samples that would be explained best by attention alone: `b` is at most twice what the scale
    says, since so few prove nothing."""
    learner = PrefillGroup(PRIOR).join()
    for num_tokens, seconds in ((1000, 0.01), (10_000, 4.0)):
        learner.observe(PrefillSample(PrefillWork.of(num_tokens), seconds))
    scale = learner.cost.a_s_per_token / PRIOR.a_s_per_token
    assert learner.cost.b_s_per_token2 / PRIOR.b_s_per_token2 < 2 * scale


def test_arguments_are_checked() -> None:
    """A prior without a rate, a negative one, and a half-life of nothing are refused."""
    for prior in (PrefillCost(0.0), PrefillCost(1e-4, -1e-9), PrefillCost(1e-4, 0.0, -1.0)):
        with pytest.raises(ValueError, match="prior"):
            PrefillGroup(prior)
    with pytest.raises(ValueError, match="half_life"):
        FadedSums(0.5, 3)


def test_engines_alike_learn_together() -> None:
    """One request on one engine of a slow fleet tells of all: the engine that has finished nothing must not
    look twenty times faster than the one that has; nor may it later, whatever that one learns."""
    group = PrefillGroup(PRIOR)
    busy, idle, rng = group.join(), group.join(), Random(1)
    for number in range(100):
        busy.observe(sample(TRUTHS[3], 1000 if number == 0 else varied(rng)))
        assert idle.cost.seconds(1000) > 0.8 * busy.cost.seconds(1000)
    assert idle.cost.seconds(10_000) == pytest.approx(TRUTHS[3].seconds(10_000), rel=0.15)


def test_an_engine_that_differs_is_told_apart() -> None:
    """Two kinds of engines behind one router: after 60 requests each has a cost of its own."""
    group = PrefillGroup(PRIOR)
    slow, fast = group.join(), group.join()
    rng = Random(1)
    for _ in range(60):
        slow.observe(sample(TRUTHS[3], varied(rng)))
        fast.observe(sample(TRUTHS[0], varied(rng)))
    for learner, truth in ((slow, TRUTHS[3]), (fast, TRUTHS[0])):
        assert learner.cost.seconds(2000) == pytest.approx(truth.seconds(2000), rel=0.3)


def test_a_look_costs_nothing_while_nothing_changes() -> None:
    """The estimates of all engines, as every request takes them, are the same objects as long as nobody has
    learned anything, and when others learn what was known already."""
    group = PrefillGroup(PRIOR)
    members = [group.join() for _ in range(3)]
    for _ in range(200):
        members[0].observe(sample(PRIOR, 1000))
    looked = [member.cost for member in members]
    assert all(member.cost is cost for member, cost in zip(members, looked, strict=True))
    for _ in range(4):
        members[0].observe(sample(PRIOR, 1000))
    assert [member.cost is cost for member, cost in zip(members, looked, strict=True)] == [False, True, True]


def test_the_error_of_predictions_is_told() -> None:
    """The mean of how far predictions were off, before each sample was known."""
    exact = taught(TRUTHS[0], varied, noise=0.0)
    learner = PrefillGroup(PRIOR).join()
    for factor in (1.0, 2.0) * 100:
        learner.observe(sample(PRIOR, 1000, factor=factor))
    assert 0.3 < learner.error < 0.6
    assert exact.error < 0.3


# The solver against a plain model


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.1, 10)), min_size=1
    ),
    st.tuples(st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.5, 2)),
)
def test_the_solution_is_the_best_within_bounds(
    samples: list[tuple[float, float, float, float]], base: tuple[float, float, float]
) -> None:
    """No gains on a grid around the solution, within the bounds, are closer to the samples and the base; the
    sums are those of the samples, faded."""
    half_life, ridge = 4.0, (0.1, 0.2, 0.3)
    low, high = (0.0, 0.5, 0.0), (3.0, 2.0, 3.0)
    sums, weights = FadedSums(half_life, 3), []
    for *shares, ratio in samples:
        sums.add(np.array(shares), ratio, tells_scale=True)
        weights = [weight * 0.5 ** (1 / half_life) for weight in weights] + [1.0]

    def loss(gains: tuple[float, float, float]) -> float:
        off = sum(r * (g - b) ** 2 for r, g, b in zip(ridge, gains, base, strict=True))
        for (*shares, ratio), weight in zip(samples, weights, strict=True):
            said = sum(share * gain for share, gain in zip(shares, gains, strict=True))
            off += weight / ratio * (ratio - said) ** 2
        return off

    found = solve(sums, *(np.array(each) for each in (base, ridge, low, high)))
    assert all(lo - 1e-9 <= gain <= hi + 1e-9 for lo, gain, hi in zip(low, found, high, strict=True))
    found = found.tolist()
    bound = [lo < gain < hi for lo, gain, hi in zip(low, found, high, strict=True)].count(False)
    for i in range(3):
        for step in (-1e-3, 1e-3):
            moved = list(found)
            moved[i] = min(max(moved[i] + step, low[i]), high[i])
            if bound <= 1:
                assert loss((moved[0], moved[1], moved[2])) >= loss(found) - 1e-9
    assert sums.num == pytest.approx(sum(weights))


def slow_and_quick() -> tuple[PrefillGroup, PrefillLearner, PrefillLearner]:
    """An engine that was four times as slow as another one like it for a dozen requests."""
    group, rng = PrefillGroup(PRIOR), Random(3)
    slow, quick = group.join(), group.join()
    for _ in range(12):
        slow.observe(sample(PRIOR, varied(rng), factor=4.0))
        quick.observe(sample(PRIOR, varied(rng)))
    assert slow.cost.seconds(1000) > 2 * quick.cost.seconds(1000)
    return group, slow, quick


def test_an_engine_without_requests_is_expected_to_be_like_the_others_again() -> None:
    """Slow once, it gets no request, and so cannot show otherwise: what it showed counts less with each
    request that the other one finishes, until the two are expected to be alike."""
    _, slow, quick = slow_and_quick()
    rng = Random(4)
    for _ in range(1000):
        quick.observe(sample(PRIOR, varied(rng)))
    assert slow.cost.seconds(1000) == pytest.approx(quick.cost.seconds(1000), rel=0.1)


def test_an_engine_that_was_restarted_is_like_the_others() -> None:
    """What is expected of it is what is expected of an engine that has just joined."""
    group, slow, _ = slow_and_quick()
    slow.forget()
    assert slow.cost == group.join().cost
    assert slow.num_samples == 0


def test_doubt_shrinks_with_requests() -> None:
    """One that was never asked is in as much doubt as a request of the others was off; with requests of its
    own the doubt shrinks as that of a mean does; before anybody was asked there is none."""
    group, rng = PrefillGroup(PRIOR), Random(5)
    asked, idle = group.join(), group.join()
    assert (asked.doubt, idle.doubt) == (0.0, 0.0)
    for _ in range(60):
        asked.observe(sample(PRIOR, varied(rng), factor=math.exp(rng.gauss(0, 0.3))))
        _ = asked.cost, idle.cost
    assert 0.1 < idle.doubt < 0.5
    assert asked.doubt < idle.doubt / 4
