"""What is stored under pressure, and when there is any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.tier.pressure import Pressure, PressureConfig, Reason
from anbar.tier.reuse import ReuseSketch
from anbar.tier.store_gate import SHALLOW_TOKENS, StoreGate
from anbar.tier.tally import Series, Tally

HOLD_S = PressureConfig().hold_s
DEEP = SHALLOW_TOKENS + 1


class Rig:
    """A gate and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tally = Tally()
        self.pressure = Pressure(self.clock)
        self.gate = StoreGate(self.pressure, ReuseSketch(1 << 12), self.tally)

    def offer(self, text: str, *, end: int | None = DEEP, always: bool = False, scope: str = "") -> str:
        """Which of the keys are stored."""
        keys = [char.encode() for char in text]
        return "".join(text[i] for i in self.gate.admit(scope, keys, [end] * len(keys), always=always))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_everything_is_stored_on_first_touch(rig: Rig) -> None:
    """Without pressure nothing is kept out, and nothing is told."""
    assert rig.offer("abc") == "abc"
    assert not rig.gate.is_engaged
    assert rig.tally.take() == {}


def test_under_pressure_what_was_seen_before_is_stored(rig: Rig) -> None:
    """Keys that were offered before the pressure count, those offered in it count the second time; in another
    scope they are others."""
    rig.offer("ab")
    rig.pressure.full()
    assert rig.gate.is_engaged
    assert rig.offer("abcd") == "ab"
    assert rig.offer("cd") == "cd"
    assert rig.offer("a", scope="tenant") == ""
    assert rig.tally.take() == {(Series.FILTERED, "full"): 3, (Series.FILTER_ENGAGED, "full"): 1}


def test_the_beginning_of_prompts_is_stored(rig: Rig) -> None:
    """A system prompt's chunks are, at whatever pressure; where no position is known, only what was seen."""
    rig.pressure.full()
    assert rig.offer("a", end=SHALLOW_TOKENS) == "a"
    assert rig.offer("b", end=SHALLOW_TOKENS + 1) == ""
    assert rig.offer("c", end=None) == ""


def test_a_request_may_insist(rig: Rig) -> None:
    """`always` is stored, and counts as a sighting."""
    rig.pressure.full()
    assert rig.offer("ab", always=True) == "ab"
    assert rig.offer("ab") == "ab"


def test_pressure_ends(rig: Rig) -> None:
    """Nothing presses any more for a while: everything is stored again. A second time is counted again."""
    rig.pressure.full()
    assert rig.offer("a") == ""
    rig.clock.advance(HOLD_S)
    assert rig.offer("b") == "b"
    rig.pressure.queued(1.0)
    assert rig.offer("c") == ""
    counts = rig.tally.take()
    assert counts[Series.FILTER_ENGAGED, "full"] == counts[Series.FILTER_ENGAGED, "queue"] == 1


@pytest.mark.parametrize(
    ("reason", "levels"),
    [
        (Reason.QUEUE, [0.74, 0.75, 0.41, 0.39]),
        (Reason.CAPACITY, [0.95, 0.97, 0.94, 0.9]),
    ],
)
def test_pressure_has_two_marks(reason: Reason, levels: list[float]) -> None:
    """It begins at the higher, lasts down to the lower, and ends a while after that."""
    clock = ManualClock()
    pressure = Pressure(clock)
    tell = pressure.queued if reason is Reason.QUEUE else pressure.occupied
    below, high, between, low = levels
    tell(below)
    assert pressure.reason() is None
    tell(high)
    assert pressure.reason() is reason
    for _ in range(5):
        clock.advance(0.9 * HOLD_S)
        tell(between)
        assert pressure.reason() is reason
    tell(low)
    clock.advance(HOLD_S)
    tell(between)
    assert pressure.reason() is None


@given(
    st.lists(
        st.tuples(st.sampled_from(["queued", "occupied", "full"]), st.floats(0, 1.5), st.floats(0, 30)),
        max_size=40,
    )
)
def test_pressure_never_stays(told: list[tuple[str, float, float]]) -> None:
    """Whatever was told: what presses is one of the reasons told, and after `hold_s` of silence nothing
    does."""
    clock = ManualClock()
    pressure = Pressure(clock)
    for what, level, passed_s in told:
        if what in ("queued", "occupied"):
            getattr(pressure, what)(level)
        else:
            getattr(pressure, what)()
        clock.advance(passed_s)
        assert pressure.reason() in (None, *Reason)
    clock.advance(HOLD_S)
    assert pressure.reason() is None
