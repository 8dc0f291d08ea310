"""Readings of an engine's load beside the router's own count."""

import pytest

from anbar.route.load_check import IDLE_S, IdleStep, LoadCheck, Strangers

NOTHING, MARK, DROP = IdleStep.NOTHING, IdleStep.MARK, IdleStep.DROP


def test_strangers_are_what_two_readings_agree_on() -> None:
    """A surplus that is gone at the next reading is none; of one that stays the smaller counts."""
    check = LoadCheck()
    assert check.strangers(5, 0, 2, 0) == Strangers()
    assert check.strangers(4, 0, 2, 0) == Strangers(2, 0)
    assert check.strangers(2, 0, 2, 0) == Strangers()
    assert check.strangers(9, 0, 2, 0) == Strangers()


@pytest.mark.parametrize(
    ("running", "waiting", "known", "queued", "found"),
    [
        (3, 4, 0, 0, Strangers(3, 4)),
        (3, 4, 2, 2, Strangers(3, 2)),
        (3, 4, 5, 0, Strangers(0, 2)),
        (3, 0, 1, 1, Strangers(2, 0)),
        (1, 1, 5, 3, Strangers()),
    ],
)
def test_who_waits_and_who_runs(
    running: int, waiting: int, known: int, queued: int, found: Strangers
) -> None:
    """Of those that wait, ours are taken to be those without a first token; the rest of the surplus runs."""
    check = LoadCheck()
    check.strangers(running, waiting, known, queued)
    assert check.strangers(running, waiting, known, queued) == found


def test_a_lost_reading_means_that_nothing_is_known() -> None:
    """A surplus before a reading that failed does not count with the one after it."""
    check = LoadCheck()
    check.strangers(5, 0, 0, 0)
    check.forget()
    assert check.strangers(5, 0, 0, 0) == Strangers()


def test_an_idle_engine_is_believed_after_a_while() -> None:
    """Nothing for IDLE_S, while something is in flight all the time: marked at once, dropped then, once."""
    check = LoadCheck()
    assert check.idle(1, 1, 0.0) is NOTHING
    assert check.idle(0, 1, 5.0) is MARK
    assert check.idle(0, 1, 5.0 + IDLE_S - 0.1) is NOTHING
    assert check.idle(0, 1, 5.0 + IDLE_S) is DROP
    assert check.idle(0, 0, 10.0 + IDLE_S) is NOTHING


@pytest.mark.parametrize(("told", "in_flight"), [(1, 1), (0, 0)])
def test_what_moves_meanwhile_begins_the_time_anew(told: int, in_flight: int) -> None:
    """A reading that is not nothing, or none in flight: what was marked before says nothing."""
    check = LoadCheck()
    check.idle(1, 1, 0.0)
    check.idle(0, 1, 1.0)
    assert check.idle(told, in_flight, IDLE_S) is NOTHING
    assert check.idle(0, 1, IDLE_S + 2.0) is MARK
    assert check.idle(0, 1, IDLE_S + 3.0) is NOTHING


def test_an_engine_whose_gauges_never_moved_is_not_believed() -> None:
    """Gauges that are always zero may just not work."""
    check = LoadCheck()
    assert {check.idle(0, 1, float(second)) for second in range(300)} == {NOTHING}
