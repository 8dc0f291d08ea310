"""The text of a stream so far, and the rest of it from another one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.http.transcript import MAX_TEXT_BYTES, Splicer, Transcript


def chat(text: str, **choice: Any) -> bytes:
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "choices": [delta]}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@given(st.lists(st.text()), st.data())
def test_text_however_it_is_cut(texts: list[str], data: st.DataObject) -> None:
    """Any texts, quotes and escapes among them, in a stream that is cut anywhere: the text is theirs at the
    end of each event, and none in the middle of one."""
    stream = b"".join(map(chat, texts))
    transcript, at = Transcript(), 0
    while at < len(stream):
        end = data.draw(st.integers(at + 1, len(stream)))
        transcript.add(stream[at:end])
        at = end
        whole = stream[:at].endswith(b"\n\n") and stream[:at].count(b"\n\n")
        assert transcript.text() == ("".join(texts[:whole]) if whole else None)


@given(st.lists(st.text(), min_size=1, max_size=5), st.integers(100, 40_000), st.booleans())
def test_text_of_a_long_stream_that_is_asked_for_at_its_end(
    texts: list[str], num_bytes: int, in_between: bool
) -> None:
    """Some 30 KB and more, in reads of one size, before or behind an event that is known to be text alone."""
    texts = texts * 40
    stream = b"".join(map(chat, texts))
    transcript, told = Transcript(), list(texts)
    for number in range(2):
        for at in range(0, len(stream), num_bytes):
            transcript.add(stream[at : at + num_bytes])
        if in_between and number == 0:
            transcript.add_text(msgspec.json.encode("between"))
            told.append("between")
        told += texts if number == 0 else []
    assert transcript.text() == "".join(told)
    assert transcript.first == chat(texts[0]).removesuffix(b"\n\n")


@pytest.mark.parametrize(
    "event",
    [
        chat("x", finish_reason="stop"),
        chat("x", delta={"reasoning_content": "hm"}),
        chat("x", delta={"tool_calls": [{"index": 0}]}),
        b'data: {"error":{"message":"x"}}\n\n',
        chat("x" * MAX_TEXT_BYTES),
        b"data: " + b"x" * MAX_TEXT_BYTES,
    ],
)
def test_streams_that_cannot_be_gone_on_with(event: bytes) -> None:
    """Ended, more than text, failed, or too long to keep."""
    transcript = Transcript()
    transcript.add(chat("a") + event)
    transcript.add(chat("b"))
    assert transcript.text() is None
    transcript.add(chat("c"))
    transcript.add_text(b'"d"')
    assert transcript.text() is None


@given(st.lists(st.text(), min_size=1), st.data())
def test_rest_of_a_chat(texts: list[str], data: st.DataObject) -> None:
    """A completion's stream, cut anywhere, becomes chunks of the chat with its id and time."""
    chunks = [
        {"id": "x", "object": "text_completion", "created": 9, "choices": [{"index": 0, "text": text}]}
        for text in texts
    ]
    stream = b"".join(b"data: " + msgspec.json.encode(c) + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    splicer = Splicer(chat("a").removesuffix(b"\n\n"), num_before=3, wants_usage=True)
    cut = data.draw(st.integers(0, len(stream)))
    out = splicer.feed(stream[:cut]) + splicer.feed(stream[cut:]) + splicer.end()
    *events, done, empty = out.split(b"\n\n")
    assert (done, empty) == (b"data: [DONE]", b"")
    found = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in found] == texts
    assert {(c["id"], c["object"], c["created"]) for c in found} == {("c", "chat.completion.chunk", 1)}
