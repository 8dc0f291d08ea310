"""Requests whose prompt is computed by one engine and answered by another, whatever the first one does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
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
    InOrder,
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
from tests.ports import free_port
from tests.waiting import until, within

from anbar.apps.router import handover
from anbar.apps.router.engine import Engine
from anbar.config.split import Role, SplitVia
from anbar.core.clock import ManualClock
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailed, Outcome, PrefillEnded, RetryRefused
from anbar.route.admission import AdmissionConfig
from anbar.route.breaker import BreakerState
from anbar.route.retry_budget import RetryConfig

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
    total_timeout_s: float = 3600.0,
) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine, Path]]:
    """One engine for prefill, one that answers."""
    async with (
        scripted(first) as p,
        scripted(second) as d,
        path_to(
            [prefilling(p.port, "p", limits), engine_at(d.port, "d")],
            via=via,
            admission=admission,
            total_timeout_s=total_timeout_s,
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


async def half_an_answer(connection: Connection) -> None:
    """Break off in the middle."""
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
    await die(connection)


@pytest.mark.parametrize("script", [die, hang, half_an_answer])
async def test_a_prefill_engine_is_lost_with_the_request(script: Script) -> None:
    """It breaks off or never answers: it gets nothing until a probe succeeds, and no other prefill engine
    gets the request, which may be what kills them. The engine that answers computes."""
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
    assert (event.prefill_engine, event.engine, event.split) == ("p0", "d", "prefill_failed")
    assert ready == [False, True, True]
    assert [e.engine for e in path.events if isinstance(e, AttemptFailed)] == ["p0"]
    assert (len(good.bodies), d.bodies) == (0, [PROMPT])


async def test_a_prefill_engine_that_cannot_be_reached_is_replaced() -> None:
    """Nobody listens where the first one was: it never had the request, so the second one computes."""
    async with (
        scripted(answer(COMPUTED)) as good,
        scripted(answer(GOOD)) as d,
        path_to(
            [prefilling(free_port(), "p0"), prefilling(good.port, "p1"), engine_at(d.port, "d")],
            via=SplitVia.SHARED,
        ) as path,
    ):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (event.prefill_engine, event.engine, event.split) == ("p1", "d", "split")


async def test_a_request_that_kills_gets_two_engines() -> None:
    """Every engine dies of it: one for prefill and one that answers are lost, and no third."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(scripted(die)) for _ in range(6)]
        p, d = engines[:3], engines[3:]
        fleet = [prefilling(one.port, f"p{i}") for i, one in enumerate(p)]
        fleet += [engine_at(one.port, f"d{i}") for i, one in enumerate(d)]
        path = await stack.enter_async_context(path_to(fleet, via=SplitVia.SHARED))
        text = await ask(path.port, post(PROMPT))
        await path.finished()
    assert text.startswith(b"HTTP/1.1 502 ")
    assert [len(one.bodies) for one in engines] == [1, 0, 0, 1, 0, 0]


async def begin_only(connection: Connection) -> None:
    """Send the beginning of an answer, and nothing more."""
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")
    await connection.gone()


