"""What prompts cost in an engine, learned from its steps, in virtual time."""

import pytest

from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillCost, PrefillWork
from anbar.tier.step_times import FEWEST_SAMPLES, FEWEST_TOKENS, MOST_AHEAD, StepTimes

TRUTH = PrefillCost(3e-3, 2e-7, overhead_s=0.04, s_per_answer=0.005)
"""A laptop's."""


class Engine:
    """An engine that takes the time it takes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.steps = StepTimes(self.clock)

    def step(self, num_tokens: int, *, before: int = 0, num_decoding: int = 0) -> None:
        work = PrefillWork.of(before + num_tokens, before) if num_tokens else PrefillWork()
        self.steps.scheduled(work, num_decoding)
        self.clock.advance(TRUTH.overhead_s + TRUTH.work_seconds(work) + TRUTH.s_per_answer * num_decoding)
        self.steps.ended()


def thousand_s(engine: Engine) -> float:
    """What a thousand tokens are thought to take."""
    assert engine.steps.cost is not None
    return engine.steps.cost.work_seconds(PrefillWork.of(1000))


def test_costs_are_learned_from_steps() -> None:
    """Prompts of several lengths, in chunks, with and without answers beside them, and steps of answers alone
    in between: what a thousand tokens cost is known within a fifth."""
    engine = Engine()
    for num_tokens in (150, 400, 900, 2000) * 10:
        engine.step(num_tokens, num_decoding=num_tokens % 7)
        engine.step(512, before=num_tokens)
        engine.step(0, num_decoding=4)
    assert thousand_s(engine) == pytest.approx(TRUTH.work_seconds(PrefillWork.of(1000)), rel=0.2)


def test_small_steps_teach_nothing() -> None:
    """Their time is overhead: nothing is known after any number of them."""
    engine = Engine()
    for _ in range(50):
        engine.step(FEWEST_TOKENS - 1)
    assert engine.steps.cost is None
    for _ in range(FEWEST_SAMPLES):
        engine.step(FEWEST_TOKENS)
    assert engine.steps.cost is not None


def test_time_between_steps_is_no_ones() -> None:
    """An engine that had nothing to do for an hour is no slower for it."""
    engine, rested = Engine(), Engine()
    for _ in range(10):
        engine.step(500)
        rested.step(500)
        rested.clock.advance(3600.0)
    assert thousand_s(rested) == pytest.approx(thousand_s(engine))
    assert rested.steps.computing_s == pytest.approx(engine.steps.computing_s)


def test_a_step_that_is_scheduled_ahead_begins_when_the_one_before_ends() -> None:
    """The engine schedules the next step while one runs: each is as long as if they had come one by one."""
    engine, ahead = Engine(), Engine()
    for _ in range(10):
        engine.step(500)
    work = PrefillWork.of(500)
    seconds = TRUTH.overhead_s + TRUTH.work_seconds(work)
    ahead.steps.scheduled(work, 0)
    for _ in range(9):
        ahead.steps.scheduled(work, 0)
        ahead.clock.advance(seconds)
        ahead.steps.ended()
    ahead.clock.advance(seconds)
    ahead.steps.ended()
    assert thousand_s(ahead) == pytest.approx(thousand_s(engine))


def test_ends_that_are_not_told() -> None:
    """Steps are scheduled and their ends are never heard of: nothing is learned, and nothing grows."""
    engine = Engine()
    for _ in range(100):
        engine.steps.scheduled(PrefillWork.of(500), 0)
        engine.clock.advance(1.0)
    assert engine.steps.cost is None
    for _ in range(MOST_AHEAD + 100):
        engine.steps.ended()
    assert engine.steps.computing_s <= MOST_AHEAD * 100.0


def test_seconds_of_computing_are_summed() -> None:
    """What prompts took of the steps, once it is known without the overhead and without answers."""
    engine = Engine()
    for _ in range(40):
        engine.step(1000)
    before_s = engine.steps.computing_s
    engine.step(1000, num_decoding=10)
    took_s = engine.steps.computing_s - before_s
    assert took_s == pytest.approx(TRUTH.work_seconds(PrefillWork.of(1000)), rel=0.2)
    engine.step(0, num_decoding=10)
    assert engine.steps.computing_s == before_s + took_s
