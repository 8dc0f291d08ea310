"""Requests whose prompt is computed by one engine and answered by another, whatever the first one does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from scripted import (
    ADMISSION,
    END,
    IMPATIENT,
    LIMITS,
    SSE,
    Connection,
    Path,
    Script,
    ScriptedEngine,
    answer,
    ask,
    die,
    engine_at,
    hang,
    path_to,
    post,
    scripted,
)
from tests.waiting import until, within

from anbar.apps.router.engine import Engine
from anbar.config.split import Role, SplitVia
from anbar.core.clock import ManualClock
from anbar.core.outcome import AttemptFailed, Outcome, PrefillEnded
from anbar.route.admission import AdmissionConfig

GOOD = b'{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}'
PROMPT = b'{"model": "m",  "prompt": [1, 2, 3, 4, 5], "max_tokens": 7, "stream": false, "unknown": 1.50}'
WHERE = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2]], "remote_port": 5}
COMPUTED = msgspec.json.encode(
    {
        "choices": [{"text": "x"}],
        "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}},
        "kv_transfer_params": WHERE,
    }
)


PREFILLS, ANSWERS = answer(COMPUTED), answer(GOOD)


def prefilling(port: int, name: str, limits: object = LIMITS) -> Engine:
    engine = engine_at(port, name, limits=limits)  # type: ignore[arg-type]
    engine.role = Role.PREFILL
    return engine


def body_of(engine: ScriptedEngine, index: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(engine.bodies[index])
    return found


@asynccontextmanager
async def pair(
    first: Script = PREFILLS,
    second: Script = ANSWERS,
    *,
    via: SplitVia = SplitVia.SHARED,
    limits: object = LIMITS,
    admission: AdmissionConfig = ADMISSION,
) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, Path]]:
    """One engine for prefill, one that answers."""
    async with (
        scripted(first) as p,
        scripted(second) as d,
        path_to(
            [prefilling(p.port, "p", limits), engine_at(d.port, "d")], via=via, admission=admission
        ) as path,
    ):
        yield p, d, path


async def test_through_the_store() -> None:
    """The prefill engine gets the client's request for one token, which it is to store; the other one gets
    the client's request and waits for what is stored. The client sees one answer, and who made it."""
    async with pair() as (p, d, path):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert b"\r\nx-anbar-engine: d\r\n" in text
    assert b"\r\nx-anbar-prefill-engine: p\r\n" in text
    stored = b'{"anbar":{"v":1,"store":"always"}}'
    assert p.bodies == [
        PROMPT.replace(b'{"model"', b'{"kv_transfer_params":%b,"model"' % stored).replace(
            b'"max_tokens": 7', b'"max_tokens": 1'
        )
    ]
    expected = b'{"anbar":{"v":1,"expect_tokens":5,"wait_ms":1000}}'
    assert d.bodies == [PROMPT.replace(b'{"model"', b'{"kv_transfer_params":%b,"model"' % expected)]
    assert (event.engine, event.prefill_engine, event.split) == ("d", "p", "split")
    assert [e.verdict for e in path.events if isinstance(e, PrefillEnded)] == ["split"]


async def test_over_nixl() -> None:
    """What the prefill engine says of its blocks reaches the decode engine as it is."""
    async with pair(via=SplitVia.NIXL) as (p, d, path):
        text = await ask(path.port, post(PROMPT))
        await path.finished()
    assert text.endswith(GOOD)
    params = body_of(p)["kv_transfer_params"]
    assert (params["do_remote_decode"], params["do_remote_prefill"]) == (True, False)
    assert body_of(d)["kv_transfer_params"] == WHERE


async def test_a_prefill_engine_without_a_connector_is_of_no_use() -> None:
    """It computes the prompt and says nothing of its blocks: the other engine gets the client's request."""
    async with pair(answer(GOOD), via=SplitVia.NIXL) as (_, d, path):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert d.bodies == [PROMPT]
    assert (event.split, b"x-anbar-prefill-engine" in text) == ("not_handed_over", False)


async def test_a_stream_is_asked_for_as_one_token() -> None:
    """A stream with usage, a least number of tokens: nothing of it reaches the prefill engine."""
    body = (
        b'{"model": "m", "prompt": [1, 2, 3, 4, 5], "stream": true, "min_tokens": 3, "max_tokens": 5,'
        b' "stream_options": {"include_usage": true}}'
    )
    async with pair() as (p, d, path):
        await ask(path.port, post(body))
        await path.finished()
    asked = body_of(p)
    assert (asked["stream"], asked["stream_options"], asked["min_tokens"], asked["max_tokens"]) == (
        False,
        None,
        0,
        1,
    )
    assert body_of(d)["stream"] is True


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 1},
        {"n": 2},
        {"prompt": [[1, 2], [3, 4]]},
        {"prompt": ["a", "b"]},
        {"prompt_logprobs": 1},
        {"best_of": 2},
    ],
)
async def test_what_cannot_be_split_is_not(change: dict[str, object]) -> None:
    """Several prompts or choices, one token, log-probabilities of the prompt: the client's own bytes go to
    the engine that answers, and nobody else is asked."""
    body = msgspec.json.encode({"model": "m", "prompt": [1, 2, 3], "max_tokens": 5, **change})
    async with pair() as (p, d, path):
        text = await ask(path.port, post(body))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (p.bodies, d.bodies) == ([], [body])
    assert event.split == "unfit"


@pytest.mark.parametrize("status", [b"500 Broken", b"503 Away", b"429 Busy"])
async def test_a_prefill_engine_that_fails_costs_no_request(status: bytes) -> None:
    """It is the only one for prefill: the decode engine computes."""
    async with pair(answer(b"{}", status)) as (p, d, path):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (len(p.bodies), d.bodies) == (1, [PROMPT])
    assert (event.split, event.outcome, event.num_attempts) == ("prefill_failed", Outcome.OK, 1)


