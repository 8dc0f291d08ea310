"""When an engine's index is no longer believed, and when it is again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anbar.core.ids import EngineHash
from anbar.route.drift import (
    DriftCheck,
    DriftLimits,
    RecentChanges,
    Trust,
    Verdict,
)

BLOCK = 16
LIMITS = DriftLimits()
RIGHT, WRONG = (160, 160), (160, 0)


def checked(*requests: tuple[int, int]) -> DriftCheck:
    check = DriftCheck(DriftLimits())
    for told, reported in requests:
        check.observe(told, reported, BLOCK)
    return check


def test_what_requests_say() -> None:
    """One block less is within what engines differ by; more cached is unknown content; nothing told is
    nothing."""
    check = DriftCheck(DriftLimits())

    def verdict(told: int, reported: int) -> Verdict:
        return check.observe(told, reported, BLOCK)

    assert verdict(160, 160) is verdict(160, 144) is Verdict.AGREES
    assert verdict(160, 143) is Verdict.OVER
    assert verdict(160, 176) is verdict(0, 32) is Verdict.UNKNOWN_CONTENT
    assert verdict(0, 0) is verdict(16, 0) is Verdict.NOTHING
    assert check.num_in_window == 4


def test_drift_and_back() -> None:
    """Wrong answers, a rebuild, right answers: precise, rebuilding, comparing, precise."""
    check = checked(*[WRONG] * (LIMITS.min_requests - 1))
    assert check.trust is Trust.PRECISE
    check.observe(*WRONG, BLOCK)
    assert check.trust is Trust.REBUILDING
    for _ in range(LIMITS.window):
        check.observe(*RIGHT, BLOCK)
    assert check.trust is Trust.REBUILDING, "what is compared meanwhile says nothing"
    check.rebuilt()
    for _ in range(LIMITS.agree_requests - 1):
        check.observe(*RIGHT, BLOCK)
    assert check.trust is Trust.COMPARING
    check.observe(*RIGHT, BLOCK)
    assert check.trust is Trust.PRECISE


def test_one_long_prompt_is_one_request() -> None:
    """A prompt of a hundred thousand tokens that missed all of them weighs no more than a short one."""
    assert checked(*[RIGHT] * 10, (100_000, 0)).trust is Trust.PRECISE


def test_unknown_content_is_no_drift() -> None:
    """However much more is cached than told."""
    assert checked(*[(160, 1600)] * 100).trust is Trust.PRECISE


def test_rebuilds_grow_rarer() -> None:
    """An engine that stays wrong is built anew after 8, 32, 128, ... requests."""
    check, waits = DriftCheck(DriftLimits()), []
    for _ in range(4):
        num_requests = 0
        while check.trust is not Trust.REBUILDING:
            check.observe(*WRONG, BLOCK)
            num_requests += 1
        waits.append(num_requests)
        check.rebuilt()
    assert waits == [8, 32, 128, 512]


def test_a_share_of_one_turns_it_off() -> None:
    """Nothing is more than all."""
    check = DriftCheck(DriftLimits(max_absent=1.0))
    for _ in range(100):
        check.observe(*WRONG, BLOCK)
    assert check.trust is Trust.PRECISE


def test_an_engine_that_began_anew() -> None:
    """A new life of the engine is believed, whatever the old one did."""
    check = checked(*[WRONG] * LIMITS.min_requests)
    check.begin_anew()
    assert (check.trust, check.share) == (Trust.PRECISE, 0.0)


def test_limits_that_change() -> None:
    """What was seen is judged by new limits with the next request, as far as their window reaches."""
    check = DriftCheck()
    for at in range(32):
        check.observe(*(WRONG if at % 10 == 0 else RIGHT), BLOCK)
    assert check.trust is Trust.PRECISE, "an eighth is absent"
    check.limits = DriftLimits(window=20, max_absent=0.05)
    assert check.num_in_window == 20
    check.observe(*RIGHT, BLOCK)
    assert check.trust is Trust.REBUILDING
    check.rebuilt()
    check.limits = DriftLimits(window=4, min_requests=1, agree_requests=2)
    check.observe(*RIGHT, BLOCK)
    assert check.trust is Trust.COMPARING
    check.observe(*RIGHT, BLOCK)
    assert check.trust is Trust.PRECISE
    check.observe(*WRONG, BLOCK)
    assert check.trust is Trust.REBUILDING, "one request is enough"


@pytest.mark.parametrize(
    "limits", [{"min_requests": 33}, {"window": 15}, {"max_absent": 0.04}, {"agree_absent": 0.3}]
)
def test_limits_that_decide_nothing(limits: dict[str, float]) -> None:
    """More requests than the window has, or agreement above drift."""
    with pytest.raises(ValueError, match=r"window|at once"):
        DriftLimits(**limits)  # type: ignore[arg-type]


class Histories(RuleBasedStateMachine):
    """Any history: the state follows from the requests since the last rebuild, counted naively."""

    def __init__(self) -> None:
        super().__init__()
        self.check = DriftCheck(DriftLimits())
        self.shares: list[float] = []
        self.trust = Trust.PRECISE
        self.patience = 8

    @rule(told=st.integers(0, 400), reported=st.integers(0, 400))
    def request(self, told: int, reported: int) -> None:
        self.check.observe(told, reported, BLOCK)
        if told > BLOCK and self.trust is not Trust.REBUILDING:
            missing = told - reported
            self.shares.append(missing / told if missing > BLOCK else 0.0)
            self.decide()

    @rule(num=st.integers(1, 40), wrong=st.booleans())
    def requests(self, num: int, wrong: bool) -> None:
        for _ in range(num):
            self.request(320, 0 if wrong else 320)

    def decide(self) -> None:
        recent = self.shares[-32:]
        mean = sum(recent) / len(recent)
        if mean > 0.2 and len(self.shares) >= self.patience:
            self.trust, self.shares, self.patience = Trust.REBUILDING, [], self.patience * 4
        elif self.trust is Trust.COMPARING and len(recent) >= 16 and mean <= 0.05:
            self.trust, self.shares, self.patience = Trust.PRECISE, [], 8

    @precondition(lambda self: self.trust is Trust.REBUILDING)
    @rule()
    def rebuilt(self) -> None:
        self.check.rebuilt()
        self.trust, self.shares = Trust.COMPARING, []

    @rule()
    def restarted(self) -> None:
        self.check.begin_anew()
        self.trust, self.shares, self.patience = Trust.PRECISE, [], 8

    @invariant()
    def is_as_counted(self) -> None:
        assert self.check.trust is self.trust
        assert self.check.num_in_window == len(self.shares[-32:])


TestHistories = Histories.TestCase


def name(number: int) -> EngineHash:
    return EngineHash(number.to_bytes(8, "big"))


BATCHES = st.lists(
    st.tuples(st.lists(st.integers(0, 99), max_size=4), st.booleans()) | st.none(), max_size=30
)


@given(BATCHES, st.integers(0, 30))
def test_changes_since(batches: list[tuple[list[int], bool] | None], start: int) -> None:
    """What was announced since a time is told whole and in order, or said to be more than is remembered."""
    capacity = 10
    changes = RecentChanges(capacity)
    for at, batch in enumerate(batches):
        if batch is None:
            changes.forget(float(at))
        else:
            changes.add(tuple(map(name, batch[0])), float(at), gone=batch[1])
    later = batches[start:]
    truth = [(name(number), batch[1]) for batch in later if batch is not None for number in batch[0]]
    if None not in later and len(truth) <= capacity - 4:
        assert changes.covers(float(start))
    if changes.covers(float(start)):
        assert None not in later
        assert list(changes.since(float(start))) == truth
