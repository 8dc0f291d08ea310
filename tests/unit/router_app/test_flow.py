"""The life of a routed request: what the client gets, what engines see, and that no share of load leaks."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import pytest
from scripted import (
    END,
    IMPATIENT,
    REQUEST,
    SSE,
    STREAM,
    Connection,
    InOrder,
    Script,
    ScriptedEngine,
    answer,
    ask,
    die,
    engine_at,
    hang,
    no_more_descriptors,
    path_to,
    post,
    scripted,
)
from tests.ports import free_port
from tests.waiting import PATIENCE_S, settled, until, within

from anbar.adapters.http.fetch import fetch
from anbar.core.fleet import EngineState, EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailed, AttemptFailure, Outcome
from anbar.core.request import RouteQuery
from anbar.route import Sight

ANSWER = (
    b'{"choices": [{"text": "x"}],  "usage": {"prompt_tokens": 5, "completion_tokens": 4, '
    b'"prompt_tokens_details": {"cached_tokens": 3}}}'
)


def dying(engine: ScriptedEngine) -> Script:
    """Close the port and all connections when a request comes."""

    async def script(connection: Connection) -> None:
        assert engine.server is not None
        engine.server.close()
        connection.writer.transport.abort()

    return script


EVENTS = (b'data: {"choices":[1]}\n\n', b'data: {"choices":[2]}\n\n')
USAGE_EVENT = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


async def test_request_and_answer_cross_byte_for_byte() -> None:
    """The engine gets the client's body and target as sent, the client the engine's body; usage is read."""
    async with (
        scripted(answer(ANSWER, extra=b"x-custom: 1\r\n")) as engine,
        path_to([engine_at(engine.port, "a")], num_predicted=3) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
    assert text.endswith(b"\r\n\r\n" + ANSWER)
    assert engine.bodies == [REQUEST]
    assert engine.heads[0].startswith(b"POST /v1/completions?x=1 HTTP/1.1\r\n")
    for header in (
        b"x-anbar-engine: a\r\n",
        b"x-anbar-cached-tokens-predicted: 3\r\n",
        b"x-anbar-policy: in_order\r\n",
        b"x-anbar-degraded: no_cache_facts\r\n",
        b"x-custom: 1\r\n",
        b"content-length: %d\r\n" % len(ANSWER),
    ):
        assert header in text
    assert (event.outcome, event.status, event.engine, event.num_attempts) == (Outcome.OK, 200, "a", 1)
    assert (event.num_prompt_tokens, event.num_output_tokens) == (5, 4)
    assert (event.predicted_cached_tokens, event.reported_cached_tokens) == (3, 3)


async def test_secrets_end_at_the_router_and_the_engines_key_is_added() -> None:
    """Authorization, cookies, x-api-key, x-anbar-* and hop-by-hop headers do not reach the engine."""
    async with (
        scripted(answer(ANSWER)) as engine,
        path_to([engine_at(engine.port, "a", key="engine-key")]) as path,
    ):
        extra = (
            b"connection: close, x-hop\r\nx-hop: 1\r\nauthorization: Bearer client\r\ncookie: c=1\r\n"
            b"x-api-key: client\r\nx-anbar-scope: other\r\ntraceparent: 00-1\r\nx-request-id: my-id\r\n"
        )
        text = await ask(path.port, post(REQUEST, extra))
    head = engine.heads[0].lower()
    for absent in (b"client", b"cookie", b"x-anbar-", b"x-hop", b"connection"):
        assert absent not in head
    assert b"authorization: bearer engine-key\r\n" in head
    assert b"traceparent: 00-1\r\n" in head
    assert head.count(b"x-request-id: my-id\r\n") == 1
    assert text.count(b"x-request-id: my-id\r\n") == 1
    assert b"x-anbar-request-id: my-id\r\n" in text


@pytest.mark.parametrize("bad", [b"a b", b"x" * 129, b"<script>", b"\xe9"])
async def test_odd_request_ids_are_replaced(bad: bytes) -> None:
    """A request id that could not stand in a log line is not taken over."""
    async with scripted(answer(ANSWER)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(REQUEST, b"connection: close\r\nx-request-id: " + bad + b"\r\n"))
    assert bad not in text
    assert b"x-request-id: " in text


async def test_stream_crosses_unbuffered() -> None:
    """Each event of a stream reaches the client before the engine sends the next one."""
    seen = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.send(SSE)
        await connection.send_chunk(EVENTS[0])
        await within(seen.wait())
        await connection.send_chunk(EVENTS[1])
        await connection.send_chunk(USAGE_EVENT)
        await connection.send(END)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        reader, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(STREAM))
        await within(reader.readuntil(EVENTS[0]))
        assert path.fleet["a"].load.num_decoding == 1
        assert path.fleet["a"].load.queued_prefill_tokens == 0
        seen.set()
        rest = await within(reader.read())
        writer.transport.abort()
        event = await path.finished()
    assert rest.endswith(b"\r\n0\r\n\r\n")
    assert b"error" not in rest
    assert (event.outcome, event.stream, event.num_output_tokens) == (Outcome.OK, True, 2)
    assert event.reported_cached_tokens is None


async def test_queued_prefill_counts_until_the_first_byte() -> None:
    """Five prompt tokens, three predicted cached: two are queued while the engine computes."""
    asked, computed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        asked.set()
        await computed.wait()
        await answer(ANSWER)(connection)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")], 3) as path:
        asking = asyncio.create_task(ask(path.port, post(REQUEST)))
        await within(asked.wait())
        load = path.fleet["a"].load
        assert (load.num_in_flight, load.queued_prefill_tokens, load.num_decoding) == (1, 2, 0)
        computed.set()
        assert (await asking).endswith(ANSWER)
        await path.finished()


async def test_only_engine_hangs() -> None:
    """No first byte in time, and no other engine: 504."""
    async with scripted(hang) as engine, path_to([engine_at(engine.port, "a", limits=IMPATIENT)]) as path:
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
    assert text.startswith(b"HTTP/1.1 504 ")
    assert event.outcome is Outcome.UPSTREAM_FAILED


async def test_refused_connection_falls_back() -> None:
    """The first engine is gone: the second answers, and the first gets nothing until it is probed."""
    async with (
        scripted(answer(ANSWER)) as engine,
        path_to([engine_at(free_port(), "a"), engine_at(engine.port, "b")]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
        assert path.fleet["a"].health.state is EngineState.UNHEALTHY
    assert text.endswith(ANSWER)
    assert b"x-anbar-engine: b\r\n" in text
    assert (event.engine, event.num_attempts) == ("b", 2)
    assert AttemptFailed(path.fleet["a"].id, AttemptFailure.UNREACHABLE, event.request_id) in path.events


@pytest.mark.parametrize("script", [die, hang], ids=["dies", "hangs"])
async def test_engine_that_fails_before_the_first_byte_falls_back(script: object) -> None:
    """Killed or hung with the request in hand: the next engine serves it; the client sees one good answer."""
    async with (
        scripted(script) as bad,
        scripted(answer(ANSWER)) as good,
        path_to([engine_at(bad.port, "a", limits=IMPATIENT), engine_at(good.port, "b")]) as path,
    ):  # type: ignore[arg-type]
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
        assert path.fleet["a"].health.state is EngineState.UNHEALTHY
    assert text.count(b"HTTP/1.1 ") == 1
    assert text.endswith(ANSWER)
    assert event.outcome is Outcome.OK


async def test_engine_that_dies_between_head_and_first_event_falls_back() -> None:
    """vLLM sends a stream's head before its prefill: a death then is still before the first byte."""

    async def script(connection: Connection) -> None:
        await connection.send(SSE)
        connection.writer.transport.abort()

    async def good(connection: Connection) -> None:
        await connection.send(SSE)
        await connection.send_chunk(EVENTS[0])
        await connection.send(END)

    async with (
        scripted(script) as first,
        scripted(good) as second,
        path_to([engine_at(first.port, "a"), engine_at(second.port, "b")]) as path,
    ):
        text = await ask(path.port, post(STREAM))
        await path.finished()
    assert text.count(b"HTTP/1.1 200") == 1
    assert b"x-anbar-engine: b" in text
    assert EVENTS[0] in text