@pytest.mark.parametrize("script", [hang, begin_only])
async def test_a_hung_prefill_engine_leaves_time_to_compute(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither answers nor ends its answer, and may itself take as long as the whole request: it gets a
    part of the request's time, is not asked any more, and the other one answers."""
    monkeypatch.setattr(handover, "MOST_OF_TIME", 0.2 / LIMITS.first_byte_timeout_s)
    async with pair(script, total_timeout_s=LIMITS.first_byte_timeout_s) as (_, d, path):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
        ready = [engine.is_ready for engine in path.fleet]
        breaker = path.fleet[EngineId("p")].breaker.state
    assert text.endswith(GOOD)
    assert (event.split, d.bodies) == ("prefill_failed", [PROMPT])
    assert (ready, breaker) == ([False, True], BreakerState.OPEN)


async def test_all_engines_leave_while_the_prompt_is_computed() -> None:
    """Nobody is left to answer: 503, as for any request that comes then."""
    paths: list[Path] = []

    async def leave(connection: Connection) -> None:
        first, second = list(paths[0].fleet)
        first.health.drain("gone")
        paths[0].fleet.drop(second)
        await answer(COMPUTED)(connection)

    async with pair(leave) as (_, _, path):
        paths.append(path)
        text = await ask(path.port, post(PROMPT))
        await path.finished()
    assert text.startswith(b"HTTP/1.1 503 ")
    assert b"no_engine_ready" in text


async def test_the_decode_engine_asks_for_a_pause_meanwhile() -> None:
    """It was chosen before, and the prompt is computed: the request goes to it all the same."""
    paths: list[Path] = []

    async def rest(connection: Connection) -> None:
        paths[0].flow.parts.standing.rest(paths[0].fleet[EngineId("d")], 20.0)
        await answer(COMPUTED)(connection)

    async with pair(rest) as (_, _, path):
        paths.append(path)
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (event.engine, event.split) == ("d", "split")


async def test_retries_of_prefills_are_within_the_budget() -> None:
    """The budget is empty, and the first prefill engine cannot serve: that the second one was not asked is
    told."""
    async with (
        scripted(answer(b"{}", b"503 Away")) as bad,
        scripted(answer(COMPUTED)) as good,
        scripted(answer(GOOD)) as d,
        path_to(
            [prefilling(bad.port, "p0"), prefilling(good.port, "p1"), engine_at(d.port, "d")],
            via=SplitVia.SHARED,
            retries=RetryConfig(share=0.0, floor=0),
        ) as path,
    ):
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (event.split, good.bodies) == ("prefill_failed", [])
    assert path.events.count(RetryRefused()) == 1


async def test_a_split_request_is_one_request_to_the_budget() -> None:
    """Half a retry for each request: one request, though it goes to two engines, has none."""
    async with (
        scripted(answer(COMPUTED)) as p,
        scripted(answer(b"{}", b"503 Away")) as bad,
        scripted(answer(GOOD)) as good,
        path_to(
            [prefilling(p.port, "p"), engine_at(bad.port, "d0"), engine_at(good.port, "d1")],
            via=SplitVia.SHARED,
            retries=RetryConfig(share=0.5, floor=0),
        ) as path,
    ):
        text = await ask(path.port, post(PROMPT))
        await path.finished()
    assert text.startswith(b"HTTP/1.1 503 ")
    assert good.bodies == []


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
    fetched from another is not, so the second one gets the client's own request, and is predicted what it
    has itself. Prefill is not repeated."""
    async with (
        scripted(answer(COMPUTED)) as p,
        scripted(answer(b"{}", b"500 Broken")) as bad,
        scripted(answer(GOOD)) as good,
        path_to(
            [prefilling(p.port, "p"), engine_at(bad.port, "d0"), engine_at(good.port, "d1")],
            num_predicted=2,
            via=via,
        ) as path,
    ):
        setup = path.flow.parts.handover.setup
        path.flow.parts.handover.setup = replace(setup, policy=InOrder(4))  # what the prefill engine had
        text = await ask(path.port, post(PROMPT))
        event = await path.finished()
    assert text.endswith(GOOD)
    assert (event.engine, event.num_attempts, len(p.bodies)) == ("d1", 2, 1)
    assert event.predicted_cached_tokens == 2
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
    assert (event.split, event.prefill_engine) == ("cancelled", "p")
    assert [e.verdict for e in path.events if isinstance(e, PrefillEnded)] == ["cancelled"]


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


async def test_a_prefill_teaches_nothing_of_how_long_answers_run() -> None:
    """Its answer of one token begins after 2 s, which is learned from, and ends 5 s later: no
    answer's length."""
    paths: list[Path] = []

    async def dribble(connection: Connection) -> None:
        paths[0].clock.advance(2.0)
        await connection.send(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(COMPUTED), COMPUTED[:1])
        )
        await until(lambda: paths[0].fleet[EngineId("p")].load.num_decoding == 1)
        paths[0].clock.advance(5.0)
        await connection.send(COMPUTED[1:])

    async with pair(dribble) as (_, _, path):
        paths.append(path)
        costs = path.fleet[EngineId("p")].costs
        before = costs.prefill
        await ask(path.port, post(PROMPT))
        await path.finished()
    assert costs.answer_s == 0.0
    assert costs.prefill != before
