"""The small parts: deadlines, headers that may cross, usage in the tail of an answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_timers import ManualTimers

from anbar.adapters.http.deadline import Deadline
from anbar.adapters.http.message import HOP_BY_HOP, end_to_end, error_body
from anbar.adapters.http.usage import TAIL_BYTES, Tail, Usage, find_usage


async def test_deadline_moves_later_and_earlier() -> None:
    """Set again: only the last counts; cleared or closed: it does not fire."""
    timers = ManualTimers()
    fired: list[float] = []
    deadline = Deadline(timers, lambda: fired.append(timers.time()))
    began_s = timers.time()
    deadline.set(1)
    deadline.set(50)
    deadline.set(5)
    timers.advance(4.9)
    assert fired == []
    timers.advance(60)
    assert fired == [began_s + 5]
    deadline.set(50)
    deadline.set(5)
    timers.advance(5)
    assert len(fired) == 2
    deadline.set(1)
    deadline.clear()
    timers.advance(100)
    deadline.set(1)
    deadline.close()
    timers.advance(100)
    assert len(fired) == 2


def test_headers_that_end_here() -> None:
    """Hop-by-hop ones, those that Connection names, and Anbar's own do not cross; repeated ones do."""
    headers = [
        (b"connection", b"close, X-Private"),
        (b"x-private", b"1"),
        (b"te", b"trailers"),
        (b"x-anbar-engine", b"fake"),
        (b"traceparent", b"00-1"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]
    assert end_to_end(headers, HOP_BY_HOP) == [
        (b"traceparent", b"00-1"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]


def test_error_has_openais_shape() -> None:
    """All four keys are there, absent ones as null."""
    assert json.loads(error_body("m", "t")) == {
        "error": {"message": "m", "type": "t", "param": None, "code": None}
    }


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def test_usage_of_a_json_answer() -> None:
    """Usage after the choices, with text that only looks like it before."""
    choice = {"message": {"content": 'say "usage": {"prompt_tokens": 1}'}}
    body = json.dumps({"choices": [choice], "usage": USAGE, "prompt_logprobs": None}).encode()
    assert find_usage(body) == Usage(100, 7, 64)


def test_usage_of_a_stream() -> None:
    """The last usage chunk counts; a null usage in others does not."""
    null = b'data: {"choices":[{}],"usage":null}\n\n'
    early = b"data: " + json.dumps({"usage": {**USAGE, "completion_tokens": 1}}).encode() + b"\n\n"
    last = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"
    assert find_usage(null + early + null + last) == Usage(100, 7, 64)
    assert find_usage(null) is None


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
def test_unreported_cached_tokens_are_unknown(details: object) -> None:
    """An engine without prompt token details says nothing, which is not zero."""
    body = json.dumps({"usage": {**USAGE, "prompt_tokens_details": details}}).encode()
    assert find_usage(body) == Usage(100, 7, None)


@given(st.binary(max_size=200))
def test_usage_never_raises(data: bytes) -> None:
    """Any tail, also one that cuts a usage object: found or not."""
    find_usage(b'"usage":{' + data)
    find_usage(data)


@given(st.lists(st.binary(min_size=1, max_size=3000), max_size=12))
def test_tail_is_the_end_and_bounded(parts: list[bytes]) -> None:
    """The tail equals the end of all parts, however they were cut; what is held stays near its size."""
    tail = Tail()
    for part in parts:
        tail.add(part)
    assert tail.bytes() == b"".join(parts)[-TAIL_BYTES:]
    assert sum(map(len, tail._parts)) < TAIL_BYTES + 3000
