"""The prompts before a new one, in seconds of an engine's work."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost, PrefillWork
from anbar.core.events import Tier
from anbar.route.costs import CostGroup
from anbar.route.waiting import PrefillQueue, QueuedPrompt

from .builders import view


def prompt(num_tokens: int, seconds: float = 1.0, *, streams: bool = True) -> QueuedPrompt:
    return QueuedPrompt(PrefillWork.of(num_tokens), seconds, streams)


def test_the_first_is_worked_on_from_when_it_was_sent_or_the_one_before_was_answered() -> None:
    """Three prompts sent at 0, 1 and 2; the first is answered at 4. Then the engine has worked on the second
    since 4, not since it was sent."""
    queue, prompts = PrefillQueue(), [prompt(100 * (n + 1), 5.0) for n in range(3)]
    for at, each in enumerate(prompts):
        queue.add(each, float(at))
    assert (queue.done_s(3.0), queue.work) == (3.0, PrefillWork(600, 140_000))
    queue.answered(prompts[0], 4.0)
    assert (queue.done_s(4.5), queue.work) == (0.5, PrefillWork(500, 130_000))


def test_no_more_is_done_of_the_first_than_it_takes() -> None:
    """One that takes longer than predicted does not make those behind it shorter."""
    queue = PrefillQueue()
    queue.add(prompt(100, 2.0), 0.0)
    queue.add(prompt(100, 2.0), 0.0)
    assert queue.done_s(60.0) == 2.0


def test_one_that_is_given_up_takes_its_work_along() -> None:
    """The first is cancelled: the engine begins with the second now. One in the middle is cancelled: the
    first goes on. One that was answered is gone already."""
    queue, prompts = PrefillQueue(), [prompt(n) for n in (1, 2, 3)]
    for each in prompts:
        queue.add(each, 0.0)
    queue.discard(prompts[1], 0.25)
    assert (queue.done_s(0.5), queue.tokens) == (0.5, 4)
    queue.discard(prompts[0], 0.5)
    assert (queue.done_s(0.75), queue.tokens) == (0.25, 3)
    assert queue.answered(prompts[2], 1.0)
    queue.discard(prompts[2], 1.0)
    assert (len(queue), queue.work, queue.done_s(2.0)) == (0, PrefillWork(), 0.0)


def test_prompts_whose_first_token_is_not_seen_leave_when_their_time_is_over() -> None:
    """Answers that are not streamed show nothing until they end: their prompts count for the predicted time,
    one after the other, or until one that was sent later is answered."""
    queue, hidden = PrefillQueue(), [prompt(10, 2.0, streams=False) for _ in range(3)]
    last = prompt(5, 2.0)
    for each in (*hidden, last):
        queue.add(each, 0.0)
    queue.pass_time(1.9)
    assert queue.tokens == 35
    queue.pass_time(4.5)
    assert (queue.tokens, queue.done_s(4.5)) == (15, 0.5)
    assert queue.answered(last, 5.0)
    assert len(queue) == 0


def test_a_streamed_one_stays_until_it_is_answered() -> None:
    """However late, and also when one that was sent after it came first: that one is out of order, and the
    engine goes on with the other."""
    queue, first, second = PrefillQueue(), prompt(10, 1.0), prompt(5, 1.0)
    queue.add(first, 0.0)
    queue.add(second, 0.0)
    queue.pass_time(100.0)
    assert not queue.answered(second, 100.0)
    assert (queue.tokens, queue.done_s(100.0)) == (10, 1.0)
    assert queue.answered(first, 100.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add hidden", "answered", "discard", "pass"]),
            st.integers(0, 5),
            st.integers(1, 100),
            st.sampled_from([0.0, 0.5, 3.0]),
        )
    )
)
def test_work_is_the_sum_of_what_is_queued(steps: list[tuple[str, int, int, float]]) -> None:
    """Any sequence: the totals are those of prompts that were added and have neither been answered, given up
    nor outlived; what is done is between nothing and what the first one takes; all gone is exactly nothing.
    """
    queue, now_s = PrefillQueue(), 0.0
    known: dict[int, QueuedPrompt] = {}
    for step, name, tokens, later_s in steps:
        now_s += later_s
        if step.startswith("add") and name not in known:
            known[name] = prompt(tokens, 2.0, streams=step == "add")
            queue.add(known[name], now_s)
        elif step == "answered" and name in known:
            queue.answered(known[name], now_s)
            known.pop(name)
        elif step == "discard" and name in known:
            queue.discard(known.pop(name), now_s)
        else:
            queue.pass_time(now_s)
        seen = [each for each in known.values() if each.shows_first_token]
        assert sum(each.work.tokens for each in seen) <= queue.tokens
        assert queue.tokens <= sum(each.work.tokens for each in known.values())
        assert len(seen) <= len(queue) <= len(known)
        assert 0 <= queue.done_s(now_s) <= 2.0
    for each in known.values():
        queue.discard(each, now_s)
    assert (len(queue), queue.work, queue.done_s(now_s)) == (0, PrefillWork(), 0.0)


def test_the_wait_is_the_work_of_each_less_what_is_done() -> None:
    """Four prompts of 1,000 tokens take less than one of 4,000, since attention is quadratic; a head start of
    two seconds counts, and no wait is negative."""
    cost = PrefillCost(1e-3, 1e-7, 0.5)
    many = view("a", prefill=cost, queued=4000, pairs=4_000_000)
    one = view("a", prefill=cost, queued=4000, pairs=16_000_000)
    assert (round(many.wait_s, 9), round(one.wait_s, 9)) == (4.4, 5.6)
    assert round(view("a", prefill=cost, queued=4000, pairs=16_000_000, done_s=2.0).wait_s, 9) == 3.6
    assert view("a", prefill=cost, queued=10, done_s=2.0).wait_s == 0.0


def test_engines_that_know_nothing_of_loads_have_the_assumed_costs() -> None:
    """Without a cost file and without a load: a share of computing."""
    loads = CostGroup(PrefillCost(1e-3)).join().loads
    assert {tier: round(cost.s_per_token, 9) for tier, cost in loads.items()} == {
        Tier.HOST: 5e-5,
        Tier.SHARED: 1e-4,
    }
