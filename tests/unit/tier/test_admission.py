"""Whether loading pays: the comparison itself, and what lookups make of it."""

from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillCost, PrefillWork, TierCost
from anbar.tier.admission import EXPLORE_EVERY, Admission, Decision, Run, pays
from anbar.tier.breaker import Breaker
from anbar.tier.load_speed import LoadSpeed
from anbar.tier.lookups import Answer, Lookups
from anbar.tier.step_times import FEWEST_TOKENS, StepTimes
from anbar.tier.store import Outcome
from anbar.tier.tally import Series, Tally
from anbar.tier.transfers import Direction, Finished
from anbar.tier.wish import DEFAULT, Wish

CHUNK, ROW_BYTES = 32, 1 << 20
TIMEOUT_S = 0.5
COSTLY, CHEAP = PrefillCost(1e-3, 1e-8), PrefillCost(1e-7)


class Case(NamedTuple):
    """A run, and all that matters for it."""

    start: int
    num: int
    latency_s: float
    bytes_per_s: float
    a: float
    b: float
    queued: int

    def pays(self) -> bool:
        prefill, cost = PrefillCost(self.a, self.b), TierCost(self.latency_s, self.bytes_per_s)
        return pays(run_of(self.start, self.num), prefill, cost, ROW_BYTES, self.queued)


cases = st.builds(
    Case,
    start=st.integers(0, 100_000),
    num=st.integers(1, 2000),
    latency_s=st.floats(0.0, 2.0),
    bytes_per_s=st.floats(1e6, 1e11),
    a=st.floats(1e-7, 1e-1),
    b=st.floats(0.0, 1e-5),
    queued=st.integers(0, 1 << 36),
)
factors = st.floats(1.0, 100.0)


def run_of(start: int, num_chunks: int) -> Run:
    return Run(start, start + num_chunks * CHUNK, num_chunks)


@given(cases, st.integers(1, 2000))
def test_a_longer_run_pays_if_a_shorter_one_does(case: Case, more: int) -> None:
    """Of the same prefix, whatever the costs."""
    assume(case.pays())
    # A little slack: equal to the last bit is neither.
    better = case._replace(latency_s=case.latency_s * 0.999, bytes_per_s=case.bytes_per_s * 1.001)
    assert better._replace(num=case.num + more).pays()


@given(cases, st.tuples(*[factors] * 5), st.integers(0, 10_000))
def test_better_loads_and_worse_prefill_never_skip(
    case: Case, by: tuple[float, float, float, float, float], deeper: int
) -> None:
    """A store of less latency, more bandwidth and a shorter queue, an engine that computes slower, a place
    deeper in the prompt: a run that pays still does."""
    assume(case.pays())
    assert Case(
        start=case.start + deeper,
        num=case.num,
        latency_s=case.latency_s / by[0],
        bytes_per_s=case.bytes_per_s * by[1],
        a=case.a * by[2],
        b=case.b * by[3],
        queued=int(case.queued / by[4]),
    ).pays()


def test_break_even() -> None:
    """1 ms a token against 10 ms and 1 ms a chunk of 32: one token's worth decides. The queue counts."""
    prefill, cost = PrefillCost(1e-3), TierCost(0.031, ROW_BYTES / 1e-3)
    assert pays(run_of(0, 1), prefill, cost, ROW_BYTES)
    assert not pays(run_of(0, 1), prefill, TierCost(0.0311, cost.bytes_per_s), ROW_BYTES)
    assert not pays(run_of(0, 1), prefill, cost, ROW_BYTES, queued_bytes=ROW_BYTES)
    assert pays(run_of(0, 2), prefill, cost, ROW_BYTES, queued_bytes=ROW_BYTES)


