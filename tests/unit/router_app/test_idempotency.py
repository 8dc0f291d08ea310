"""Repeated requests: one generation, one answer, and bounded memory."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import REQUEST, STREAM, Connection, answer, ask, engine_at, path_to, post, scripted
from tests.waiting import settled, until, within

from anbar.adapters.http.message import Answer, Request
from anbar.apps.router.idempotency import Claim, Idempotency, IdempotencyConfig
from anbar.core.clock import ManualClock
from anbar.core.errors import RequestError
from anbar.core.outcome import RequestFinished

GOOD = b'{"choices": [{"text": "x"}]}'
KEY = b"connection: close\r\nidempotency-key: k-1\r\n"


async def test_repetition_gets_the_first_answer() -> None:
    """The same request again: the same body from no engine, and a header that says so; another key is another
    request."""
    async with scripted(answer(GOOD)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        first = await ask(path.port, post(REQUEST, KEY))
        again = await ask(path.port, post(REQUEST, KEY + b"x-request-id: second\r\n"))
        other = await ask(path.port, post(REQUEST, KEY.replace(b"k-1", b"k-2")))
        await until(lambda: len(path.events) == 3)
    assert first.endswith(GOOD)
    assert again.endswith(GOOD)
    assert b"idempotent-replayed: true\r\n" in again
    assert b"content-type: application/json\r\n" in again
    assert b"x-request-id: second\r\n" in again
    assert b"idempotent-replayed" not in first + other
    assert len(engine.heads) == 2
    assert [event.replayed for event in path.events if isinstance(event, RequestFinished)] == [
        False,
        True,
        False,
    ]


async def test_other_body_or_other_client() -> None:
    """The same key with another body: 422. From somebody who shows to be somebody else: another request."""
    async with scripted(answer(GOOD)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        await ask(path.port, post(REQUEST, KEY))
        reused = await ask(path.port, post(REQUEST + b" ", KEY))
        for shown in (b"authorization: Bearer b", b"x-api-key: b", b"api-key: b", b"cookie: b=b"):
            await ask(path.port, post(REQUEST, KEY + shown + b"\r\n"))
    assert reused.startswith(b"HTTP/1.1 422 ")
    assert b'"code":"idempotency_key_reused"' in reused
    assert len(engine.heads) == 5


async def test_failed_first_is_not_kept() -> None:
    """400, then a good answer under the same key: what failed is done again."""
    async with (
        scripted(answer(b"{}", b"400 Bad")) as engine,
        path_to([engine_at(engine.port, "a")]) as path,
    ):
        assert (await ask(path.port, post(REQUEST, KEY))).startswith(b"HTTP/1.1 400 ")
        engine.script = answer(GOOD)
        assert (await ask(path.port, post(REQUEST, KEY))).endswith(GOOD)
        assert (await ask(path.port, post(REQUEST, KEY))).endswith(GOOD)
    assert len(engine.heads) == 2


async def test_streams_are_not_kept() -> None:
    """The header has no effect on a stream."""
    async with scripted(answer(GOOD)) as engine, path_to([engine_at(engine.port, "a")]) as path:
        for _ in range(2):
            await ask(path.port, post(STREAM, KEY))
    assert len(engine.heads) == 2


async def test_duplicates_wait_for_the_first() -> None:
    """Five at once: one reaches the engine, and all get its answer."""
    computed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await computed.wait()
        await answer(GOOD)(connection)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        asking = [asyncio.create_task(ask(path.port, post(REQUEST, KEY))) for _ in range(5)]
        await until(lambda: len(path.flow._tasks) == 5)
        await until(lambda: engine.heads)
        assert await settled(lambda: len(engine.heads)) == 1
        computed.set()
        answers = await within(asyncio.gather(*asking))
    assert all(text.endswith(GOOD) for text in answers)
    assert sum(b"idempotent-replayed" in text for text in answers) == 4
    assert len(engine.heads) == 1


async def test_next_one_runs_when_the_first_client_leaves() -> None:
    """The first client goes away: its generation is given up, and the one that waits runs instead."""

    async def script(connection: Connection) -> None:
        if len(engine.heads) == 1:
            await connection.gone()
        else:
            await answer(GOOD)(connection)

    async with scripted(script) as engine, path_to([engine_at(engine.port, "a")]) as path:
        _, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(REQUEST, KEY))
        await until(lambda: engine.heads)
        second = asyncio.create_task(ask(path.port, post(REQUEST, KEY)))
        await until(lambda: len(path.flow._tasks) == 2)
        writer.transport.abort()
        text = await within(second)
    assert text.endswith(GOOD)
    assert b"idempotent-replayed" not in text
    assert len(engine.heads) == 2


def request(key: int, body: bytes = b"") -> Request:
    return Request(b"POST", b"/v1/completions", ((b"idempotency-key", b"%d" % key),), body)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3000), st.floats(0, 40))))
def test_memory_and_time_are_bounded(steps: list[tuple[int, int, float]]) -> None:
    """Whatever is asked: at most so many bytes are kept, nothing older than the window is given, and what is
    given is what was kept last."""
    clock = ManualClock()
    store = Idempotency(IdempotencyConfig(window_s=60.0, max_bytes=8000), clock)
    kept: dict[int, tuple[float, bytes]] = {}

    async def run() -> None:
        for key, size, passed_s in steps:
            clock.advance(passed_s)
            found = await store.claim(request(key))
            if isinstance(found, Answer):
                since_s, body = kept[key]
                assert found.body == body
                assert clock.now_s() - since_s < 60.0
                continue
            assert isinstance(found, Claim)
            with found as claim:
                claim.body(b"x" * size)
                claim.keep(200, ())
            kept[key] = (clock.now_s(), b"x" * size)
            assert store.num_bytes <= 8000
            assert len(store) <= 7

    asyncio.run(run())


async def test_answer_longer_than_all_may_be_is_not_kept() -> None:
    """It is passed on, and a repetition runs again."""
    store = Idempotency(IdempotencyConfig(max_bytes=4096), ManualClock())
    for _ in range(2):
        claim = await store.claim(request(1))
        assert isinstance(claim, Claim)
        with claim:
            for _ in range(5):
                claim.body(b"x" * 1000)
            claim.keep(200, ())
    assert (len(store), store.num_bytes) == (0, 0)


async def test_odd_keys_and_no_window() -> None:
    """An empty or endless key is 400; without a window the header means nothing."""
    store = Idempotency(IdempotencyConfig(), ManualClock())
    for key in (b"", b"k" * 256):
        with pytest.raises(RequestError):
            await store.claim(Request(b"POST", b"/", ((b"idempotency-key", key),), b""))
    assert await store.claim(Request(b"POST", b"/", (), b"")) is None
    assert await Idempotency(IdempotencyConfig(window_s=0.0), ManualClock()).claim(request(1)) is None
