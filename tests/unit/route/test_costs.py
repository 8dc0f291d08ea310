"""Learning what it takes to load from host memory and from a store."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import LoadCost, PrefillCost, PrefillWork
from anbar.core.events import Tier
from anbar.route.costs import EAGER, CostGroup, EngineCosts, Finished

COST = PrefillCost(1e-3, 1e-8, 0.01)


def loaded(
    num_tokens: int,
    *,
    host: int = 0,
    shared: int = 0,
    host_s: float = 4e-4,
    shared_s: float = 7e-4,
    factor: float = 1.0,
) -> Finished:
    """A prompt of which tokens came from tiers that need so many seconds for each."""
    seconds = COST.seconds(num_tokens, host + shared) + host * host_s + shared * shared_s
    work = PrefillWork.of(num_tokens, host + shared)
    return Finished(work, seconds * factor, loaded={Tier.HOST: host, Tier.SHARED: shared})


def ready() -> EngineCosts:
    """An engine whose prefill is as the prior says."""
    return CostGroup(COST).join()


def test_loads_are_learned_and_computing_is_not_mistaken_for_them() -> None:
    """Twenty requests that loaded most of their prompts, noise included: seconds per token of both tiers come
    within a fifth of the truth, though they were assumed to be eight times less; the prefill stays."""
    costs, rng = ready(), Random(4)
    for _ in range(20):
        noise = math.exp(rng.gauss(0, 0.1))
        costs.observe(loaded(2000, host=rng.randint(1200, 1900), factor=noise))
        costs.observe(loaded(3000, shared=rng.randint(2000, 2900), factor=noise))
    assert costs.loads[Tier.HOST].s_per_token == pytest.approx(4e-4, rel=0.2)
    assert costs.loads[Tier.SHARED].s_per_token == pytest.approx(7e-4, rel=0.2)
    assert costs.prefill == COST
    assert costs.num_loads(Tier.HOST) == costs.num_loads(Tier.SHARED) == 20


def test_a_prompt_that_was_mostly_computed_teaches_the_prefill() -> None:
    """Its load is taken off as predicted, and nothing is learned of the tier."""
    costs = ready()
    before = costs.loads[Tier.HOST].s_per_token / costs.prefill.a_s_per_token
    for _ in range(30):
        costs.observe(
            Finished(PrefillWork.of(3000, 300), 2 * COST.seconds(3000, 300), loaded={Tier.HOST: 300})
        )
    assert costs.prefill.seconds(3000) == pytest.approx(2 * COST.seconds(3000), rel=0.1)
    assert costs.loads[Tier.HOST].s_per_token / costs.prefill.a_s_per_token == pytest.approx(before)
    assert costs.num_loads(Tier.HOST) == 0


def test_both_tiers_in_one_request_are_told_apart_by_others() -> None:
    """Requests that load from both, some more from one and some from the other."""
    costs, rng = ready(), Random(9)
    for _ in range(100):
        host = rng.randint(0, 2000)
        costs.observe(loaded(2500, host=host, shared=2000 - host))
    assert costs.loads[Tier.HOST].s_per_token == pytest.approx(4e-4, rel=0.3)
    assert costs.loads[Tier.SHARED].s_per_token == pytest.approx(7e-4, rel=0.3)


def test_a_load_costs_no_less_than_nothing_and_no_more_than_computing() -> None:
    """Whatever is left over for it."""
    slow, quick = ready(), ready()
    for _ in range(50):
        slow.observe(loaded(2000, host=1900, factor=1000.0))
        quick.observe(Finished(PrefillWork.of(2000, 1900), 1e-9, loaded={Tier.HOST: 1900}))
    assert slow.loads[Tier.HOST].s_per_token == COST.a_s_per_token
    assert quick.loads[Tier.HOST].s_per_token == 0.0


def test_one_slow_load_does_not_matter_much() -> None:
    """Of fifty requests one took a minute: the estimate moves, but not to the bound."""
    costs = ready()
    for number in range(50):
        costs.observe(loaded(2000, host=1900, factor=1.0 if number != 40 else 100.0))
    assert 4e-4 <= costs.loads[Tier.HOST].s_per_token < 6e-4


def test_engines_alike_expect_the_same_of_their_tiers() -> None:
    """An engine that has loaded nothing yet must not look as if its loads were nearly free."""
    group = CostGroup(COST)
    busy, idle = group.join(), group.join()
    for _ in range(10):
        busy.observe(loaded(2000, host=1900))
    assert idle.loads[Tier.HOST].s_per_token == pytest.approx(4e-4, rel=0.2)
    assert idle.num_loads(Tier.HOST) == 0


def test_what_is_known_of_a_tier_is_where_learning_begins() -> None:
    """A cost file says what a copy from host memory takes: that, and not the assumption, holds at first."""
    costs = CostGroup(COST, {Tier.HOST: LoadCost(2e-4, 0.003)}).join()
    assert costs.loads[Tier.HOST].seconds(1000) == pytest.approx(0.203)
    assert costs.loads[Tier.SHARED].s_per_token == pytest.approx(1e-4)
    assert costs.loads[Tier.HOST].seconds(0) == 0.0


def test_what_overtook_another_or_loaded_some_teaches_no_prefill() -> None:
    """A prompt is loaded from a store while one that was sent later is computed: how much of the queue the
    later one waited for, nobody knows. Nor what of a prompt that was loaded by a third took how long."""
    costs = ready()
    work = PrefillWork.of(2000)
    costs.observe(Finished(work, 100.0, PrefillWork.of(50), is_clear=False))
    costs.observe(Finished(work, 100.0, loaded={Tier.HOST: 1000, Tier.SHARED: 0}))
    assert (costs.learner.num_samples, costs.num_loads(Tier.HOST), costs.prefill) == (0, 0, COST)


def test_a_look_makes_nothing_new() -> None:
    """Every request looks at every engine."""
    costs = ready()
    assert costs.loads is costs.loads
    costs.observe(loaded(2000, host=1900))
    assert costs.loads is costs.loads


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.floats(width=64)),
        max_size=20,
    )
)
def test_odd_requests_break_nothing(requests: list[tuple[int, int, int, float]]) -> None:
    """Any times and any counts: all costs stay finite and within their bounds."""
    costs = ready()
    for num_tokens, host, shared, seconds in requests:
        work = PrefillWork.of(num_tokens, host + shared)
        costs.observe(Finished(work, seconds, loaded={Tier.HOST: host, Tier.SHARED: shared}))
    a = costs.prefill.a_s_per_token
    assert 0 < a < math.inf
    assert all(0 <= cost.s_per_token <= a for cost in costs.loads.values())


def test_how_long_answers_run_is_learned_of_the_engine_and_until_then_of_the_others() -> None:
    """A mean that fades; what showed no first token says nothing, and an engine whose place was taken by
    another begins anew."""
    group = CostGroup(COST)
    one, other = group.join(), group.join()
    work = PrefillWork.of(2000)
    assert one.answer_s == 0.0
    for seconds in (2.0, 4.0, math.nan, -1.0, math.inf):
        one.observe(Finished(work, COST.seconds(2000), answer_s=seconds))
    assert (one.answer_s, other.answer_s) == (3.0, 3.0)
    other.observe(Finished(work, COST.seconds(2000), answer_s=9.0))
    assert (one.answer_s, other.answer_s) == (3.0, 9.0)
    for _ in range(1000):
        one.observe(Finished(work, COST.seconds(2000), answer_s=1.0))
    assert one.answer_s == pytest.approx(1.0, abs=1e-3)
    other.forget()
    assert other.answer_s == pytest.approx(1.0, abs=1e-3)


def test_of_hundreds_of_requests_a_second_few_teach() -> None:
    """The first ones of an engine all do, at whatever pace; then one in ten milliseconds at most, and all of
    those that come more slowly."""
    costs = ready()
    while costs.learner.num_samples < EAGER:
        assert costs.is_due(1.0)
        costs.observe(Finished(PrefillWork.of(1000), 0.1))
    assert [costs.is_due(1.0 + at / 1000) for at in range(25)].count(True) == 2
    assert all(costs.is_due(2.0 + at / 50) for at in range(25))
