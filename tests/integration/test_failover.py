"""Engines that answer with errors, ask for pauses, drop connections, and come back: what clients see, and who
is asked. Each test has its own router, since what an engine did is remembered."""

import asyncio
import random
from pathlib import Path

import pytest

from anbar.apps.emulator import Fault, FaultKind, steady
from tests.integration.harness import Raw, call, eventually
from tests.integration.stack import (
    CHAT,
    COMPLETIONS,
    Setup,
    Stack,
    assert_broken_off,
    chat,
    completion,
    read_events,
    read_some,
    running_stack,
    text_prompt,
)

IN_TURN = {"policy": "round_robin"}
"""Every second request meets the engine that fails, whatever it did before."""


def setup(tokenizer_dir: Path, socket_dir: Path, **router: object) -> Setup:
    return Setup(tokenizer_dir, socket_dir, router=IN_TURN | router)


async def ask_in_turn(stack: Stack, number: int) -> set[int]:
    """The statuses of so many requests, one after the other."""
    return {(await stack.complete(f"{index} grain")).status for index in range(number)}


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_one_engine_answers_5xx(tokenizer_dir: Path, socket_dir: Path, status: int) -> None:
    """Sixteen requests of which every second meets an engine that answers 5xx: sixteen good answers. After
    five failures in a row the engine is not asked any more, and the metrics say so."""
    async with running_stack(setup(tokenizer_dir, socket_dir, breaker_pause_s=3600.0)) as stack:
        stack.engines["e0"].arm(Fault(FaultKind.STATUS, count=0, status=status))
        assert await ask_in_turn(stack, 16) == {200}
        assert len(stack.engines["e0"].records.seen) == 5
        states = await stack.samples("anbar_router_breaker_state")
        assert states['{engine="e0",state="open"}'] == states['{engine="e1",state="closed"}'] == 1.0
        assert await stack.samples("anbar_router_retries_total") == {'{engine="e1"}': 5.0}
        assert (await stack.described())["e0"]["breaker"] == "open"


async def test_one_engine_asks_for_a_pause(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Sixteen requests, and an engine that answers the first with 429 and Retry-After: sixteen good answers,
    and it is not asked again for so long."""
    async with running_stack(setup(tokenizer_dir, socket_dir)) as stack:
        stack.engines["e0"].arm(Fault(FaultKind.STATUS, status=429, retry_after_s=3600))
        assert await ask_in_turn(stack, 16) == {200}
        assert len(stack.engines["e0"].records.seen) == 1
        assert (await stack.samples("anbar_router_engine_state"))['{engine="e0",state="resting"}'] == 1.0


async def test_all_engines_ask_for_a_pause(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Both answer 429: the second one's answer is the client's, Retry-After included; whoever comes next gets
    429 from the router, with a time, and no engine is asked; /ready is red, and both are said to rest."""
    async with running_stack(setup(tokenizer_dir, socket_dir)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.STATUS, status=429, retry_after_s=3600))
        first, second = await stack.complete("a"), await stack.complete("b")
        assert (first.status, first.headers["retry-after"]) == (429, "3600")
        assert (second.status, second.json["error"]["code"]) == (429, "engines_busy")
        assert 1 <= int(second.headers["retry-after"]) <= 30
        ready, engines = await stack.get("/ready"), await stack.get("/admin/engines")
        assert (ready.status, ready.json["engines"]) == (503, [])
        assert {engine["state"] for engine in engines.json["engines"]} == {"resting"}
        assert all("asked for a pause" in engine["reason"] for engine in engines.json["engines"])
        assert stack.num_seen == 2


async def test_request_that_no_engine_can_do(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Both answer 500: it is tried once more and not thrice, and the engine's own words are the answer."""
    async with running_stack(setup(tokenizer_dir, socket_dir)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.STATUS, status=500, message="poison"))
        answer = await stack.complete("poison")
        assert (answer.status, answer.json["error"]["message"]) == (500, "poison")
        assert stack.num_seen == 2
        assert await ask_in_turn(stack, 4) == {200}


async def test_engine_drops_connections(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Sixteen requests, and an engine that closes every connection unanswered: sixteen good answers."""
    async with running_stack(setup(tokenizer_dir, socket_dir)) as stack:
        stack.engines["e0"].arm(Fault(FaultKind.CLOSE, count=0))
        assert await ask_in_turn(stack, 16) == {200}


async def test_outage_is_no_storm(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Both engines answer 503 to everything, and no retry is free: each request is done once, and counted."""
    router = {"retry_share": 0.0, "retry_floor": 0}
    async with running_stack(setup(tokenizer_dir, socket_dir, **router)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.STATUS, count=0, status=503))
        assert await ask_in_turn(stack, 8) == {503}
        assert stack.num_seen == 8
        assert await stack.samples("anbar_router_retries_refused_total") == {"": 8.0}