class Rig:
    """Lookups that weigh, over a store that takes 10 ms and 1 ms for each chunk."""

    def __init__(self, prefill: PrefillCost | None) -> None:
        self.clock = ManualClock()
        self.tally = Tally()
        self.speed = LoadSpeed(self.clock)
        self.steps = StepTimes(self.clock)
        self.prefill = prefill
        self.queued = 0
        self.admission = Admission(self.speed, self.steps, self.tally, lambda: self.queued, ROW_BYTES)
        breaker = Breaker(self.clock)
        self.lookups = Lookups(
            self.clock, breaker, self.tally, timeout_s=TIMEOUT_S, batch_keys=4, admission=self.admission
        )
        self.num_jobs = 0

    def teach(self) -> "Rig":
        for num in (1, 4, 16, 64) * 8:
            self.speed.observe(num * ROW_BYTES, 0.01 + num * 1e-3)
        return self

    def open(self, name: str, **fields: object) -> None:
        self.lookups.open(name, Wish(prefill=self.prefill, **fields))  # type: ignore[arg-type]

    def ask(self, name: str, num: int, start: int = 0) -> list[Answer]:
        """One step's questions for a prompt, as vLLM asks: up to the first miss."""
        answers = []
        for index in range(start, start + num):
            answers.append(self.lookups.answer(name, key(index), (index + 1) * CHUNK, CHUNK))
            if answers[-1] is Answer.MISS:
                break
        return answers

    def settle(self, num_there: int, num_questions: int = 1000) -> None:
        """The store answers: the first chunks are there."""
        there = {key(index) for index in range(num_there)}
        for question in self.lookups.take_questions()[:num_questions]:
            outcomes = [Outcome.HIT if k in there else Outcome.MISS for k in question.keys]
            self.lookups.settle(question, outcomes)

    def end_step(self) -> None:
        self.admission.step_ended()

    def load(self, name: str, num: int, seconds: float, *, good: int | None = None) -> None:
        """A load of the first chunks, to its end."""
        self.num_jobs += 1
        run = run_of(0, num)
        self.admission.started(self.num_jobs, self.lookups.decision(name), run, self.prefill)
        self.clock.advance(seconds)
        keys = tuple(key(index) for index in range(num))
        num_good = num if good is None else good
        self.admission.ended(
            Finished(
                self.num_jobs,
                name,
                Direction.LOAD,
                num_good == num,
                keys[:num_good],
                keys[num_good:],
                seconds,
                num_good * ROW_BYTES,
            )
        )

    def counted(self, series: Series) -> dict[str, float]:
        return {label: amount for (s, label), amount in self.tally.take().items() if s is series}


def key(index: int, group: int = 0) -> bytes:
    return index.to_bytes(8, "big") + group.to_bytes(4, "big")


def test_a_run_that_pays_is_loaded() -> None:
    """Ten chunks at 1 ms a token: every one is a hit, in the step in which the answers are there."""
    rig = Rig(COSTLY).teach()
    rig.open("r")
    assert set(rig.ask("r", 12)) == {Answer.RETRY}
    rig.settle(10)
    assert rig.ask("r", 12) == [Answer.HIT] * 10 + [Answer.MISS]
    assert rig.lookups.decision("r") is Decision.LOAD
    assert rig.counted(Series.DECISIONS) == {"load": 1}


def test_a_run_that_does_not_pay_is_as_if_it_were_not_there() -> None:
    """At 0.1 µs a token computing is sooner: a miss, told as such, and still one when it is asked again. The
    host tier has the rest of the answer: nothing is loaded."""
    rig = Rig(CHEAP).teach()
    rig.open("r")
    rig.ask("r", 12)
    rig.settle(10)
    assert rig.ask("r", 12) == [Answer.MISS]
    assert rig.ask("r", 12) == [Answer.MISS]
    assert rig.lookups.decision("r") is Decision.SKIP
    counts = rig.tally.take()
    assert counts[Series.LOOKUPS, "skipped_by_break_even"] == 10
    assert counts[Series.DECISIONS, "skip"] == 1
    assert counts[Series.COMPUTE_SECONDS, "skip"] == pytest.approx(CHEAP.work_seconds(PrefillWork.of(320)))
    assert counts[Series.LOAD_SECONDS, "skip"] == pytest.approx(0.02, rel=0.3)


def test_what_is_not_known_is_loaded() -> None:
    """Before the first load, and before it is known what computing costs."""
    for rig in (Rig(CHEAP), Rig(None).teach()):
        rig.open("r")
        rig.ask("r", 3)
        rig.settle(3)
        assert rig.ask("r", 3) == [Answer.HIT] * 3
        assert rig.lookups.decision("r") is Decision.UNKNOWN


def test_a_short_run_waits_for_what_may_make_it_longer() -> None:
    """Of eight chunks the answers to four are there, and four do not pay, but eight would: asked again until
    the other answer comes, and then all are hits."""
    rig = Rig(PrefillCost(1e-4)).teach()  # 3.2 ms a chunk
    rig.open("r")
    rig.ask("r", 8)
    first, second = rig.lookups.take_questions()
    rig.lookups.settle(first, [Outcome.HIT] * 4)
    assert rig.ask("r", 8) == [Answer.RETRY] * 8
    rig.lookups.settle(second, [Outcome.HIT] * 4)
    assert rig.ask("r", 8) == [Answer.HIT] * 8


