"""How long a step may wait for the store, in virtual time."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillWork
from anbar.tier.patience import MOST_S, NUM_CALLS, SHARE, Patience
from anbar.tier.step_times import StepTimes


class Rig:
    def __init__(self, step_s: float = 0.05) -> None:
        self.clock = ManualClock()
        self.steps = StepTimes(self.clock)
        self.patience = Patience(self.steps)
        self.step(step_s)

    def step(self, seconds: float) -> None:
        self.steps.scheduled(PrefillWork(), 1)
        self.clock.advance(seconds)
        self.steps.ended()


def test_a_fiftieth_of_a_step_is_for_all_of_its_requests() -> None:
    """What one has waited is gone for the next; the step after has all of it again."""
    rig = Rig(0.05)
    rig.patience.answered(0.0001)
    assert abs(rig.patience.left_s() - 0.05 * SHARE) < 1e-9
    rig.patience.spent(0.0004)
    assert abs(rig.patience.left_s() - (0.05 * SHARE - 0.0004)) < 1e-9
    rig.patience.spent(0.0006)
    assert rig.patience.left_s() == 0
    rig.patience.step_ended()
    assert rig.patience.left_s() > 0


def test_a_long_step_does_not_wait_longer() -> None:
    rig = Rig(10.0)
    rig.patience.answered(0.0001)
    assert rig.patience.left_s() == MOST_S


def test_nothing_is_waited_for_that_takes_longer() -> None:
    """A store behind a slow network, then one that is quick again: one quick answer is enough, and it is
    forgotten after as many slow ones."""
    rig = Rig(0.05)
    assert rig.patience.left_s() == 0, "nothing is known of the store"
    rig.patience.answered(0.0011)
    assert rig.patience.left_s() == 0
    rig.patience.answered(0.0002)
    assert rig.patience.left_s() > 0
    for _ in range(NUM_CALLS):
        rig.patience.answered(0.02)
    assert rig.patience.left_s() == 0


def test_without_a_step_nothing_is_waited_for() -> None:
    patience = Patience(StepTimes(ManualClock()))
    patience.answered(0.0)
    assert patience.left_s() == 0


def test_a_usual_step_follows_the_engine() -> None:
    """From prompts of a second to answers of 20 ms: within some tens of steps it is known."""
    rig = Rig(1.0)
    for _ in range(60):
        rig.step(0.02)
    assert rig.steps.usual_s is not None
    assert 0.02 <= rig.steps.usual_s < 0.022


@given(st.lists(st.tuples(st.sampled_from(["spent", "answered", "ended"]), st.floats(0, 0.01)), max_size=40))
def test_no_step_waits_longer_than_its_share(happenings: list[tuple[str, float]]) -> None:
    """Whatever happens: what is granted and what was spent are never more than the share together, as long as
    nobody spends more than was granted."""
    rig = Rig(0.05)
    spent_s = 0.0
    for what, seconds in happenings:
        if what == "spent":
            waited_s = min(seconds, rig.patience.left_s())
            rig.patience.spent(waited_s)
            spent_s += waited_s
        elif what == "answered":
            rig.patience.answered(seconds)
        else:
            rig.patience.step_ended()
            spent_s = 0.0
        assert spent_s + rig.patience.left_s() <= 0.05 * SHARE + 1e-9
