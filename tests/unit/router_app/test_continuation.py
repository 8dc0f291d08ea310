"""A stream whose engine is lost goes on with another one: one answer to the client, whatever happened."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from scripted import (
    END,
    SSE,
    Connection,
    Script,
    ScriptedEngine,
    answer,
    ask,
    engine_at,
    path_to,
    post,
    scripted,
)
from tests.waiting import until

from anbar.adapters.http.openai import ClientKv, Endpoint, parse
from anbar.apps.router.continuation import is_continuable
from anbar.core.outcome import Outcome, RequestFinished
from anbar.route.breaker import BreakerState

PROMPT = [1, 2, 3, 4, 5]
SO_FAR = [31, 32]
"""Tokens of the text that the client has read."""


def sse(*chunks: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in chunks]


def text_chunk(
    text: str, finish: str | None = None, name: str = "cmpl-1", created: int = 7
) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return {"id": name, "object": "text_completion", "created": created, "model": "m", "choices": [choice]}


def usage_chunk(prompt: int, output: int, cached: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    usage["prompt_tokens_details"] = {"cached_tokens": cached}  # type: ignore[assignment]
    return text_chunk("", name="cmpl-2", created=9) | {"choices": [], "usage": usage}


async def tokenized(connection: Connection) -> bool:
    """Whether it was asked for the tokens of the text so far, and has answered."""
    if b"/tokenize" not in connection.head:
        return False
    await answer(json.dumps({"tokens": SO_FAR, "count": 2, "max_model_len": 1000}).encode())(connection)
    return True


def telling(events: Sequence[bytes], end: Script) -> Script:
    """An engine that sends a stream's head and `events`, and ends as `end` does."""

    async def script(connection: Connection) -> None:
        if await tokenized(connection):
            return
        await connection.send(SSE)
        for event in events:
            await connection.send_chunk(event)
        await end(connection)

    return script


def then_dies(events: Sequence[bytes]) -> Script:
    async def die(connection: Connection) -> None:
        connection.writer.transport.abort()

    return telling(events, die)


def goes_on(events: Sequence[bytes]) -> Script:
    async def end(connection: Connection) -> None:
        await connection.send_chunk(b"data: [DONE]\n\n")
        await connection.send(END)

    return telling(events, end)


def request(**fields: Any) -> bytes:
    body = {"model": "m", "prompt": PROMPT, "stream": True, "max_tokens": 10, "temperature": 0, "stop": ["!"]}
    return json.dumps({**body, **fields}).encode()


FIRST = sse(text_chunk(" one"), text_chunk(" tw"))
REST = sse(
    text_chunk("o", name="cmpl-2", created=9),
    text_chunk(" three", "length", "cmpl-2", 9),
    usage_chunk(len(PROMPT) + 2, 8, 6),
)


async def run(body: bytes, first: Script, rest: Script, **options: Any) -> tuple[list[bytes], Any, Any, Any]:
    """The events that the client read, the request's event, the second engine, the first one's breaker."""
    async with (
        scripted(first) as a,
        scripted(rest) as b,
        path_to([engine_at(a.port, "a"), engine_at(b.port, "b")], **options) as path,
    ):
        text = await ask(path.port, post(body))
        await until(lambda: any(isinstance(event, RequestFinished) for event in path.events))
        (event,) = (event for event in path.events if isinstance(event, RequestFinished))
        breaker = path.fleet["a"].breaker
    body_text = text.partition(b"\r\n\r\n")[2]
    events: list[bytes] = []
    while body_text and not body_text.startswith(b"0\r\n"):
        size, _, body_text = body_text.partition(b"\r\n")
        events += [e for e in body_text[: int(size, 16)].split(b"\n\n") if e]
        body_text = body_text[int(size, 16) + 2 :]
    return events, event, b, breaker


def parsed(events: Sequence[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix(b"data: ")) for event in events if event != b"data: [DONE]"]


def asked(engine: ScriptedEngine) -> dict[str, Any]:
    """The one completion that the engine was asked for."""
    pairs = zip(engine.heads, engine.bodies, strict=True)
    (body,) = (body for head, body in pairs if b"/v1/completions " in head)
    return json.loads(body)


async def test_completion_goes_on() -> None:
    """The engine dies after two events: the next one is asked for what is left, with prompt and text as
    tokens; the client reads one stream, with one id and time, its usage and no error."""
    events, event, b, breaker = await run(
        request(stream_options={"include_usage": True}), then_dies(FIRST), goes_on(REST)
    )
    chunks = parsed(events)
    assert events[-1] == b"data: [DONE]"
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == " one two three"
    assert {(c["id"], c["created"], c["object"]) for c in chunks} == {("cmpl-1", 7, "text_completion")}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 10,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    sent = asked(b)
    assert (sent["prompt"], sent["max_tokens"]) == (PROMPT + SO_FAR, 8)
    assert (sent["temperature"], sent["stop"], sent["stream"]) == (0, ["!"], True)
    assert (event.outcome, event.engine, event.continued) == (Outcome.OK, "b", True)
    assert (event.num_attempts, event.retried, event.num_output_tokens) == (2, ("b",), 10)
    assert event.broken == ""
    assert breaker.state is BreakerState.CLOSED


