"""What outcomes of several stores mean together, and which evicted keys are gone for good."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.tier.composed import Evictions, Reading, best, of_last, removed, summed
from anbar.tier.placement import Layers, Rendezvous
from anbar.tier.store import Outcome, StoreStats

HIT, MISS, CORRUPT, TIMEOUT, ERROR, FULL = (
    Outcome.HIT,
    Outcome.MISS,
    Outcome.CORRUPT,
    Outcome.TIMEOUT,
    Outcome.ERROR,
    Outcome.FULL,
)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([MISS, HIT], HIT),
        ([TIMEOUT, MISS], MISS),
        ([CORRUPT, MISS, ERROR], CORRUPT),
        ([FULL, ERROR], FULL),
        ([ERROR, TIMEOUT], TIMEOUT),
        ([], ERROR),
    ],
)
def test_one_good_answer_is_enough(outcomes: list[Outcome], expected: Outcome) -> None:
    """Of reads and writes the best answer counts; nobody asked is an error."""
    assert best(outcomes) is expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [([MISS, HIT], HIT), ([MISS, MISS], MISS), ([HIT, TIMEOUT], TIMEOUT), ([HIT, MISS, ERROR], ERROR)],
)
def test_a_removal_is_done_when_all_say_so(outcomes: list[Outcome], expected: Outcome) -> None:
    """What one part could not remove is not removed."""
    assert removed(outcomes) is expected


def test_rounds_go_on_where_a_key_was_not_found() -> None:
    """Two keys, three places each. The first round finds one; the other's next place is passed over, since it
    is refused, and its last one has it: that one's first place lacks it, the refused one was not asked."""
    reading = Reading([(0, 1, 2), (1, 0, 2)])
    assert reading.plan(lambda part: True) == {0: [0], 1: [1]}
    assert reading.num_rounds(lambda part: False) == 3
    assert reading.num_rounds(lambda part: part == 1) == 3
    reading.settle(0, [0], [MISS])
    reading.settle(1, [1], [HIT])
    assert reading.plan(lambda part: part != 1) == {2: [0]}
    assert reading.num_rounds(lambda part: False) == 1
    reading.settle(2, [0], [HIT])
    assert reading.plan(lambda part: True) == {}
    assert reading.outcomes() == [HIT, HIT]
    assert list(reading.lacking()) == [(0, [0])]
    assert reading.refused() == {1: 1}


def test_rounds_that_would_be_refused_take_no_time() -> None:
    """The only other place has an open breaker: the round that runs gets all that is left of the time."""
    reading = Reading([(0, 1)])
    reading.plan(lambda part: True)
    assert reading.num_rounds(lambda part: part == 1) == 1
    assert reading.num_rounds(lambda part: False) == 2


def test_keys_that_nobody_was_asked_for_in_time_are_late() -> None:
    """The time is over after the first round: what it found stays, what it missed was a miss."""
    reading = Reading([(0, 1)] * 3)
    reading.plan(lambda part: True)
    reading.settle(0, [0, 1, 2], [HIT, MISS, ERROR])
    reading.out_of_time()
    assert reading.outcomes() == [HIT, MISS, TIMEOUT]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 5)), max_size=60))
def test_evicted_keys_are_told_once_all_their_parts_lost_them(steps: list[tuple[int, bool, int]]) -> None:
    """Writes and evictions in any order, against a model that keeps for each key the parts that evicted it
    since it was last written there."""
    places = Rendezvous(["a", "b", "c"], 2)
    evictions = Evictions(places)
    model: dict[bytes, set[int]] = {}
    for part, is_write, number in steps:
        key = bytes([number])
        gone = model.setdefault(key, set())
        if is_write:
            gone.discard(part)
            evictions.written(part, [key])
            continue
        gone.add(part)
        expected = [key] if gone >= set(places.of(key)) else []
        if expected:
            gone.clear()
        assert evictions.evicted(part, [key]) == expected


def test_evictions_that_were_heard_long_ago_are_forgotten() -> None:
    """Of three keys that one layer lost only the last two are remembered."""
    evictions = Evictions(Layers(2), max_keys=2)
    keys = [b"1", b"2", b"3"]
    assert evictions.evicted(0, keys) == []
    assert evictions.evicted(1, keys) == [b"2", b"3"]


def test_occupancy() -> None:
    """Copies count as stored; layers as their last one has it; what one part does not know is not known."""
    near, far, dark = StoreStats(1, 10, 20), StoreStats(2, 30, None), StoreStats(None, None, 7)
    assert summed([near, near]) == StoreStats(2, 20, 40)
    assert summed([near, far]) == StoreStats(3, 40, None)
    assert summed([near, dark]) == StoreStats(None, None, 27)
    assert of_last([near, far]) == far
    full = StoreStats(1, 10, 20, is_writable=False)
    assert summed([full, full]).is_writable is False
    assert of_last([StoreStats(1, 10, 20, is_writable=True), full]) == StoreStats(1, 10, 20, (), True)
