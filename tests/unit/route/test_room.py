"""The wait for room in an engine's KV cache."""

import math

import pytest
from msgspec.structs import replace

from anbar.core.fleet import EngineView, PrefixMatch
from anbar.route.predict import predict
from anbar.route.room import room_wait_s

from .builders import query, view


def full(held: int, *, capacity: int = 1000, in_flight: int = 10, answer_s: float = 4.0) -> EngineView:
    """An engine whose requests hold `held` of its `capacity` tokens."""
    engine = view("a", decoding=in_flight, in_flight=in_flight)
    return replace(engine, kv_tokens=capacity, kv_held_tokens=held, answer_s=answer_s)


def test_nobody_waits_for_room_that_there_is() -> None:
    """Room for all of it, to the token; an engine that does not say how much it has; one that holds
    nothing, whose prompt could be too long for the cache but not for its context."""
    assert room_wait_s(full(900), 100) == 0.0
    assert room_wait_s(full(900), 101) > 0.0
    assert room_wait_s(full(900, capacity=0), 5000) == 0.0
    assert room_wait_s(full(0, in_flight=0), 5000) == 0.0
    assert room_wait_s(full(900, answer_s=0.0), 500) == 0.0


def test_the_wait_is_that_until_enough_answers_have_ended() -> None:
    """Of 400 like answers which end by chance, as often as their mean says, the time until enough have: the
    first is expected after a 400th of the mean, the next a 399th later."""
    num, mean_s = 400, 4.0
    for need in (200, 500, 800):
        ended_s = sum(mean_s / left for left in range(num, num - num * need // 1000, -1))
        assert room_wait_s(full(1000, in_flight=num), need) == pytest.approx(ended_s, rel=0.01), need


def test_no_wait_is_longer_than_that_for_the_last_answer() -> None:
    """A prompt that needs the whole cache waits for the last of ten answers, and no longer."""
    last_s = 4.0 * sum(1 / place for place in range(1, 11))
    assert room_wait_s(full(1000), 1000) == pytest.approx(last_s, rel=0.15)
    assert room_wait_s(full(1000), 2000) == room_wait_s(full(1000), 1000)


def test_a_prompt_waits_for_the_queue_and_for_room_at_the_same_time() -> None:
    """The longer of both counts. What the engine holds of the prompt needs no room."""
    asked = query(range(500))
    wait_s = 4.0 * math.log(2)
    engine = full(1000)
    assert predict(asked, engine, PrefixMatch()).wait_s == pytest.approx(wait_s)
    assert predict(asked, replace(engine, queued_prefill_tokens=2000), PrefixMatch()).wait_s == pytest.approx(
        wait_s
    )
    assert predict(asked, replace(engine, queued_prefill_tokens=9000), PrefixMatch()).wait_s == 9.0
    assert predict(asked, engine, PrefixMatch(400, 400, 400)).wait_s == pytest.approx(4.0 * math.log(1 / 0.9))