async def test_engine_that_leaves_while_the_rest_is_tokenized() -> None:
    """The engine that would have gone on is drained before the tokens of the text so far are there: another
    one goes on."""

    def draining(script: Script) -> Script:
        async def drain_then(connection: Connection) -> None:
            engines[1].draining = engines[1].draining or b"/tokenize" in connection.head
            await script(connection)

        return drain_then

    rest = draining(goes_on(REST))
    async with scripted(draining(then_dies(FIRST))) as a, scripted(rest) as b, scripted(rest) as c:
        engines = [engine_at(server.port, name) for server, name in ((a, "a"), (b, "b"), (c, "c"))]
        async with path_to(engines) as path:
            await ask(path.port, post(request()))
            event = await path.finished()
    assert engines[1].draining
    assert (event.outcome, event.engine, event.continued) == (Outcome.OK, "c", True)
    assert not [head for head in b.heads if b"/v1/completions " in head]


async def test_usage_that_was_not_asked_for_stays_out() -> None:
    """The client did not ask for usage: it reads none."""
    events, event, *_ = await run(request(), then_dies(FIRST), goes_on(REST))
    assert all("usage" not in chunk for chunk in parsed(events))
    assert events[-1] == b"data: [DONE]"
    assert event.num_output_tokens == 10


async def test_stream_that_cannot_be_gone_on_with() -> None:
    """In the middle of an event, with several choices, switched off, at the limit of tokens, or after two
    engines were lost: an error event and no [DONE]."""
    cut = [*FIRST, b'data: {"choices":[{"text":"o']
    cases = [
        (request(), cut, REST, {}),
        (request(n=2, temperature=1), FIRST, REST, {}),
        (request(), FIRST, REST, {"continues": False}),
        (request(max_tokens=2), FIRST, REST, {}),
    ]
    for body, first, rest, options in cases:
        events, event, b, _ = await run(body, then_dies(first), goes_on(rest), **options)
        assert b'"error"' in events[-1]
        assert b"data: [DONE]" not in events
        assert event.outcome is Outcome.BROKEN
        assert not [head for head in b.heads if b"/v1/completions " in head]
    events, event, *_ = await run(request(), then_dies(FIRST), then_dies(REST[:1]))
    assert [b'"error"' in line for line in events] == [False, False, False, True]
    assert event.outcome is Outcome.BROKEN


async def test_cut_that_the_client_did_not_see() -> None:
    """The engine dies in the middle of an event of which nothing was passed on: the stream goes on."""
    events, event, *_ = await run(request(), then_dies([*FIRST, b'data: {"id']), goes_on(REST))
    assert events[-1] == b"data: [DONE]"
    assert event.outcome is Outcome.OK


async def test_next_engine_that_refuses() -> None:
    """The next engine answers 400 or dies at once: the client is told that the stream broke, once."""

    async def die(connection: Connection) -> None:
        connection.writer.transport.abort()

    for rest in (answer(b"{}", b"400 Bad"), die):
        events, event, *_ = await run(request(), then_dies(FIRST), rest)
        assert [b'"error"' in line for line in events] == [False, False, True]
        assert event.outcome is Outcome.BROKEN


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, True),
        ({"n": 1, "seed": 3, "top_p": 0.5, "repetition_penalty": 1.1, "user": "u", "logprobs": None}, True),
        ({"response_format": {"type": "text"}, "presence_penalty": 0, "stream_options": None}, True),
        ({"n": 2}, False),
        ({"logprobs": 0}, False),
        ({"presence_penalty": 0.5}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"structured_outputs": {"regex": "a"}}, False),
        ({"ignore_eos": True}, False),
        ({"echo": True}, False),
        ({"a_field_of_tomorrow": 1}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"prompt": ["a", "b"]}, False),
        ({"stream": False}, False),
    ],
)
def test_what_may_be_gone_on_with(fields: dict[str, Any], allowed: bool) -> None:
    """Only what is known to be sound; whatever is not known is not."""
    body = {"model": "m", "prompt": "a", "stream": True, **fields}
    api = parse(Endpoint.COMPLETIONS, json.dumps(body).encode(), ClientKv.REFUSE)
    assert is_continuable(api) is allowed


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({}, True),
        ({"tools": [], "logprobs": False, "max_completion_tokens": 5}, True),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, False),
        ({"logprobs": True}, False),
    ],
)
def test_what_chats_may_be_gone_on_with(fields: dict[str, Any], allowed: bool) -> None:
    """The same for chats."""
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True, **fields}
    assert is_continuable(parse(Endpoint.CHAT, json.dumps(body).encode(), ClientKv.REFUSE)) is allowed
