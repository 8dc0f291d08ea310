"""A stream is asked for its usage, and the client gets the stream as if nobody had asked."""

import pytest
from scripted import END, SSE, Connection, Script, answer, ask, engine_at, path_to, post, scripted

from anbar.apps.router.engine import UsageOption
from anbar.core.outcome import Outcome

PLAIN = b'{"model": "m",  "prompt": [1, 2, 3, 4, 5], "stream": true}'
ASKING = b'{"stream_options":{"include_usage":true},"model": "m",  "prompt": [1, 2, 3, 4, 5], "stream": true}'
TOKENS = (b'data: {"choices":[{"text":"a"}]}\n\n', b'data: {"choices":[{"text":"b"}]}\n\n')
USAGE = (
    b'data: {"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
REFUSAL = b'{"error":{"message":"extra fields not permitted","code":400}}'


def stream(*pieces: bytes, end: bytes = END) -> Script:
    """Answer with a stream in these pieces; without `end` it breaks off."""

    async def script(connection: Connection) -> None:
        await connection.send(SSE)
        for piece in pieces:
            await connection.send_chunk(piece)
        if end:
            await connection.send(end)
        else:
            connection.writer.transport.abort()

    return script


def body_of(text: bytes) -> bytes:
    """The body of a chunked answer."""
    rest, body = text.partition(b"\r\n\r\n")[2], b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@pytest.mark.parametrize(
    "pieces", [(*TOKENS, USAGE, DONE), (TOKENS[0], TOKENS[1] + USAGE[:30], USAGE[30:] + DONE)]
)
async def test_the_router_asks_and_takes_the_answer_out(pieces: tuple[bytes, ...]) -> None:
    """The option is put in, the event that it brings does not reach the client, and what it says is noted."""
    async with scripted(stream(*pieces)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(PLAIN))
        event = await path.finished()
        assert path.fleet["a"].usage is UsageOption.TAKEN
    assert engine.bodies == [ASKING]
    assert b"content-length: %d\r\n" % len(ASKING) in engine.heads[0]
    assert body_of(text) == b"".join((*TOKENS, DONE))
    assert (event.num_output_tokens, event.reported_cached_tokens) == (2, 3)


async def test_a_client_that_asks_gets_its_event() -> None:
    """Its bytes go as they are, and so does the whole stream."""
    body = PLAIN[:-1] + b',"stream_options": {"include_usage": true}}'
    async with (
        scripted(stream(*TOKENS, USAGE, DONE)) as engine,
        path_to([engine_at(engine.port, "a")]) as path,
    ):
        text = await ask(path.port, post(body))
        await path.finished()
    assert engine.bodies == [body]
    assert body_of(text) == b"".join((*TOKENS, USAGE, DONE))


async def test_a_stream_of_known_length() -> None:
    """The promise of a content-length is not kept up when the event is taken out."""
    body = b"".join((*TOKENS, USAGE, DONE))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def script(connection: Connection) -> None:
        await connection.send(head + body)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(PLAIN))
        await path.finished()
    assert body_of(text) == b"".join((*TOKENS, DONE))


@pytest.mark.parametrize("refusal", [b"400 Bad Request", b"422 Unprocessable Entity"])
async def test_an_engine_that_does_not_know_the_option(refusal: bytes) -> None:
    """It refuses the request: it gets the client's bytes, and is not asked again."""

    async def script(connection: Connection) -> None:
        known = stream(*TOKENS, DONE) if connection.body == PLAIN else answer(REFUSAL, refusal)
        await known(connection)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        for _ in range(2):
            text = await ask(path.port, post(PLAIN))
            event = await path.finished()
            assert body_of(text) == b"".join((*TOKENS, DONE))
            assert (event.outcome, event.num_attempts, event.reported_cached_tokens) == (Outcome.OK, 1, None)
            path.events.clear()
        assert path.fleet["a"].usage is UsageOption.REFUSED
    assert engine.bodies == [ASKING, PLAIN, PLAIN]


async def test_a_clients_own_error_is_its_own() -> None:
    """A request that is refused with and without the option: the client gets the refusal, and the engine is
    asked with the next one. Once it has taken the option, a refused request is sent once."""
    async with (
        scripted(answer(REFUSAL, b"400 Bad Request")) as engine,
        path_to([engine_at(engine.port, "a")]) as path,
    ):
        text = await ask(path.port, post(PLAIN))
        assert text.startswith(b"HTTP/1.1 400 ")
        assert text.endswith(REFUSAL)
        assert path.fleet["a"].usage is UsageOption.UNTRIED
        engine.script = stream(*TOKENS, USAGE, DONE)
        await ask(path.port, post(PLAIN))
        engine.script = answer(REFUSAL, b"400 Bad Request")
        text = await ask(path.port, post(PLAIN))
        assert text.endswith(REFUSAL)
    assert engine.bodies == [ASKING, PLAIN, ASKING, ASKING]


async def test_an_engine_that_dies_in_the_usage_event() -> None:
    """What there was of the event is none: the client gets its tokens and an event about the failure."""
    pieces = (*TOKENS, USAGE[:40])
    async with scripted(stream(*pieces, end=b"")) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(PLAIN))
        event = await path.finished()
    body = body_of(text)
    assert body.startswith(b"".join(TOKENS) + b'data: {"error"')
    assert b"cmpl-1" not in body
    assert event.outcome is Outcome.BROKEN


async def test_a_stream_that_ends_in_an_event() -> None:
    """An engine that ends a stream inside an event, in good order: the client gets all of it."""
    pieces = (*TOKENS, USAGE[:40])
    async with scripted(stream(*pieces)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(PLAIN))
    assert body_of(text) == b"".join(pieces)
