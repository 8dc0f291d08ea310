"""Lookups, loads, stores, admission and breaker together, driven as vLLM's scheduler and tiering manager
drive them, over a store that answers whatever it likes, whenever it likes, or not at all."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillCost, PrefillWork
from anbar.tier.admission import Admission, Run
from anbar.tier.breaker import Breaker, Verdict, judge
from anbar.tier.load_speed import LoadSpeed
from anbar.tier.lookups import Answer, Lookups, Question
from anbar.tier.pressure import Pressure
from anbar.tier.reuse import ReuseSketch
from anbar.tier.step_times import StepTimes
from anbar.tier.store import Outcome
from anbar.tier.store_gate import StoreGate
from anbar.tier.tally import Tally
from anbar.tier.transfers import Call, Direction, Finished, Job, TransferConfig, Transfers
from anbar.tier.wish import BYPASS, Storing, Wish

CHUNK, MAX_ROWS, TIMEOUT_S, MAX_WAIT_S = 32, 6, 0.5, 2.0

names = st.sampled_from("rstu")
prompts = st.tuples(st.sampled_from("ab"), st.integers(1, 9))
outcomes = st.lists(st.sampled_from(Outcome), min_size=8, max_size=8)
wishes = st.builds(
    Wish,
    scope=st.sampled_from(["", "tenant"]),
    storing=st.sampled_from(Storing),
    wait_s=st.sampled_from([None, 0.0, MAX_WAIT_S]),
    expect_tokens=st.sampled_from([0, 0, 2 * CHUNK]),
    prefill=st.sampled_from([None, PrefillCost(1e-9), PrefillCost(1.0)]),
) | st.just(BYPASS)


@dataclass
class Request:
    wish: Wish
    keys: list[bytes]
    hits: list[bytes] = field(default_factory=list)
    """To be loaded at the end of the step."""


class TierMachine(RuleBasedStateMachine):
    """What a step does is one rule, so that requests come, go and are answered anywhere between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.tally = ManualClock(), Tally()
        self.breaker = Breaker(self.clock)
        config = TransferConfig(100, max_store_rows=MAX_ROWS, max_load_rows=MAX_ROWS, rows_per_call=2)
        self.transfers = Transfers(self.clock, self.breaker, self.tally, config)
        self.speed, self.steps = LoadSpeed(self.clock), StepTimes(self.clock)
        self.admission = Admission(
            self.speed, self.steps, self.tally, lambda: self.transfers.pinned(Direction.LOAD), 100
        )
        self.lookups = Lookups(
            self.clock, self.breaker, self.tally, timeout_s=TIMEOUT_S, batch_keys=3, admission=self.admission
        )
        self.gate = StoreGate(Pressure(self.clock), ReuseSketch(16), self.tally)
        self.requests: dict[str, Request] = {}
        self.pending: list[Question | Call] = []
        self.jobs: dict[int, Job] = {}
        self.ended: list[Finished] = []

    @rule(name=names, wish=wishes, prompt=prompts)
    def come(self, name: str, wish: Wish, prompt: tuple[str, int]) -> None:
        """A request comes; one of the same name is forgotten."""
        family, length = prompt
        keys = [f"{family}{index}".encode() + bytes(4) for index in range(length)]
        self.requests[name] = Request(wish, keys)
        self.lookups.open(name, wish)

    @rule(name=names)
    def go(self, name: str) -> None:
        self.requests.pop(name, None)
        self.lookups.close(name)

    @rule(waiting=st.sets(names), preempted=st.sets(names))
    def step(self, waiting: set[str], preempted: set[str]) -> None:
        """Some requests are asked for, then what was found is loaded, then questions are sent."""
        for name in sorted(waiting & self.requests.keys()):
            self.scan(name)
        for name, request in self.requests.items():
            if request.hits:
                keys, request.hits = request.hits, []
                self.load(name, request, keys)
        self.admission.step_ended()
        for name in sorted(preempted):
            self.lookups.reconsider(name)
        self.pending += self.lookups.take_questions()

    @rule(name=names)
    def store(self, name: str) -> None:
        """A request's chunks were computed."""
        request = self.requests.get(name)
        if request is None:
            return
        job = self.job(name, request, request.keys)
        ends = [CHUNK * (1 + index) * 20 for index in range(len(job.keys))]
        always = request.wish.storing is Storing.ALWAYS
        kept = self.gate.admit(job.scope, job.keys, ends, always=always)
        self.pending += self.transfers.store(job, wanted=request.wish.may_store, kept=kept)
        self.report()

    @rule(index=st.integers(0, 50), said=outcomes | st.none(), seconds=st.floats(0.0, 10.0))
    def answer(self, index: int, said: list[Outcome] | None, seconds: float) -> None:
        """The store answers one of the calls, out of order; None: the breaker refused it."""
        if self.pending:
            call = self.pending.pop(index % len(self.pending))
            self.settle(call, said[: len(call.keys)] if said is not None else None, seconds)

    @rule(seconds=st.sampled_from([0.001, 0.1, TIMEOUT_S, 40.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(verdict=st.sampled_from(Verdict))
    def hear(self, verdict: Verdict) -> None:
        """Another call on the store went well, or did not."""
        ticket = self.breaker.admit()
        if ticket is not None:
            self.breaker.record(ticket, verdict)

    @rule(num_tokens=st.sampled_from([0, 64, 500, 2000]), seconds=st.floats(0.001, 5.0))
    def compute(self, num_tokens: int, seconds: float) -> None:
        """The engine computes a step."""
        self.steps.scheduled(PrefillWork.of(num_tokens) if num_tokens else PrefillWork(), 1)
        self.clock.advance(seconds)
        self.steps.ended()

    @rule()
    def full(self) -> None:
        self.gate.pressure.full()

    @invariant()
    def rows_are_bounded(self) -> None:
        for direction in Direction:
            calls = [call for call in self.pending if isinstance(call, Call) and call.direction is direction]
            assert self.transfers.pinned(direction) == sum(len(call.rows) for call in calls) <= MAX_ROWS

    def teardown(self) -> None:
        """Whatever was asked is answered within its bound, although the store says nothing any more; then it
        says everything, and every job has ended once, nothing is pinned and nothing is kept."""
        for name in self.requests:
            self.scan(name)
        self.pending += self.lookups.take_questions()
        self.clock.advance(MAX_WAIT_S + 0.001)  # in floats, 0.002 + 2.0 - 0.002 is less than 2.0
        for name, request in self.requests.items():
            assert Answer.RETRY not in self.scan(name), name
            request.hits.clear()
        self.pending += self.lookups.take_questions()
        for call in self.pending:
            self.settle(call, [Outcome.HIT] * len(call.keys), 0.1)
        self.pending.clear()
        assert sorted(end.job for end in self.ended) == sorted(self.jobs)
        assert self.transfers.num_running == sum(self.transfers.pinned(way) for way in Direction) == 0
        for name in list(self.requests):
            self.lookups.close(name)
        assert not self.lookups._waiting
        assert not self.lookups._requests
        assert not self.admission._loading

    def scan(self, name: str) -> list[Answer]:
        """As `_maximal_prefix_lookup` does: in order, past what is not known, up to the first miss. What is
        being loaded is asked for no more."""
        request = self.requests[name]
        answers = []
        for index, key in enumerate(request.keys):
            if key in request.hits:
                continue
            answers.append(self.lookups.answer(name, key, CHUNK * (index + 1), CHUNK))
            if answers[-1] is Answer.MISS:
                break
            if answers[-1] is Answer.HIT:
                request.hits.append(key)
        return answers

    def load(self, name: str, request: Request, keys: list[bytes]) -> None:
        job = self.job(name, request, keys)
        self.lookups.loading(name, keys)
        run = Run(0, CHUNK * len(keys), len(keys))
        self.admission.started(job.id, self.lookups.decision(name), run, request.wish.prefill)
        self.pending += self.transfers.load(job)
        self.report()

    def job(self, name: str, request: Request, keys: list[bytes]) -> Job:
        job = Job(len(self.jobs), name, request.wish.scope, tuple(keys), tuple(range(len(keys))))
        self.jobs[job.id] = job
        return job

    def settle(self, call: Question | Call, said: list[Outcome] | None, seconds: float) -> None:
        ticket = self.breaker.admit() if said is not None else None
        if ticket is not None and said is not None:
            self.breaker.record(ticket, judge(said))
        if isinstance(call, Question):
            self.lookups.settle(call, said)
        else:
            self.admission.called(call.job, seconds)
            self.transfers.settle(call, said)
        self.report()

    def report(self) -> None:
        for finished in self.transfers.take_finished():
            self.ended.append(finished)
            job = self.jobs[finished.job]
            told = [*finished.good, *finished.failed]
            assert len(told) == len(set(told))
            assert set(told) <= set(job.keys)
            if finished.direction is Direction.LOAD:
                assert set(told) == set(job.keys)
                self.admission.ended(finished)
                self.lookups.give_up(finished.request, finished.failed)
            else:
                self.lookups.stored(finished.request, finished.good)


TierMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTier = TierMachine.TestCase
