"""What is tried again, on whom, how often, and what an engine's failures do to its breaker."""

import asyncio
from dataclasses import replace

import pytest
from scripted import (
    IMPATIENT,
    LIMITS,
    REQUEST,
    SSE,
    STREAM,
    Connection,
    answer,
    ask,
    die,
    engine_at,
    hang,
    path_to,
    post,
    scripted,
)
from tests.waiting import PATIENCE_S, within

from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailed, AttemptFailure, Outcome, RequestFinished, RetryRefused
from anbar.route.breaker import BreakerConfig, BreakerState, Signal
from anbar.route.rendezvous import lot
from anbar.route.retry_budget import RetryConfig
from anbar.route.targets import Target, Targets

GOOD = b'{"choices": [{"text": "x"}]}'
EVENT = b'data: {"choices":[1]}\n\n'


@pytest.mark.parametrize(
    ("status", "kind"),
    [(b"500 Broken", AttemptFailure.ERROR), (b"429 Busy", AttemptFailure.BUSY)],
)
async def test_500_and_429_are_tried_elsewhere(status: bytes, kind: AttemptFailure) -> None:
    """Nothing was delivered: the next engine answers, and the client sees only that."""
    async with (
        scripted(answer(b"{}", status)) as bad,
        scripted(answer(GOOD)) as good,
        path_to([engine_at(bad.port, "a"), engine_at(good.port, "b")]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (event.num_attempts, event.engine) == (2, "b")
    assert [e.failure for e in path.events if isinstance(e, AttemptFailed)] == [kind]


@pytest.mark.parametrize("status", [b"429 Busy", b"500 Broken"])
async def test_a_name_is_served_by_its_other_group(status: bytes) -> None:
    """A name stands for two groups of one engine each. The drawn one asks for a pause, or fails until its
    breaker opens; from then on the same key gets the other one's answer."""
    groups = [Target("m", frozenset({EngineId(name)})) for name in "ab"]
    key = next(f"k{number}" for number in range(100) if lot(f"name\0k{number}") < 0.5)
    request = post(
        REQUEST.replace(b'"m"', b'"name"'), b"connection: close\r\nx-request-id: %b\r\n" % key.encode()
    )
    num_bad = 1 if status.startswith(b"429") else BreakerConfig().max_failures
    async with (
        scripted(answer(b"{}", status, b"retry-after: 30\r\n")) as bad,
        scripted(answer(GOOD)) as good,
        path_to(
            [engine_at(bad.port, "a"), engine_at(good.port, "b")], targets=Targets({"name": groups})
        ) as path,
    ):
        before = [await ask(path.port, request) for _ in range(num_bad)]
        text = await ask(path.port, request)
    assert all(text.startswith(b"HTTP/1.1 " + status[:3]) for text in before)
    assert text.endswith(GOOD)
    assert (len(bad.heads), len(good.heads)) == (num_bad, 1)


async def test_request_that_two_engines_fail_on_is_not_given_to_a_third() -> None:
    """Two engines answer 500: it is the request's own doing, and the second one's words are the answer."""
    async with (
        scripted(answer(b'{"a":1}', b"500 Broken")) as a,
        scripted(answer(b'{"b":1}', b"500 Broken")) as b,
        scripted(answer(GOOD)) as c,
        path_to([engine_at(end.port, name) for end, name in ((a, "a"), (b, "b"), (c, "c"))]) as path,
    ):
        text = await ask(path.port, post(REQUEST))
        await path.finished()
    assert text.startswith(b"HTTP/1.1 500 ")
    assert text.endswith(b'{"b":1}')
    assert c.heads == []


async def test_retry_after_is_respected_and_passed_on() -> None:
    """Both engines ask for a pause: the second one's 429 passes with its Retry-After; the next request asks
    nobody and is told the shorter time; when that is over, that engine is asked again."""
    async with (
        scripted(answer(b"{}", b"429 Busy", b"retry-after: 20\r\n")) as a,
        scripted(answer(b"{}", b"503 Busy", b"retry-after: 7\r\n")) as b,
        path_to([engine_at(a.port, "a"), engine_at(b.port, "b")]) as path,
    ):
        first = await ask(path.port, post(REQUEST))
        second = await ask(path.port, post(REQUEST))
        assert (len(a.heads), len(b.heads)) == (1, 1)
        path.clock.advance(7.0)
        b.script = answer(GOOD)
        third = await ask(path.port, post(REQUEST))
        assert all(engine.breaker.state is BreakerState.CLOSED for engine in path.fleet)
    assert first.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 7\r\n" in first
    assert second.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: 7\r\n" in second
    assert b'"code":"engines_busy"' in second
    assert third.endswith(GOOD)


@pytest.mark.parametrize(
    "retries", [RetryConfig(share=0.0, floor=2), RetryConfig(share=0.5, floor=0)], ids=str
)
async def test_budget_bounds_retries(retries: RetryConfig) -> None:
    """Two engines that answer 503 to everything and a budget of two, or of half of the four requests:
    two requests are tried twice, the others once, and the answers are the engines' own."""
    async with (
        scripted(answer(b"{}", b"503 Down")) as a,
        scripted(answer(b"{}", b"503 Down")) as b,
        path_to([engine_at(a.port, "a"), engine_at(b.port, "b")], retries=retries) as path,
    ):
        texts = [await ask(path.port, post(REQUEST)) for _ in range(4)]
    assert {text[:12] for text in texts} == {b"HTTP/1.1 503"}
    assert len(a.heads) + len(b.heads) == 4 + 2
    assert path.events.count(RetryRefused()) == 2


async def test_moving_from_a_dead_engine_costs_no_budget() -> None:
    """An engine that drops the connection is out until it is probed, so what it had moves on for nothing."""
    async with (
        scripted(die) as dead,
        scripted(answer(GOOD)) as good,
        path_to(
            [engine_at(dead.port, "a"), engine_at(good.port, "b")], retries=RetryConfig(share=0.0, floor=0)
        ) as path,
    ):
        assert (await ask(path.port, post(REQUEST))).endswith(GOOD)
        await path.finished()


async def test_failures_in_a_row_open_the_breaker() -> None:
    """An engine that answers 500 to all, first in order: five requests meet it, then none; once a probe came
    after the pause one more is tried, and a good answer closes it."""
    async with (
        scripted(answer(b"{}", b"500 Broken")) as bad,
        scripted(answer(GOOD)) as good,
        path_to([engine_at(bad.port, "a"), engine_at(good.port, "b")]) as path,
    ):
        for _ in range(8):
            assert (await ask(path.port, post(REQUEST))).endswith(GOOD)
        assert len(bad.heads) == 5
        breaker = path.fleet["a"].breaker
        assert breaker.state is BreakerState.OPEN
        path.clock.advance(1.0)
        breaker.probed(path.clock.now_s())
        bad.script = answer(GOOD)
        assert b"x-anbar-engine: a" in await ask(path.port, post(REQUEST))
        assert breaker.state is BreakerState.CLOSED


async def test_client_errors_never_open_the_breaker() -> None:
    """Forty 400s of the engine, then good traffic: it stays in use."""
    async with (
        scripted(answer(b"{}", b"400 Bad")) as engine,
        path_to([engine_at(engine.port, "a")]) as path,
    ):
        for _ in range(40):
            assert (await ask(path.port, post(REQUEST))).startswith(b"HTTP/1.1 400 ")
        assert path.fleet["a"].breaker.state is BreakerState.CLOSED


async def test_timeout_opens_the_breaker() -> None:
    """One request that an engine never answers is enough."""
    async with scripted(hang) as engine, path_to([engine_at(engine.port, "a", limits=IMPATIENT)]) as path:
        await ask(path.port, post(REQUEST))
        await path.finished()
        assert path.fleet["a"].breaker.state is BreakerState.OPEN


async def test_stall_in_a_stream_opens_the_breaker() -> None:
    """A stream that stops: broken off after the idle timeout, and the engine gets no more for now."""

    async def stall(connection: Connection) -> None:
        await connection.send(SSE)
        await connection.send_chunk(EVENT)
        await connection.gone()

    limits = replace(LIMITS, idle_timeout_s=0.1)
    async with scripted(stall) as engine, path_to([engine_at(engine.port, "a", limits=limits)]) as path:
        text = await ask(path.port, post(STREAM))
        await path.finished()
        assert path.fleet["a"].breaker.state is BreakerState.OPEN
    assert b"sent nothing for 0.1 s" in text


async def test_stream_that_takes_too_long_in_all() -> None:
    """An engine that sends on and on: at the total timeout the stream ends with an error event, the engine's
    side is closed, and nothing is held against it."""
    closed = asyncio.Event()

    async def endless(connection: Connection) -> None:
        path.clock.advance(PATIENCE_S)
        await connection.send(SSE)
        try:
            while True:
                await connection.send_chunk(EVENT)
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    async with (
        scripted(endless) as engine,
        path_to([engine_at(engine.port, "a")], total_timeout_s=PATIENCE_S) as path,
    ):
        text = await ask(path.port, post(STREAM))
        event = await path.finished()
        await within(closed.wait())
        assert path.fleet["a"].breaker.state is BreakerState.CLOSED
    assert b"router.total_timeout_s" in text
    assert b"[DONE]" not in text
    assert event.outcome is Outcome.BROKEN


async def test_engine_that_has_not_answered_when_the_request_is_over() -> None:
    """The total timeout is less than what an engine may take for its first byte: the request is over, no
    second engine is asked, and nothing is held against the first. The router's clock has not come so far: it
    is not the one that the timeout ran on."""
    async with scripted(hang) as first, scripted(hang) as second:
        engines = [engine_at(first.port, "a"), engine_at(second.port, "b")]
        async with path_to(engines, total_timeout_s=0.05) as path:
            text = await ask(path.port, post(REQUEST))
            event = await path.finished()
    assert text.startswith(b"HTTP/1.1 504 ")
    assert b"router.total_timeout_s" in text
    assert (event.num_attempts, second.heads) == (1, [])
    assert (engines[0].breaker.state, engines[0].is_ready) == (BreakerState.CLOSED, True)


async def test_first_byte_of_a_trial_lets_others_in() -> None:
    """The one stream that a half-open engine gets has begun well: the others need not wait for its end."""

    async def begins(connection: Connection) -> None:
        await connection.send(SSE)
        await connection.send_chunk(b"data: 1\n\n")
        await connection.gone()

    async with scripted(begins) as engine, path_to([engine_at(engine.port, "a")]) as path:
        breaker = path.fleet["a"].breaker
        breaker.end(breaker.begin(), Signal.STALLED, 0.0)
        breaker.probed(1.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(STREAM))
        await within(reader.readuntil(b"data: 1"))
        state = breaker.state
        writer.transport.abort()
        await path.finished()
    assert state is BreakerState.CLOSED


async def test_trial_of_a_client_that_leaves_is_given_back() -> None:
    """The one request that a half-open engine gets is given up by its client: the next may try."""

    async def slow(connection: Connection) -> None:
        started.set()
        await connection.gone()

    started = asyncio.Event()
    async with scripted(slow) as engine, path_to([engine_at(engine.port, "a")]) as path:
        breaker = path.fleet["a"].breaker
        for _ in range(5):
            breaker.end(breaker.begin(), Signal.FAILED, 0.0)
        breaker.probed(1.0)
        assert breaker.state is BreakerState.HALF_OPEN
        _, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(REQUEST))
        await within(started.wait())
        assert not breaker.admits
        writer.transport.abort()
        event = await path.finished()
        assert breaker.admits
    assert isinstance(event, RequestFinished)
    assert event.outcome is Outcome.CLIENT_GONE
