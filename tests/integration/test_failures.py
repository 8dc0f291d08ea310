"""Engines that die, break off, refuse; clients that go away; nothing leaks.

Engines that hang are in `test_hangs.py`."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.emulator import Ending, Fault, FaultKind, steady
from tests.integration.harness import Raw, call, eventually
from tests.integration.router import running_router
from tests.integration.stack import (
    CHAT,
    COMPLETIONS,
    Setup,
    Stack,
    assert_broken_off,
    chat,
    completion,
    engines_of,
    open_stream,
    parsed,
    read_events,
    router_of,
    running_stack,
    text_prompt,
)
from tests.ports import free_port
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
BEFORE_FIRST_BYTE = [
    Fault(FaultKind.CLOSE, count=0),
    Fault(FaultKind.RESET, count=0),
    Fault(FaultKind.RESET_MID_STREAM, count=0, after_events=0),
]
"""The last one comes after the head: vLLM sends a stream's head before it has computed anything.

They last, since a kept connection that breaks is rightly replaced by a new one to the same engine first."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    """Streams that break off are not gone on with: that is `test_continuation.py`."""
    router = {"continue_streams": False}
    async with running_stack(Setup(tokenizer_dir, module_dir, router=router)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    yield common
    await common.recover()


async def is_ready(port: int) -> bool:
    return (await call(port, "GET", "/ready")).status == 200


@pytest.mark.parametrize("fault", BEFORE_FIRST_BYTE, ids=["close", "reset", "reset after the head"])
@pytest.mark.parametrize("streamed", [False, True])
async def test_broken_before_the_first_byte(stack: Stack, fault: Fault, streamed: bool) -> None:
    """An engine that breaks before the first byte of its answer: another one answers, the client sees one."""
    prompt, target = await stack.warm()
    stack.engines[target].arm(fault)
    answer = await stack.post(COMPLETIONS, completion(prompt, stream=streamed))
    assert answer.status == 200
    assert answer.engine != target
    assert answer.body.count(b'"finish_reason":"length"') == 1
    assert stack.engines[target].records.seen[-1].ending is Ending.FAULT
    stack.engines[target].faults.clear()


async def test_killed_engine_gets_no_traffic(stack: Stack) -> None:
    """What a killed engine had is answered by the other; it gets nothing until it is healthy again."""
    prompt, target = await stack.warm()
    dead = stack.engines[target]
    dead.pace.cost = steady(front_s=30.0)
    asked = asyncio.create_task(stack.complete(prompt))
    await eventually(lambda: dead.records.num_open == 1)
    await dead.die()
    answer = await asked
    assert answer.status == 200
    assert answer.engine != target
    await stack.becomes(target, "unhealthy")
    before = await stack.num_failed_attempts()
    answers = await asyncio.gather(*(stack.complete(text_prompt(str(i))) for i in range(20)))
    assert {a.status for a in answers} == {200}
    assert target not in {a.engine for a in answers}
    assert await stack.num_failed_attempts() == before, "it was not even tried"
    dead.pace.cost = steady()
    await dead.revive()
    await stack.becomes(target, "ready")
    await stack.followed()
    assert target in {a.engine for a in await stack.at_once([text_prompt(f"new {i}") for i in range(10)])}


async def test_two_of_three_killed_at_once(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Two of three engines die under twenty requests: every client sees one good answer, from the third."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, num_engines=3)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = [asyncio.create_task(stack.complete(f"{number} grain")) for number in range(20)]
        await eventually(lambda: stack.num_open == len(asked))
        assert all(engine.records.num_open for engine in stack.engines.values())
        await asyncio.gather(stack.engines["e0"].die(), stack.engines["e1"].die())
        for engine in stack.engines.values():
            engine.faults.clear()
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert {answer.engine for answer in answers} == {"e2"}
        for name in ("e0", "e1"):
            await stack.engines[name].revive()
            await stack.becomes(name, "ready")


async def test_engines_die_and_return_under_load(tokenizer_dir: Path, socket_dir: Path) -> None:
    """One engine after the other dies and comes back under steady load: answers are right or errors in shape.

    A whole answer is the deterministic text of its prompt; a stream is that text with [DONE], or ends with an
    error event; little fails, since an engine that dies before its first byte is replaced.
    """
    results: list[str] = []
    over = asyncio.Event()

    async def ask(stack: Stack, number: int) -> None:
        streamed = number % 2 == 0
        answer = await stack.post(COMPLETIONS, completion(f"{number % 7} grain", stream=streamed))
        if answer.status != 200:
            assert answer.status in (502, 503)
            assert set(answer.json["error"]) == {"message", "type", "param", "code"}
            results.append("refused")
            return
        if not streamed:
            results.append(answer.json["choices"][0]["text"])
            return
        events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n") if event]
        if events[-1] == b"[DONE]":
            results.append("".join(chunk["choices"][0]["text"] for chunk in parsed(events)))
        else:
            assert "error" in json.loads(events[-1])
            results.append("broken")

    async def load(stack: Stack, first: int) -> None:
        for number in itertools.count(first, 8):
            if over.is_set() and number > 8 * 20:
                return
            try:
                await ask(stack, number)
            except (asyncio.IncompleteReadError, ConnectionError):
                results.append("broken")

    in_turn = {"policy": "round_robin"}  # an engine that was slow once gets its share all the same
    setup = Setup(tokenizer_dir, socket_dir, num_engines=3, router=in_turn)
    async with running_stack(setup) as stack:
        texts = {(await stack.complete(f"{n} grain")).json["choices"][0]["text"] for n in range(7)}
        for engine in stack.engines.values():
            engine.pace.cost = steady(front_s=0.01, step_s=0.002)
        clients = [asyncio.create_task(load(stack, first)) for first in range(8)]
        for name, engine in [*stack.engines.items()] * 2:
            await eventually(lambda engine=engine: engine.records.num_open)
            await engine.die()
            await stack.becomes(name, "unhealthy")
            await engine.revive()
            await stack.becomes(name, "ready")
        over.set()
        await asyncio.gather(*clients)
        assert set(results) <= texts | {"refused", "broken"}
        assert len(results) >= 160
        assert sum(result in texts for result in results) > 0.5 * len(results), "six deaths, eight clients"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("kind", [FaultKind.RESET_MID_STREAM, FaultKind.TRUNCATE])
async def test_broken_in_mid_stream(stack: Stack, kind: FaultKind, path: str) -> None:
    """After the first byte a failure ends the stream with an error event and without [DONE]."""
    for engine in stack.engines.values():
        engine.arm(Fault(kind, after_events=3))
    body = chat("hello", stream=True) if path == CHAT else completion("hello", stream=True)
    async with Raw.open(stack.port) as raw:
        raw.post(path, body)
        status, _ = await raw.head()
        events = await read_events(raw)
    assert status == 200
    assert_broken_off(events)
    assert stack.num_seen == 1, "what was begun must not be done again"


async def test_whole_answer_broken_in_the_middle(stack: Stack) -> None:
    """A whole answer that breaks off is not passed on as if it were complete."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.TRUNCATE))
    async with Raw.open(stack.port) as raw:
        raw.post(COMPLETIONS, completion("hello"))
        try:
            answer = await raw.answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
    assert answer.status >= 500 or answer.json["choices"][0]["finish_reason"]