async def test_request_that_kills_two_engines_is_not_given_to_a_third() -> None:
    """Two engines die on it: 502, and the third never sees it."""
    async with scripted(die) as a, scripted(die) as b, scripted(answer(ANSWER)) as c:
        engines = [engine_at(e.port, n) for e, n in ((a, "a"), (b, "b"), (c, "c"))]
        async with path_to(engines) as path:
            text = await ask(path.port, post(REQUEST))
            event = await path.finished()
    assert text.startswith(b"HTTP/1.1 502 ")
    assert b'"code":"engine_unreachable"' in text
    assert (event.outcome, c.heads) == (Outcome.UPSTREAM_FAILED, [])


async def test_request_that_kills_engines_on_kept_connections_is_not_given_to_a_third() -> None:
    """The same with connections kept from earlier requests, and engines whose ports close as they die: that
    a dead engine cannot be reached anew does not mean that it never had the request."""
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(scripted(answer(ANSWER))) for _ in range(4)]
        engines = [engine_at(end.port, name) for end, name in zip(ends, "abcd", strict=True)]
        path = await stack.enter_async_context(path_to(engines))
        for engine in engines:
            await fetch(engine.pool, "/health", timeout_s=PATIENCE_S)
            assert engine.pool.num_idle == 1
        for end in ends:
            end.script = dying(end)
        text = await ask(path.port, post(REQUEST))
    assert text.startswith(b"HTTP/1.1 502 ")
    assert [len(end.heads) for end in ends] == [2, 2, 1, 1]


