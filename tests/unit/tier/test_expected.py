"""Keys that another engine is storing while they are asked for: waited for, within a bound."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.tier.breaker import Breaker
from anbar.tier.lookups import ASK_AGAIN_S, Answer, Lookups
from anbar.tier.store import Outcome
from anbar.tier.tally import Series, Tally
from anbar.tier.wish import Wish

A, B, C = b"a", b"b", b"c"
KEYS = {A: 16, B: 32, C: 48}
"""Key and the tokens up to its end."""
WAITING = Wish(wait_s=1.0, expect_tokens=32)


class Rig:
    """Lookups over a store whose content is a set."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tally = Tally()
        self.breaker = Breaker(self.clock)
        self.lookups = Lookups(self.clock, self.breaker, self.tally, timeout_s=0.5)
        self.stored: set[bytes] = set()
        self.num_questions = 0

    def step(self, request: str, *keys: bytes, seconds: float = 0.001) -> list[Answer]:
        """One step of the engine, whose questions the store answers before the next one."""
        self.clock.advance(seconds)
        answers = [self.lookups.answer(request, key, KEYS[key]) for key in keys]
        for question in self.lookups.take_questions():
            self.num_questions += 1
            found = [Outcome.HIT if key in self.stored else Outcome.MISS for key in question.keys]
            self.lookups.settle(question, found)
        return answers

    def counted(self) -> dict[str, float]:
        return {label: n for (series, label), n in self.tally.take().items() if series is Series.LOOKUPS}


def test_what_is_expected_is_waited_for() -> None:
    """Of three keys two are being stored: they are asked for again until they are there, the third is a miss
    at once."""
    rig = Rig()
    rig.lookups.open("r", WAITING)
    assert rig.step("r", A, B, C) == [Answer.RETRY] * 3
    assert rig.step("r", A, B, C) == [Answer.RETRY, Answer.RETRY, Answer.MISS]
    rig.stored.update((A, B))
    assert rig.step("r", A, B, seconds=ASK_AGAIN_S) == [Answer.RETRY] * 2
    assert rig.step("r", A, B) == [Answer.HIT] * 2
    assert rig.counted() == {"hit": 2, "miss": 1}


def test_the_wait_ends_for_all_keys_together() -> None:
    """Nothing comes: a second after the first question both are misses, also the one that was asked for
    later."""
    rig = Rig()
    rig.lookups.open("r", WAITING)
    rig.step("r", A)
    rig.step("r", A, B, seconds=0.9)
    assert rig.step("r", A, B, seconds=0.2) == [Answer.MISS] * 2
    rig.stored.update((A, B))
    assert rig.step("r", A, B, seconds=ASK_AGAIN_S) == [Answer.MISS] * 2
    assert rig.counted() == {"late": 2}


def test_a_store_that_never_answers_is_given_up() -> None:
    """The store takes the question and is silent: the wait is the request's, not longer."""
    rig = Rig()
    rig.lookups.open("r", WAITING)
    rig.lookups.answer("r", A, 16)
    rig.clock.advance(1.1)
    assert rig.lookups.answer("r", A, 16) is Answer.MISS
    assert rig.counted() == {"timeout": 1}


def test_a_store_that_fails_is_not_waited_for() -> None:
    """An error is no «not yet»."""
    rig = Rig()
    rig.lookups.open("r", WAITING)
    rig.lookups.answer("r", A, 16)
    (question,) = rig.lookups.take_questions()
    rig.lookups.settle(question, [Outcome.ERROR])
    assert rig.lookups.answer("r", A, 16) is Answer.MISS


def test_without_an_expectation_a_miss_is_a_miss() -> None:
    """`wait_ms` alone is no reason to ask twice; nor is a position that nobody knows."""
    rig = Rig()
    rig.lookups.open("r", Wish(wait_s=1.0))
    rig.step("r", A)
    assert rig.step("r", A) == [Answer.MISS]
    rig.lookups.open("s", WAITING)
    rig.lookups.answer("s", A)
    rig.lookups.settle(rig.lookups.take_questions()[0], [Outcome.MISS])
    assert rig.lookups.answer("s", A) is Answer.MISS


def test_the_store_is_not_asked_with_every_step() -> None:
    """A hundred steps of a millisecond: about ten questions."""
    rig = Rig()
    rig.lookups.open("r", WAITING)
    for _ in range(100):
        rig.step("r", A)
    assert 2 <= rig.num_questions <= 0.1 / ASK_AGAIN_S + 1


def test_another_request_is_not_made_to_wait() -> None:
    """Two requests ask for one key, and only one of them expects it: the other one has its miss."""
    rig = Rig()
    rig.lookups.open("r", WAITING)
    rig.lookups.open("s", Wish())
    rig.lookups.answer("r", A, 16)
    rig.lookups.answer("s", A, 16)
    rig.lookups.settle(rig.lookups.take_questions()[0], [Outcome.MISS])
    assert rig.lookups.answer("r", A, 16) is Answer.RETRY
    assert rig.lookups.answer("s", A, 16) is Answer.MISS


@given(
    st.lists(st.tuples(st.sampled_from(sorted(KEYS)), st.floats(0.0, 0.3)), min_size=1, max_size=60),
    st.sets(st.sampled_from(sorted(KEYS))),
)
def test_a_retry_always_ends(steps: list[tuple[bytes, float]], stored: set[bytes]) -> None:
    """Whatever is stored, asked and answered when: after the wait no key is undecided any more, and what was
    decided stays so."""
    rig = Rig()
    rig.stored = stored
    rig.lookups.open("r", WAITING)
    decided: dict[bytes, Answer] = {}
    for key, seconds in steps:
        (answer,) = rig.step("r", key, seconds=seconds)
        assert decided.get(key, answer) is answer
        if answer is not Answer.RETRY:
            decided[key] = answer
    for key in {key for key, _ in steps}:
        assert rig.step("r", key, seconds=1.1)[0] is not Answer.RETRY