def test_a_run_that_pays_already_does_not_wait() -> None:
    """The first four are worth it: they are loaded while the answer to the others is awaited."""
    rig = Rig(COSTLY).teach()
    rig.open("r")
    rig.ask("r", 8)
    first, _ = rig.lookups.take_questions()
    rig.lookups.settle(first, [Outcome.HIT] * 4)
    assert rig.ask("r", 8) == [Answer.HIT] * 4 + [Answer.RETRY] * 4


def test_an_answer_that_never_comes_ends_the_run() -> None:
    """The second answer is lost: at the bound the run is as long as it is, and what is there is decided
    on."""
    rig = Rig(CHEAP).teach()
    rig.open("r")
    rig.ask("r", 8)
    first, _ = rig.lookups.take_questions()
    rig.lookups.settle(first, [Outcome.HIT] * 4)
    rig.clock.advance(TIMEOUT_S - 0.01)
    assert rig.ask("r", 1) == [Answer.RETRY]
    rig.clock.advance(0.01)
    assert rig.ask("r", 1) == [Answer.MISS]


def test_where_the_prefix_begins_matters() -> None:
    """The device holds 100,000 tokens, and attention to them makes each further one costly: three chunks are
    loaded there that would be computed at the beginning of a prompt."""
    prefill = PrefillCost(1e-5, 2e-8)
    for start, answer in ((0, Answer.MISS), (3125, Answer.HIT)):
        rig = Rig(prefill).teach()
        rig.open("r")
        rig.ask("r", 3, start)
        rig.settle(4000)
        assert rig.ask("r", 3, start)[0] is answer


def test_what_is_queued_counts() -> None:
    """Eight chunks pay, but not behind a thousand others; those that were admitted in the same step count
    too, until they are loads or nothing."""
    rig = Rig(PrefillCost(1.3e-4)).teach()  # 33 ms for the eight
    for name, queued, answer in (("r", 1000, Answer.MISS), ("s", 0, Answer.HIT), ("t", 0, Answer.MISS)):
        rig.queued = queued
        rig.open(name)
        rig.ask(name, 8)
        rig.settle(8)
        for _ in range(2):
            assert rig.ask(name, 8)[0] is answer
        if name == "s":
            rig.admission._promised_rows *= 4
    rig.end_step()
    rig.open("u")
    rig.ask("u", 8)
    rig.settle(8)
    assert rig.ask("u", 8)[0] is Answer.HIT


def test_one_in_fifty_is_tried() -> None:
    """A store that is too slow is asked for one run in fifty, all the same: it might have become faster."""
    rig = Rig(CHEAP).teach()
    seen = []
    for index in range(2 * EXPLORE_EVERY):
        rig.open(f"r{index}")
        rig.ask(f"r{index}", 2)
        rig.settle(2)
        seen.append(rig.ask(f"r{index}", 2)[0])
    assert seen.count(Answer.HIT) == 2
    assert rig.counted(Series.DECISIONS) == {"skip": 2 * EXPLORE_EVERY - 2, "explore": 2}


def test_an_expected_prefix_is_not_weighed() -> None:
    """The router has had it computed elsewhere: it is loaded, whatever that takes."""
    rig = Rig(CHEAP).teach()
    rig.open("r", expect_tokens=3 * CHUNK)
    rig.ask("r", 3)
    rig.settle(3)
    assert rig.ask("r", 3) == [Answer.HIT] * 3
    assert rig.lookups.decision("r") is Decision.UNWEIGHED


def test_layers_that_are_asked_for_from_the_end_are_not_weighed() -> None:
    """A sliding window: the last chunks are asked for first."""
    rig = Rig(CHEAP).teach()
    rig.open("r")
    for index in (9, 8, 7):
        assert rig.lookups.answer("r", key(index), (index + 1) * CHUNK, CHUNK) is Answer.RETRY
    rig.settle(10)
    for index in (9, 8, 7):
        assert rig.lookups.answer("r", key(index), (index + 1) * CHUNK, CHUNK) is Answer.HIT


@pytest.mark.parametrize(("prefill", "answer"), [(COSTLY, Answer.HIT), (CHEAP, Answer.MISS)])
def test_other_layers_follow(prefill: PrefillCost, answer: Answer) -> None:
    """A model with two kinds of layers: the second kind's chunks are loaded where the first kind's are."""
    rig = Rig(prefill).teach()
    rig.open("r")
    rig.ask("r", 3)
    assert rig.lookups.answer("r", key(2, group=1), 3 * CHUNK, CHUNK) is Answer.RETRY
    for question in rig.lookups.take_questions():
        rig.lookups.settle(question, [Outcome.HIT] * len(question.keys))
    assert rig.ask("r", 3)[0] is answer
    assert rig.lookups.answer("r", key(2, group=1), 3 * CHUNK, CHUNK) is answer


