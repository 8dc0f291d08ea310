"""Events that are told by their ends: what passes without a look is what a look would have found."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.http.plain_events import MAX_LOOKS, PlainEvents
from anbar.adapters.http.transcript import Transcript


def event(text: str, **more: Any) -> bytes:
    """One of a chat's stream; `more`: of its choice."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, **more}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "choices": [choice]}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@given(st.lists(st.text(), min_size=1))
def test_text_of_plain_events_is_what_a_transcript_finds(texts: list[str]) -> None:
    """Any texts, quotes, escapes and the names of other members among them, one event after the other: where
    a text is told by the ends, both ways of keeping it come to the same."""
    plain, by_ends, by_look = PlainEvents(), Transcript(), Transcript()
    for text in texts:
        data = event(text)
        by_look.add(data)
        found = plain.text(data)
        if found is None:
            plain.learn(data)
            by_ends.add(data)
        else:
            assert msgspec.json.decode(found) == text
            by_ends.add_text(found)
    assert by_ends.text() == by_look.text() == "".join(texts)


def test_second_event_needs_no_look() -> None:
    """The first of them is looked at, all others like it are told by their ends."""
    plain = PlainEvents()
    assert plain.text(event("a")) is None
    plain.learn(event("a"))
    assert [plain.text(event(text)) for text in ("b", "", "usage", "\n!", "سلام")] == [
        b'"b"',
        b'""',
        b'"usage"',
        b'"\\n!"',
        '"سلام"'.encode(),
    ]


@pytest.mark.parametrize(
    "data",
    [
        event("x", finish_reason="stop"),
        event("x", delta={"content": "x", "reasoning_content": "hm"}),
        event("x", delta={"content": "x", "tool_calls": [{"index": 0}]}),
        event("x").replace(b'"choices"', b'"usage":null,"choices"'),
        event("x").replace(b"data: ", b": comment\ndata: "),
        event("x").replace(b"\n\n", b"\r\n\r\n"),
        event("x") + event("y"),
        event('x"'),
        event("x\\"),
        event("x")[:-1],
        b'data: {"error":{"message":"x"}}\n\n',
        b"data: [DONE]\n\n",
        b"\n\n",
    ],
)
def test_what_is_no_event_like_the_others(data: bytes) -> None:
    """However alike it is to the event that was learned."""
    plain = PlainEvents()
    plain.learn(event("a"))
    assert plain.text(event("b")) == b'"b"'
    assert plain.text(data) is None


@pytest.mark.parametrize(
    "data",
    [
        event("x", finish_reason="stop"),
        event("x", delta={"content": "x", "tool_calls": [{"index": 0}]}),
        event("x").replace(b'"choices"', b'"usage":null,"choices"'),
        event("x") + event("y"),
    ],
)
def test_nothing_is_learned_from_what_is_more_than_text(data: bytes) -> None:
    """An end, a tool call, a usage, two events at once: they do not pass, however often they come."""
    plain = PlainEvents()
    plain.learn(data)
    assert plain.text(data) is None


def test_stream_of_unlike_events_is_not_learned_for_ever() -> None:
    """Where each event brings log-probabilities of its own, learning ends."""
    plain = PlainEvents()
    for number in range(MAX_LOOKS):
        plain.learn(event("a", logprobs=number))
    assert plain.text(event("b", logprobs=MAX_LOOKS - 1)) == b'"b"'
    plain.learn(event("a", logprobs=MAX_LOOKS))
    assert plain.text(event("b", logprobs=MAX_LOOKS)) is None