@pytest.mark.parametrize("script", [die, hang])
async def test_a_lost_prefill_engine_is_replaced(script: Script) -> None:
    """The first one for prefill breaks off or never answers: the second one computes, and the first gets
    nothing until a probe succeeds."""
    async with (
        scripted(script) as bad,
        scripted(answer(COMPUTED)) as good,
        scripted(answer(GOOD)) as d,
        path_to(
            [
                prefilling(bad.port, "p0", IMPATIENT),
                prefilling(good.port, "p1"),
                engine_at(d.port, "d"),
            ],
            via=SplitVia.SHARED,
        ) as path,
    ):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
        ready = [engine.is_ready for engine in path.fleet]
    assert text.endswith(GOOD)
    assert (event.prefill_engine, event.engine, event.split) == ("p1", "d", "split")
    assert ready == [False, True, True]
    assert [e.engine for e in path.events if isinstance(e, AttemptFailed)] == ["p0"]


async def test_a_refusal_is_the_answering_engines_to_give() -> None:
    """The prefill engine answers 400: no breaker counts it, and the client reads the other one's words."""
    refusal = b'{"error": "mine"}'
    async with pair(answer(b"{}", b"400 Bad"), answer(refusal, b"400 Bad")) as (_, _, path):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
        breakers = {engine.breaker.state.value for engine in path.fleet}
    assert text.endswith(refusal)
    assert (event.split, breakers) == ("prefill_refused", {"closed"})


@pytest.mark.parametrize("via", [SplitVia.SHARED, SplitVia.NIXL])
async def test_the_next_decode_engine(via: SplitVia) -> None:
    """The first decode engine fails. What is in the store is there for the second one too; what one engine
    fetched from another is not, so the second one gets the client's own request. Prefill is not repeated."""
    async with (
        scripted(answer(COMPUTED)) as p,
        scripted(answer(b"{}", b"500 Broken")) as bad,
        scripted(answer(GOOD)) as good,
        path_to(
            [prefilling(p.port, "p"), engine_at(bad.port, "d0"), engine_at(good.port, "d1")], via=via
        ) as path,
    ):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (event.engine, event.num_attempts, len(p.bodies)) == ("d1", 2, 1)
    if via is SplitVia.SHARED:
        assert good.bodies == bad.bodies
    else:
        assert good.bodies == [PROMPT]


async def test_prefill_engines_answer_when_nobody_else_can() -> None:
    """The only decode engine is lost before its first byte: the prefill engine answers."""
    async with pair(second=die) as (p, _, path):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(COMPUTED)
    assert (event.engine, len(p.bodies)) == ("p", 2)
    assert body_of(p)["max_tokens"] == 7


async def test_without_a_decode_engine_nothing_is_split() -> None:
    """The decode engine is known to be away: the other one gets the client's request, once."""
    async with pair() as (p, _, path):
        path.fleet[next(e.id for e in path.fleet if e.role is Role.BOTH)].health.connection_failed("away")
        text = await ask(path.port, post(PROMPT))
        await path.finished()
    assert text.endswith(COMPUTED)
    assert p.bodies == [PROMPT]


async def test_a_client_that_goes_away_ends_the_prefill() -> None:
    """The client leaves while the prefill engine computes: its connection is closed, and no other engine
    hears of the request."""
    gone = asyncio.Event()

    async def compute(connection: Connection) -> None:
        await connection.gone()
        gone.set()

    async with pair(compute) as (p, d, path):
        _, writer = await asyncio.open_connection("127.0.0.1", path.port)
        writer.write(post(PROMPT))
        await until(lambda: len(p.bodies) == 1)
        writer.transport.abort()
        await within(gone.wait())
        event = await path.finished()
    assert (event.outcome, d.bodies) == (Outcome.CLIENT_GONE, [])


async def test_a_full_prefill_group_is_passed_over() -> None:
    """As many requests wait on the prefill engine as may: the decode engine computes the next one."""
    release = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await release.wait()
        await answer(COMPUTED)(connection)

    async with pair(slow, admission=replace(AdmissionConfig(), max_waiting=1)) as (p, d, path):
        first = asyncio.create_task(ask(path.port, post(PROMPT)))
        await until(lambda: len(p.bodies) == 1)
        second = await ask(path.port, post(PROMPT))
        release.set()
        assert second.endswith(GOOD)
        assert (await within(first)).endswith(GOOD)
    assert d.bodies[0] == PROMPT
    assert len(d.bodies) == 2


@pytest.mark.parametrize("via", [SplitVia.SHARED, SplitVia.NONE])
async def test_a_handed_over_request_teaches_nothing_of_the_decode_engine(via: SplitVia) -> None:
    """A stream whose prompt was computed elsewhere begins after 5 s: that is no prefill of the engine that
    answers. Without a split it is, and is learned from."""
    clocks: list[ManualClock] = []

    async def begin_late(connection: Connection) -> None:
        clocks[0].advance(5.0)
        await connection.send(SSE)
        await connection.send_chunk(b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n\n')
        await connection.send(END)

    async with pair(second=begin_late, via=via) as (_, d, path):
        clocks.append(path.clock)
        engine = next(engine for engine in path.fleet if engine.role is Role.BOTH)
        if via is SplitVia.NONE:
            path.fleet.drop(next(engine for engine in path.fleet if engine.role is Role.PREFILL))
        before = engine.costs.prefill
        await ask(path.port, post(PROMPT.replace(b'"stream": false', b'"stream": true')))
        await path.finished()
    assert len(d.bodies) == 1
    assert (engine.costs.prefill == before) is (via is SplitVia.SHARED)
