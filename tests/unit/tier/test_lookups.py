"""Lookups, in virtual time, with the store's answers given by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.tier.breaker import Breaker, Verdict
from anbar.tier.lookups import MAX_LOADS, Answer, Lookups, Question
from anbar.tier.store import Outcome
from anbar.tier.tally import Series, Tally
from anbar.tier.wish import BYPASS, DEFAULT, Wish

A, B, C = b"a", b"b", b"c"


class Rig:
    """Lookups with what they need."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock)
        self.tally = Tally()
        self.lookups = Lookups(self.clock, self.breaker, self.tally, timeout_s=0.5, batch_keys=2)

    def open(self, *requests: str, wish: Wish = DEFAULT) -> None:
        for request in requests:
            self.lookups.open(request, wish)

    def ask(self, request: str, *keys: bytes) -> list[Answer]:
        return [self.lookups.answer(request, key) for key in keys]

    def settle(self, outcome: Outcome | None) -> None:
        """The store gives every open question the same answer."""
        for question in self.lookups.take_questions():
            outcomes = None if outcome is None else [outcome] * len(question.keys)
            self.lookups.settle(question, outcomes)

    def counted(self) -> dict[str, float]:
        return {label: n for (series, label), n in self.tally.take().items() if series is Series.LOOKUPS}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_answers_come_a_step_later(rig: Rig) -> None:
    """Three keys are asked in one step, sent in batches of two, and answered in the next."""
    rig.open("r")
    assert rig.ask("r", A, B, C) == [Answer.RETRY] * 3
    questions = rig.lookups.take_questions()
    assert questions == [Question("", (A, B)), Question("", (C,))]
    assert rig.ask("r", A, B, C) == [Answer.RETRY] * 3
    assert rig.lookups.take_questions() == []
    rig.lookups.settle(questions[0], [Outcome.HIT, Outcome.MISS])
    assert rig.ask("r", A, B, C) == [Answer.HIT, Answer.MISS, Answer.RETRY]
    rig.lookups.settle(questions[1], [Outcome.HIT])
    assert rig.ask("r", C) == [Answer.HIT]
    assert rig.counted() == {"hit": 2, "miss": 1}


def test_requests_share_a_question(rig: Rig) -> None:
    """Two requests with one prefix: the key is asked once and both get the answer."""
    rig.open("r", "s")
    rig.ask("r", A)
    assert rig.lookups.take_questions() == [Question("", (A,))]
    rig.ask("s", A)
    assert rig.lookups.take_questions() == []
    rig.lookups.settle(Question("", (A,)), [Outcome.HIT])
    assert rig.ask("r", A) == rig.ask("s", A) == [Answer.HIT]


def test_scopes_do_not_share(rig: Rig) -> None:
    """The same key in two scopes is two questions with two answers."""
    rig.open("r", wish=Wish("tenant-a"))
    rig.open("s", wish=Wish("tenant-b"))
    rig.ask("r", A)
    rig.ask("s", A)
    questions = rig.lookups.take_questions()
    assert sorted(q.scope for q in questions) == ["tenant-a", "tenant-b"]
    rig.lookups.settle(Question("tenant-a", (A,)), [Outcome.HIT])
    rig.lookups.settle(Question("tenant-b", (A,)), [Outcome.MISS])
    assert rig.ask("r", A) == [Answer.HIT]
    assert rig.ask("s", A) == [Answer.MISS]


def test_a_silent_store_is_a_miss_in_time(rig: Rig) -> None:
    """The store never answers: MISS at the bound, and a late answer changes nothing any more."""
    rig.open("r")
    rig.ask("r", A)
    (question,) = rig.lookups.take_questions()
    rig.clock.advance(0.49)
    assert rig.ask("r", A) == [Answer.RETRY]
    rig.clock.advance(0.01)
    assert rig.ask("r", A) == [Answer.MISS]
    rig.lookups.settle(question, [Outcome.HIT])
    assert rig.ask("r", A) == [Answer.MISS]
    assert rig.counted() == {"timeout": 1}


def test_a_request_may_set_its_own_bound(rig: Rig) -> None:
    """A request that may wait 2 s gets an answer after 1 s; one that may not wait gets MISS a step later."""
    rig.open("patient", wish=Wish(wait_s=2.0))
    rig.open("hasty", wish=Wish(wait_s=0.0))
    assert rig.ask("patient", A) == rig.ask("hasty", A) == [Answer.RETRY]
    assert rig.ask("hasty", A) == [Answer.MISS]
    rig.clock.advance(1.0)
    rig.settle(Outcome.HIT)
    assert rig.ask("patient", A) == [Answer.HIT]


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.TIMEOUT, None])
def test_no_answer_is_a_miss(rig: Rig, outcome: Outcome | None) -> None:
    """A store that cannot tell, or a breaker that refused the call: MISS."""
    rig.open("r")
    rig.ask("r", A)
    rig.settle(outcome)
    assert rig.ask("r", A) == [Answer.MISS]


def test_an_open_breaker_is_a_miss_at_once(rig: Rig) -> None:
    """Nothing is asked while the breaker is open; a new request asks again after the pause."""
    ticket = rig.breaker.admit()
    assert ticket is not None
    rig.breaker.record(ticket, Verdict.TIMED_OUT)
    rig.open("r", "s")
    assert rig.ask("r", A) == [Answer.MISS]
    assert rig.lookups.take_questions() == []
    rig.clock.advance(1.0)
    assert rig.ask("s", A) == [Answer.RETRY]
    assert rig.counted() == {"refused": 1}


