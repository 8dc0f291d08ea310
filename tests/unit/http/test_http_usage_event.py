"""The usage that the router asks for: into the request in place, and out of the stream again."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anbar.adapters.http.usage_event import MAX_EVENT_BYTES, UsageFilter, asking_for_usage

HEAD = '{"id":"cmpl-1","object":"text_completion","created":1,"model":"m",'
USAGE = (HEAD + '"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}').encode()
DONE = b"[DONE]"


def event(data: bytes, end: bytes = b"\n\n") -> bytes:
    return b"data: " + data + end


def token(text: str, **more: object) -> bytes:
    choice = json.dumps({"index": 0, "text": text, **more}, ensure_ascii=False)
    return f'{HEAD}"choices":[{choice}]}}'.encode()


TEXTS = st.text(max_size=12) | st.sampled_from(['"choices":[]', '"usage":{}', "data: [DONE]\n\n", "آب अंबार"])
TOKENS = st.builds(token, TEXTS) | st.builds(
    lambda text: token("x", logprobs={"top_logprobs": [{text: -1.0}]}), TEXTS | st.just("usage")
)
OTHERS = st.sampled_from(
    [
        event(DONE),
        b": ping\n\n",
        b"data:[1,2]\n\n",
        b"event: odd\ndata: {}\n\n",
        b"\n\n",
        event(b'{"choices":[],"prompt_filter_results":[]}'),
        event(b'{"choices":[],"usage":null}'),
        event(b'{"usage":{"prompt_tokens":5}}'),
        event(b'{"error":{"message":"usage","code":500}}'),
        event(b'{"broken'),
        event(b'{"usage":' * 3),
        event(b"{}" + b" " * MAX_EVENT_BYTES),
    ]
)
END = st.sampled_from([b"\n\n", b"\r\n\r\n"])
STREAMS = st.tuples(
    st.lists(st.builds(event, TOKENS, END) | OTHERS, max_size=6),
    st.sampled_from([event(USAGE), event(USAGE, b"\r\n\r\n"), b"data:" + USAGE + b"\n\n", b""]),
    st.lists(OTHERS, max_size=2),
    st.sampled_from([b"", b"data", b'data: {"id":"cmpl-1","cho', b"data: {" + b"x" * 20, b"\n"]),
)


def passed(stream: bytes, cuts: list[int]) -> list[bytes]:
    """What comes out for each piece of a stream that is cut at `cuts`, and at its end."""
    sieve = UsageFilter()
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [sieve.feed(stream[start:end]) for start, end in pairwise(places)] + [sieve.end()]


@given(STREAMS, st.lists(st.integers(0, 10**6), max_size=12))
def test_the_stream_without_its_usage_event(
    parts: tuple[list[bytes], bytes, list[bytes], bytes], cuts: list[int]
) -> None:
    """However a stream is cut into pieces, what comes out is the stream but for that event; one without
    it comes out whole."""
    before, usage, after, rest = parts
    stream = b"".join((*before, usage, *after, rest))
    assert b"".join(passed(stream, cuts)) == b"".join((*before, *after, rest))


@given(st.lists(st.builds(event, TOKENS, END), max_size=4), st.lists(st.integers(0, 10**6), max_size=12))
def test_tokens_are_not_held_back(tokens: list[bytes], cuts: list[int]) -> None:
    """An event is passed on with its last byte at the latest, and what comes of it once its first choice
    is seen is passed on as it comes."""
    stream = b"".join(tokens)
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    ends = [len(b"".join(tokens[: n + 1])) for n in range(len(tokens))]
    starts = [0, *ends]
    seen = [start + tokens[n].index(b'"choices":[{') + 12 for n, start in enumerate(starts[:-1])]
    sieve, num_passed = UsageFilter(), 0
    for start, end in pairwise(places):
        num_passed += len(sieve.feed(stream[start:end]))
        begun = max(place for place in starts if place <= end)
        least = end if any(begun < choice <= end for choice in seen) else begun
        assert least <= num_passed <= end


def test_a_forced_usage_stays() -> None:
    """Where events with choices have a usage, the engine shows it to everybody, and the last one stays
    too."""
    stream = event(token("a")[:-1] + b',"usage":{"prompt_tokens":5}}') + event(USAGE) + event(DONE)
    assert b"".join(passed(stream, [])) == stream


def test_only_one_is_taken_out() -> None:
    """A second event like it is not the one that was asked for."""
    assert b"".join(passed(event(USAGE) * 2, [])) == event(USAGE)


def test_what_is_held_when_a_stream_breaks_off() -> None:
    """The beginning of an event that may be the usage is known to be held; that of a token is passed on."""
    sieve = UsageFilter()
    assert sieve.feed(event(token("a")) + event(USAGE)[:60]) == event(token("a"))
    assert sieve.held == event(USAGE)[:60]
    sieve = UsageFilter()
    begun = event(token("a"))[:-9]
    assert (sieve.feed(begun), sieve.held) == (begun, b"")


def test_no_more_is_held_than_such_an_event_may_have() -> None:
    """An endless event without a choice is passed on in time."""
    sieve, begun = UsageFilter(), b'data: {"text":"' + b"x" * MAX_EVENT_BYTES
    assert sieve.feed(begun[:-1000]) == b""
    assert (sieve.feed(begun[-1000:]), sieve.held) == (begun, b"")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ('{"a": 1 }', '{"stream_options":{"include_usage":true},"a": 1 }'),
        ('{"stream_options" : null}', '{"stream_options" : {"include_usage":true}}'),
        ('{"stream_options":{ }}', '{"stream_options":{"include_usage":true }}'),
        ('{"stream_options":{"x": 1}}', '{"stream_options":{"include_usage":true,"x": 1}}'),
        (
            '{"stream_options": {"include_usage": false}}',
            '{"stream_options": {"include_usage": true}}',
        ),
        (
            '{"stream_options":{"continuous_usage_stats": true}}',
            '{"stream_options":{"include_usage":true,"continuous_usage_stats": false}}',
        ),
        (
            '{"stream_options": {"include_usage": true}, "stream_options": null}',
            '{"stream_options": {"include_usage": true}, "stream_options": {"include_usage":true}}',
        ),
        (
            '{"m": [{"stream_options": null}], "stream_\\u006fptions": null}',
            '{"m": [{"stream_options": null}], "stream_\\u006fptions": {"include_usage":true}}',
        ),
    ],
)
def test_asking_in_place(sent: str, expected: str) -> None:
    """Nothing but the option changes, whatever is there already."""
    assert asking_for_usage(sent.encode(), json.loads(sent)).decode() == expected


@given(
    st.lists(
        st.sampled_from(
            [
                b'data: {"choices":[{"text":"a"}]}\n\n',
                b'data: {"choices":[{"text":"\\"usage\\""}],"x":"usage"}\n\n',
                b'data: {"choices":[{"text":"a"}]}\r\n\r\n',
                b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n',
                b": usage\n\n",
                b"\n",
                b"\r\n",
                b"data: [DONE]\n\n",
            ]
        ),
        max_size=9,
    )
)
@example([b"data: {}\n\n", b"\n", b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n'])
def test_many_events_at_once_pass_as_they_would_one_by_one(parts: list[bytes]) -> None:
    """Bursts with empty lines of all kinds between the events, and the word in texts: the same bytes pass as
    when the stream comes byte by byte."""
    stream = b"".join(parts)
    at_once, one_by_one = UsageFilter(), UsageFilter()
    passed = at_once.feed(stream) + at_once.end()
    assert passed == b"".join([one_by_one.feed(bytes((byte,))) for byte in stream]) + one_by_one.end()