def test_a_preempted_request_is_weighed_anew() -> None:
    """What was not worth loading at first is, when it is longer and the request begins again."""
    rig = Rig(PrefillCost(1e-4)).teach()
    rig.open("r")
    rig.ask("r", 4)
    rig.settle(4)
    assert rig.ask("r", 4) == [Answer.MISS]
    rig.lookups.reconsider("r")
    rig.lookups.reconsider("unknown")
    assert rig.ask("r", 12) == [Answer.RETRY] * 12
    rig.settle(12)
    assert rig.ask("r", 12) == [Answer.HIT] * 12


def test_a_preempted_request_that_is_not_longer_is_decided_a_step_later() -> None:
    """All answers are known from before: which keys there are is known at the end of the step."""
    rig = Rig(PrefillCost(1e-4)).teach()
    rig.open("r")
    rig.ask("r", 4)
    rig.settle(4)
    rig.ask("r", 4)
    rig.lookups.reconsider("r")
    assert rig.ask("r", 4) == [Answer.RETRY] * 4
    assert rig.lookups.take_questions() == []
    assert rig.ask("r", 4) == [Answer.MISS]


def test_loads_are_audited() -> None:
    """Computing ten chunks was predicted to take 0.32 s. Loaded in 0.02 s: 0.3 s are saved; in 1 s: 0.68 s
    are lost; half of them in 0.02 s: 0.14 s are saved."""
    rig = Rig(PrefillCost(1e-3)).teach()
    rig.open("r")
    rig.ask("r", 10)
    rig.settle(10)
    rig.ask("r", 10)
    rig.tally.take()
    rig.load("r", 10, 0.02)
    counts = rig.tally.take()
    assert counts[Series.SECONDS_SAVED, "load"] == pytest.approx(0.3)
    assert counts[Series.COMPUTE_SECONDS, "load"] == pytest.approx(0.32)
    assert counts[Series.LOAD_SECONDS, "load"] == pytest.approx(0.02, rel=0.3)
    rig.load("r", 10, 1.0)
    assert rig.counted(Series.SECONDS_FORGONE) == {"load": pytest.approx(0.68)}
    rig.load("r", 10, 0.02, good=5)
    assert rig.counted(Series.SECONDS_SAVED) == {"load": pytest.approx(0.14)}


def test_loads_teach() -> None:
    """Loads that take 100 times longer than before: the same run is not loaded any more."""
    rig = Rig(PrefillCost(1e-3)).teach()
    for _ in range(30):
        rig.load("r", 10, 2.0)
    rig.open("r")
    rig.ask("r", 10)
    rig.settle(10)
    assert rig.ask("r", 10) == [Answer.MISS]


def test_what_others_computed_meanwhile_is_no_part_of_a_load() -> None:
    """A load ends after 1 s, in which the engine computed another prompt for 0.9 s: it took 0.1 s. A call
    that took 0.25 s of it is more than that."""
    rig = Rig(PrefillCost(1e-3)).teach()
    for longest_s, gained in ((0.0, 0.22), (0.25, 0.07)):
        rig.tally.take()
        rig.admission.started(7, Decision.LOAD, run_of(0, 10), rig.prefill)
        rig.admission.called(7, longest_s)
        rig.steps.scheduled(PrefillWork.of(FEWEST_TOKENS - 1), 0)
        rig.clock.advance(0.9)
        rig.steps.ended()
        keys = tuple(key(index) for index in range(10))
        rig.admission.ended(Finished(7, "r", Direction.LOAD, True, keys, (), 1.0, 10 * ROW_BYTES))
        assert rig.counted(Series.SECONDS_SAVED) == {"load": pytest.approx(gained)}


def test_without_a_policy_everything_is_loaded() -> None:
    """Who builds lookups without admission gets what is there."""
    clock = ManualClock()
    lookups = Lookups(clock, Breaker(clock), Tally(), timeout_s=TIMEOUT_S)
    lookups.open("r", DEFAULT)
    lookups.answer("r", key(0), CHUNK, CHUNK)
    (question,) = lookups.take_questions()
    lookups.settle(question, [Outcome.HIT])
    assert lookups.answer("r", key(0), CHUNK, CHUNK) is Answer.HIT