async def test_engine_error_in_stream_passes(stack: Stack) -> None:
    """An error event that the engine itself sends is passed on as it is."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.ERROR_MID_STREAM, after_events=1))
    async with Raw.open(stack.port) as raw:
        raw.post(COMPLETIONS, completion("hello", stream=True))
        await raw.head()
        events = await read_events(raw)
    assert events[-1] == b"[DONE]"
    assert parsed(events)[-1]["error"]["type"] == "InternalServerError"


async def test_disconnect_before_the_first_byte(stack: Stack) -> None:
    """A client that goes away while it waits cancels the request in the engine."""
    for engine in stack.engines.values():
        engine.pace.cost = steady(front_s=50.0)
    for streamed in (False, True):
        async with Raw.open(stack.port) as raw:
            raw.post(COMPLETIONS, completion("hello", stream=streamed))
            await eventually(lambda: stack.num_open == 1)
            await raw.abort()
        await eventually(lambda: not stack.num_open)
    endings = [seen.ending for engine in stack.engines.values() for seen in engine.records.seen]
    assert endings == [Ending.CANCELLED] * 2, "cancelled once each, and not tried elsewhere"


async def test_disconnect_in_mid_stream(stack: Stack) -> None:
    """A client that goes away in the middle of a stream cancels it in the engine, long before its end."""
    for engine in stack.engines.values():
        engine.pace.cost = steady(step_s=0.02)
    async with open_stream(stack.port, completion("hello", max_tokens=2000)) as raw:
        await raw.abort()
        await eventually(lambda: not stack.num_open)
    (seen,) = (seen for engine in stack.engines.values() for seen in engine.records.seen)
    assert seen.ending is Ending.CANCELLED
    assert seen.num_generated < 2000


async def test_client_errors_do_not_eject(stack: Stack) -> None:
    """Forty requests that engines refuse with 400 do not count against them."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.STATUS, count=40, status=400, message="not like this"))
    for number in range(40):
        answer = await stack.complete(f"{number}")
        assert answer.status == 400
        assert answer.json["error"]["message"] == "not like this"
    assert stack.num_seen == 40, "a client's error is not tried again elsewhere"
    for engine in stack.engines.values():
        engine.faults.clear()
    assert [await stack.state(name) for name in stack.engines] == ["ready", "ready"]
    assert (await stack.complete("good")).status == 200


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_unavailable_is_tried_elsewhere(stack: Stack, status: int) -> None:
    """502, 503 and 504 say that the engine cannot serve now: the other one answers."""
    prompt, target = await stack.warm()
    stack.engines[target].arm(Fault(FaultKind.STATUS, status=status))
    answer = await stack.complete(prompt)
    assert answer.status == 200
    assert answer.engine != target
    assert await stack.state(target) == "ready"