async def test_breakers_never_eject_all(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Both engines fail until their breakers open; then they recover, and are asked at once: breakers alone
    never leave a model without an engine."""
    async with running_stack(setup(tokenizer_dir, socket_dir, breaker_pause_s=3600.0)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.STATUS, count=0, status=500))
        assert await ask_in_turn(stack, 16) == {500}
        assert {e["breaker"] for e in (await stack.described()).values()} == {"open"}
        stack.restore()
        assert await ask_in_turn(stack, 4) == {200}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_engine_dies_after_five_chunks(tokenizer_dir: Path, socket_dir: Path, path: str) -> None:
    """An engine is killed after five chunks of a stream: five chunks, an error event, no [DONE], and the end
    of a whole HTTP message; the request is not done again."""
    async with running_stack(setup(tokenizer_dir, socket_dir, continue_streams=False)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.HANG_MID_STREAM, after_events=5))
        body = chat("hello", max_tokens=20) if path == CHAT else completion("hello", max_tokens=20)
        async with Raw.open(stack.port) as raw:
            raw.post(path, body | {"stream": True})
            assert (await raw.head())[0] == 200
            (engine,) = (engine for engine in stack.engines.values() if engine.records.seen)
            events = await read_some(raw, 5)
            await engine.die()
            events += await read_events(raw)
        assert_broken_off(events)
        assert len(events) == 6
        assert sum(len(engine.records.seen) for engine in stack.engines.values()) == 1
        await engine.revive()


async def test_engines_that_come_back_get_traffic(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Both engines die under traffic, with their breakers open, and come back: from then on two looks of the
    health check are enough, which come a second apart by default."""
    async with running_stack(setup(tokenizer_dir, socket_dir, health_interval_s=1.0)) as stack:
        for engine in stack.engines.values():
            engine.arm(Fault(FaultKind.CLOSE, count=0))
        while {e["breaker"] for e in (await stack.described()).values()} != {"open"}:
            await stack.complete("a")
        for engine in stack.engines.values():
            await engine.die()
        for name in stack.engines:
            await stack.becomes(name, "unhealthy")
        stack.restore()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for engine in stack.engines.values():
            await engine.revive()

        async def succeeds() -> bool:
            return (await stack.complete("a")).status == 200

        await eventually(succeeds)
        assert loop.time() - began_s < 30.0, "the router's own time is 2 s at most"


async def test_thousand_disconnects_leak_nothing(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A thousand clients that leave at random moments, fifty at a time: all counters return to zero, engines
    are not blamed, and service goes on."""
    rng = random.Random(7)
    leaving = [rng.random() * 0.06 for _ in range(1000)]

    async def leave(stack: Stack, number: int) -> None:
        async with Raw.open(stack.port) as raw:
            raw.post(COMPLETIONS, completion(f"{number} grain", stream=number % 2 == 0, max_tokens=20))
            await asyncio.sleep(leaving[number])
            await raw.abort()

    async def client(stack: Stack, first: int) -> None:
        for number in range(first, 1000, 50):
            await leave(stack, number)

    async with running_stack(setup(tokenizer_dir, socket_dir)) as stack:
        for engine in stack.engines.values():
            engine.pace.cost = steady(front_s=0.01, step_s=0.002)
        await asyncio.gather(*(client(stack, first) for first in range(50)))
        await stack.assert_idle()
        described = (await stack.described()).values()
        assert {(e["state"], e["breaker"]) for e in described} == {("ready", "closed")}
        assert await ask_in_turn(stack, 4) == {200}


async def test_trace_context_crosses(tokenizer_dir: Path, socket_dir: Path) -> None:
    """W3C trace context and headers of the client's own reach the engine as they are."""
    headers = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
        "baggage": "k=v",
        "x-custom": "kept: as it is",
    }
    async with running_stack(setup(tokenizer_dir, socket_dir)) as stack:
        answer = await stack.post(COMPLETIONS, completion(text_prompt("a")), headers)
        assert answer.status == 200
        (seen,) = (seen for engine in stack.engines.values() for seen in engine.records.seen)
        assert {name: seen.header(name) for name in headers} == headers
        assert (await call(stack.port, "GET", "/health")).headers["x-request-id"]