def test_a_failed_load_is_a_miss_for_ever(rig: Rig) -> None:
    """The store says it has the key, but it cannot be read: the request does not ask for it again, not even
    after it stored the key itself. Another request may try."""
    rig.open("r", "s")
    rig.ask("r", A)
    rig.settle(Outcome.HIT)
    rig.lookups.loading("r", [A])
    rig.lookups.give_up("r", [A])
    assert rig.ask("r", A) == [Answer.MISS]
    rig.lookups.stored("r", [A])
    assert rig.ask("r", A) == [Answer.MISS]
    assert rig.ask("s", A) == [Answer.RETRY]


def test_promotions_that_are_evicted_before_use_end(rig: Rig) -> None:
    """Host RAM is too small: the key is loaded, evicted, loaded, evicted; then it is given up."""
    rig.open("r")
    rig.ask("r", A)
    rig.settle(Outcome.HIT)
    for _ in range(MAX_LOADS):
        assert rig.ask("r", A) == [Answer.HIT]
        rig.lookups.loading("r", [A])
    assert rig.ask("r", A) == [Answer.MISS]
    rig.lookups.stored("r", [A])
    assert rig.ask("r", A) == [Answer.MISS]
    assert rig.counted() == {"hit": 1, "spent": 1}


def test_a_request_finds_what_it_stored(rig: Rig) -> None:
    """A cold prompt misses; its blocks are stored; preempted and evicted from host RAM, it may load them."""
    rig.open("r")
    rig.ask("r", A)
    rig.settle(Outcome.MISS)
    assert rig.ask("r", A) == [Answer.MISS]
    rig.lookups.stored("r", [A, B])
    assert rig.ask("r", A) == [Answer.HIT]
    assert rig.ask("r", B) == [Answer.RETRY]


def test_a_bypassing_request_never_hits(rig: Rig) -> None:
    """A request whose wish could not be read, and one that nobody opened: MISS, nothing asked."""
    rig.open("r", wish=BYPASS)
    assert rig.ask("r", A) == rig.ask("unknown", A) == [Answer.MISS]
    assert rig.lookups.take_questions() == []


def test_closed_requests_leave_nothing_behind(rig: Rig) -> None:
    """A request ends before its question was sent: it is not sent. Another ends before the answer: the answer
    is for whoever joined meanwhile."""
    rig.open("r", "s", "t")
    rig.ask("r", A)
    rig.lookups.close("r")
    assert rig.lookups.take_questions() == []
    rig.ask("s", B)
    (question,) = rig.lookups.take_questions()
    rig.lookups.close("s")
    assert rig.ask("t", B) == [Answer.RETRY]
    rig.lookups.settle(question, [Outcome.HIT])
    assert rig.ask("t", B) == [Answer.HIT]
    rig.lookups.close("s")
    assert rig.ask("t", A) == [Answer.RETRY]


def test_a_request_may_come_again(rig: Rig) -> None:
    """A request of the same name is opened anew while its key is looked up: the old question's answer is not
    for it, and its own question gets one."""
    rig.open("r")
    rig.ask("r", A)
    (question,) = rig.lookups.take_questions()
    rig.open("r")
    rig.lookups.settle(question, [Outcome.MISS])
    assert rig.ask("r", A) == [Answer.RETRY]
    rig.settle(Outcome.HIT)
    assert rig.ask("r", A) == [Answer.HIT]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from("rst"), st.booleans()),
        st.tuples(st.just("close"), st.sampled_from("rst"), st.none()),
        st.tuples(st.just("ask"), st.sampled_from("rst"), st.sampled_from([A, B, C])),
        st.tuples(st.just("send"), st.none(), st.none()),
        st.tuples(st.just("settle"), st.sampled_from([*Outcome, None]), st.none()),
        st.tuples(st.just("give up"), st.sampled_from("rst"), st.sampled_from([A, B, C])),
        st.tuples(st.just("stored"), st.sampled_from("rst"), st.sampled_from([A, B, C])),
        st.tuples(st.just("wait"), st.none(), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps)
def test_the_promises_hold_in_any_order(events: list[tuple[str, object, object]]) -> None:
    """Requests come, ask, load, store and go, and the store answers or not, in any order: nothing raises, a
    given-up key never hits again, an answer stays (but for a key that is stored), and when the bound has
    passed every open question is answered."""
    rig = Rig()
    open_questions: list[Question] = []
    given_up: set[tuple[str, bytes]] = set()
    final: dict[tuple[str, bytes], Answer] = {}
    asked: set[tuple[str, bytes]] = set()
    for what, who, key in events:
        match what:
            case "open" | "close":
                known = (given_up, asked, final)
                for entry in [e for entries in known for e in entries if e[0] == who]:
                    given_up.discard(entry), asked.discard(entry), final.pop(entry, None)
                if what == "open":
                    rig.open(who, wish=Wish("scope" if key else ""))
                else:
                    rig.lookups.close(who)
            case "ask":
                (answer,) = rig.ask(who, key)
                asked.add((who, key))
                assert answer is not Answer.HIT or (who, key) not in given_up
                assert final.get((who, key), answer) is answer
                if answer is not Answer.RETRY:
                    final[who, key] = answer
            case "send":
                open_questions += rig.lookups.take_questions()
            case "settle" if open_questions:
                question = open_questions.pop()
                outcomes = None if who is None else [who] * len(question.keys)
                rig.lookups.settle(question, outcomes)
            case "give up":
                rig.lookups.give_up(who, [key])
                given_up.add((who, key))
                final.pop((who, key), None)
            case "stored":
                rig.lookups.stored(who, [key])
                final.pop((who, key), None)
            case "wait":
                rig.clock.advance(0.3)
    rig.clock.advance(0.5)
    assert all(rig.ask(request, key) != [Answer.RETRY] for request, key in asked)