async def test_fallback_that_is_lost_meanwhile() -> None:
    """The first engine says 503 while another one was ready, which is unhealthy by then: the client reads
    what it said."""

    async def script(connection: Connection) -> None:
        path.fleet["b"].health.connection_failed("gone")
        await answer(b"{}", b"503 Busy")(connection)

    async with (
        scripted(script) as busy,
        path_to([engine_at(busy.port, "a"), engine_at(1, "b")]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
    assert text.startswith(b"HTTP/1.1 503 ")
    assert event.outcome is Outcome.ENGINE_ERROR


async def test_router_without_file_descriptors_blames_no_engine() -> None:
    """The process may open no more files: the request fails, its reason says why, the engine stays ready."""
    async with scripted(answer(ANSWER)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        reader, writer = await asyncio.open_connection("127.0.0.1", path.port)
        await until(lambda: path.server.connections)
        with no_more_descriptors():
            writer.write(post(REQUEST))
            text = await within(reader.read())
        writer.transport.abort()
        event = await path.finished()
        assert path.fleet["a"].health.state is EngineState.READY
    assert b"no file descriptor left" in text
    assert AttemptFailed(path.fleet["a"].id, AttemptFailure.NO_DESCRIPTOR, event.request_id) in path.events


@pytest.mark.parametrize("status", [b"502 Bad Gateway", b"503 Service Unavailable", b"504 Gateway Timeout"])
async def test_unavailable_engine_is_passed_over_but_stays_ready(status: bytes) -> None:
    """502, 503, 504: the next engine is asked; whether the first is healthy is for probes to say."""
    async with (
        scripted(answer(b"{}", status)) as busy,
        scripted(answer(ANSWER)) as good,
        path_to([engine_at(busy.port, "a"), engine_at(good.port, "b")]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        await path.finished()
        assert path.fleet["a"].health.state is EngineState.READY
    assert text.endswith(ANSWER)


async def test_last_unavailable_answer_is_passed_through() -> None:
    """All engines say 503: the client gets the last one's own words."""
    async with (
        scripted(answer(b'{"a":1}', b"503 Busy")) as a,
        scripted(answer(b'{"b":1}', b"503 Busy")) as b,
        path_to([engine_at(a.port, "a"), engine_at(b.port, "b")]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
    assert text.startswith(b"HTTP/1.1 503 ")
    assert text.endswith(b'{"b":1}')
    assert event.outcome is Outcome.ENGINE_ERROR


@pytest.mark.parametrize("status", [b"400 Bad", b"422 Odd", b"408 Slow", b"501 Never"])
async def test_other_errors_are_the_answer_and_never_count(status: bytes) -> None:
    """A 4xx passes through with its headers; the engine stays ready; no other one is asked."""
    script = answer(b'{"error":1}', status, b"retry-after: 7\r\n")
    async with (
        scripted(script) as engine,
        scripted(answer(ANSWER)) as other,
        path_to([engine_at(engine.port, "a"), engine_at(other.port, "b")]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
        assert path.fleet["a"].health.state is EngineState.READY
    assert text.startswith(b"HTTP/1.1 " + status[:4])
    assert b"retry-after: 7\r\n" in text
    assert text.endswith(b'{"error":1}')
    assert (event.outcome, event.status, other.heads) == (Outcome.ENGINE_ERROR, int(status[:3]), [])


@pytest.mark.parametrize("partial", [b"", b'data: {"cho'], ids=["between events", "within an event"])
async def test_stream_that_breaks_ends_with_an_error_event(partial: bytes) -> None:
    """The engine dies in a stream: a final error event of its own, no [DONE], a complete HTTP message."""

    async def script(connection: Connection) -> None:
        await connection.send(SSE)
        await connection.send_chunk(EVENTS[0] + partial)
        connection.writer.transport.abort()

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(STREAM, b""))
        event = await path.finished()
    *_, last, empty = text.removesuffix(b"\r\n0\r\n\r\n").split(b"\n\n")
    assert text.endswith(b"\r\n0\r\n\r\n")
    assert empty == b""
    assert last.rpartition(b"\r\n")[2].lstrip(b"\n").startswith(b'data: {"error":{"message":')
    assert b"[DONE]" not in text
    assert event.outcome is Outcome.BROKEN


async def test_json_answer_that_breaks_is_cut() -> None:
    """The engine dies in a JSON body: the client's connection ends short of its content-length."""

    async def script(connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        connection.writer.transport.abort()

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        try:
            text = await ask(path.port, post(REQUEST))
        except ConnectionResetError:
            text = b"reset"
        event = await path.finished()
    assert text == b"reset" or text.endswith(b"\r\n\r\n{")
    assert event.outcome is Outcome.BROKEN


@pytest.mark.parametrize("streaming", [False, True], ids=["before the first byte", "in the stream"])
async def test_client_that_goes_away_cancels_the_engine(streaming: bool) -> None:
    """The client disconnects: the engine's connection is closed at once, and nothing stays counted."""
    started, closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        if streaming:
            await connection.send(SSE)
            await connection.send_chunk(EVENTS[0])
        started.set()
        try:
            await connection.gone()
        finally:
            closed.set()

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        reader, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(STREAM))
        await within(started.wait())
        if streaming:
            await within(reader.readuntil(EVENTS[0]))
        writer.transport.abort()
        await within(closed.wait())
        event = await path.finished()
        assert path.fleet["a"].health.state is EngineState.READY
    assert (event.outcome, event.status) == (Outcome.CLIENT_GONE, 499)


async def test_slow_client_holds_the_engine_back() -> None:
    """60 MB for a client that does not read: the engine is stopped early, and all of it arrives later."""
    total, sent = 60_000_000, 0

    async def script(connection: Connection) -> None:
        nonlocal sent
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            await connection.send(b"x" * 100_000)
            sent += 100_000

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        reader, writer = await asyncio.open_connection("127.0.0.1", path.port, limit=1000)
        writer.write(post(REQUEST))
        await until(lambda: any(connection.paused for connection in path.server.connections))
        assert await settled(lambda: sent) < total
        await reader.readuntil(b"\r\n\r\n")
        received = 0
        while data := await within(reader.read(1_000_000)):
            received += len(data)
        writer.transport.abort()
        await path.finished()
    assert received == total


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, None),
        (b'{"model":"other","prompt":"x"}', 404, b"model_not_found"),
        (b'{"model":"m","prompt":[]}', 400, b"empty_array"),
        (b'{"model":"m","prompt":[1],"max_tokens":1001}', 400, b"context_length_exceeded"),
        (b'{"model":"m","prompt":[' + b"1," * 999 + b"1]}", 400, b"context_length_exceeded"),
        (b'{"model":"m","prompt":"' + b"x" * 256_001 + b'"}', 400, b"context_length_exceeded"),
        (b'{"model":"m","prompt":"x","cache_salt":"s"}', 400, b"unsupported_parameter"),
    ],
)
async def test_wrong_requests_reach_no_engine(body: bytes, status: int, code: bytes | None) -> None:
    """A 4xx in OpenAI's shape with the request's id; no engine hears of it."""
    async with scripted(answer(ANSWER)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        text = await ask(path.port, post(body))
        event = await path.finished()
    assert text.startswith(b"HTTP/1.1 %d " % status)
    assert b'{"error":{"message":' in text
    assert code is None or b'"code":"%b"' % code in text
    assert b"x-request-id: " in text
    assert (engine.heads, event.outcome, event.status) == ([], Outcome.REFUSED, status)


async def test_unknown_model_makes_no_metric_label() -> None:
    """A model's name that no engine has does not get into the event."""
    async with scripted(answer(ANSWER)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        await ask(path.port, post(b'{"model":"made-up","prompt":"x"}'))
        assert (await path.finished()).model == ""


async def test_policy_that_looks_at_no_tokens_gets_none() -> None:
    """Nothing is tokenized for it, and its requests are served; a prompt beyond every context is refused all
    the same, unread."""
    seen: list[RouteQuery] = []

    class Blind(InOrder):
        sight = Sight.NOTHING

        def decide(
            self, query: RouteQuery, engines: Sequence[EngineView], matches: Mapping[EngineId, PrefixMatch]
        ) -> Route:
            seen.append(query)
            return super().decide(query, engines, matches)

    async with scripted(answer(ANSWER)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        object.__setattr__(path.flow.parts, "policy", Blind())
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
        path.events.clear()
        far = await ask(path.port, post(b'{"model":"m","prompt":"%b"}' % (b"x" * 300_000)))
        assert (await path.finished()).outcome is Outcome.REFUSED
    assert text.startswith(b"HTTP/1.1 200 ")
    assert far.startswith(b"HTTP/1.1 400 ")
    assert (event.outcome, event.tokenize_s, event.degraded) == (Outcome.OK, 0.0, "")
    assert [list(query.token_ids) for query in seen] == [[]]


async def test_defect_is_500_without_its_text() -> None:
    """An error nobody expected: 500, counted, and nothing of it in the answer."""

    class Broken:
        name = "broken"
        sight = Sight.CACHES

        def decide(self, *args: object) -> object:
            raise ZeroDivisionError("secret detail")

    async with scripted(answer(ANSWER)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        object.__setattr__(path.flow.parts, "policy", Broken())
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
    assert text.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in text
    assert event.outcome is Outcome.INTERNAL
    assert any(type(e).__name__ == "SupervisorCaught" for e in path.events)