async def test_unavailable_everywhere(stack: Stack) -> None:
    """When every engine says 503, so does the router, each engine having been asked once."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.STATUS, count=0, status=503))
    answer = await stack.complete("a")
    assert answer.status == 503
    assert "error" in answer.json
    assert [len(engine.records.seen) for engine in stack.engines.values()] == [1, 1]


async def test_all_engines_down_and_back(stack: Stack) -> None:
    """All engines dead: /ready is 503, /health 200, requests 503 in OpenAI's shape; then they come back."""
    for engine in stack.engines.values():
        await engine.die()
    for name in stack.engines:
        await stack.becomes(name, "unhealthy")
    assert (await stack.get("/ready")).status == 503
    assert (await stack.get("/health")).status == 200
    answer = await stack.complete("a")
    assert answer.status == 503
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert "retry-after" in answer.headers
    for engine in stack.engines.values():
        await engine.revive()

    await eventually(lambda: is_ready(stack.port))
    assert (await stack.complete("a")).status == 200
    for name in stack.engines:
        await stack.becomes(name, "ready")


async def test_drain_has_an_end(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A stream that does not end within the drain timeout ends with an error event, an answer that has not
    begun is a 503, both count as the router's doing, and both are cancelled in the engine."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, router={"drain_timeout_s": 0.5})
    async with engines_of(setup) as engines, AsyncExitStack() as clients:
        engine, port = engines["e0"], free_port()
        loop = asyncio.get_running_loop()
        async with running_router(setup.write(engines, port)) as log:
            await eventually(lambda: is_ready(port))
            engine.pace.cost = steady(step_s=0.05)
            stream = await clients.enter_async_context(open_stream(port, completion("a", max_tokens=8000)))
            asked = asyncio.create_task(call(port, "POST", COMPLETIONS, completion("b", max_tokens=8000)))
            await eventually(lambda: engine.records.num_open == 2)
            began_s = loop.time()
        assert loop.time() - began_s > 0.4
        *_, last = await asyncio.wait_for(read_events(stream), PATIENCE_S)
        assert json.loads(last)["error"]["code"] == "router_stopped"
        answer = await asyncio.wait_for(asked, PATIENCE_S)
        assert (answer.status, answer.json["error"]["code"]) == (503, "router_stopped")
        assert answer.headers["retry-after"] == "1"
        await eventually(lambda: engine.records.num_open == 0)
        assert {seen.ending for seen in engine.records.seen} == {Ending.CANCELLED}
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        ends = {(line["outcome"], line["status"]) for line in lines if "outcome" in line}
        assert ends == {("broken", 200), ("broken", 503)}


async def test_sick_core_behind_a_living_server(stack: Stack) -> None:
    """An engine whose /health says 503 gets no requests until it says 200 again."""
    stack.engines["e0"].healthy = False
    await stack.becomes("e0", "unhealthy")
    for index in range(4):
        assert (await stack.complete(str(index))).engine == "e1"
    stack.engines["e0"].healthy = True
    await stack.becomes("e0", "ready")


async def test_engine_that_comes_later(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A router that starts before one of its engines uses it as soon as it is there."""
    setup = Setup(tokenizer_dir, socket_dir)
    async with engines_of(setup) as engines:
        late = engines["e1"]
        await late.die()
        async with router_of(setup, engines, ready=["e0"]) as stack:
            assert await stack.state("e1") == "starting"
            assert {(await stack.complete(text_prompt(f"a{i}"))).engine for i in range(4)} == {"e0"}
            await late.revive()
            await stack.becomes("e1", "ready")
            answers = await stack.at_once([text_prompt(f"b{i}") for i in range(8)])
            assert {answer.engine for answer in answers} == {"e0", "e1"}


async def test_idle_connection_closed_by_the_engine(stack: Stack) -> None:
    """An engine that closed kept connections (or was restarted) costs no request."""
    for name, engine in stack.engines.items():
        for index in range(3):
            await stack.complete(f"{name} {index}")
        await engine.restart()
        answers = await asyncio.gather(*(stack.complete(str(i)) for i in range(8)))
        assert {answer.status for answer in answers} == {200}
        await stack.becomes(name, "ready")  # a probe may have met the restart; not of both engines at a time
