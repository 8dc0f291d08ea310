"""Several routers in front of the same engines count each other's requests."""

import asyncio
from pathlib import Path

import pytest

from anbar.apps.emulator import Fault, FaultKind
from anbar.apps.router.worker import Worker
from tests.integration.harness import call, eventually
from tests.integration.routers import machines_of, sibling_of, siblings_of
from tests.integration.stack import COMPLETIONS, Setup, completion, engines_of

TOKENS = 101 * 16 + 1
"""All but the last token of a prompt are in whole blocks."""


@pytest.fixture
def setup(tokenizer_dir: Path, socket_dir: Path) -> Setup:
    return Setup(tokenizer_dir, socket_dir)


async def test_a_burst_through_two_routers_stays_together(setup: Setup) -> None:
    """Equal new prompts come to two routers before any is answered: the second router sends its own where
    those of the first are, and predicts what they will leave in the cache. Afterwards nobody counts
    anything."""
    async with engines_of(setup) as engines, siblings_of(setup, engines) as (a, b):
        for engine in engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = [asyncio.create_task(a.complete([11] * TOKENS)) for _ in range(3)]
        await b.hears(3)
        asked += [asyncio.create_task(b.complete([11] * TOKENS)) for _ in range(3)]
        await a.hears(3)
        await eventually(lambda: b.num_open == 6, what="all requests are with an engine")
        for engine in engines.values():
            engine.faults.clear()
        answers = await asyncio.gather(*asked)
        assert len({answer.engine for answer in answers}) == 1
        assert sorted(answer.predicted for answer in answers) == [0] + [TOKENS - 1] * 5
        for each in (a, b):
            await each.hears(0)
            await each.assert_idle()


async def test_the_others_load_counts(setup: Setup) -> None:
    """One router has an engine busy with a long prompt; another router, asked for something else, takes the
    other engine."""
    async with engines_of(setup) as engines, siblings_of(setup, engines) as (a, b):
        for engine in engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = asyncio.create_task(a.complete([12] * TOKENS))
        await b.hears(1)
        other = asyncio.create_task(b.complete([13] * TOKENS))
        await a.hears(1)
        for engine in engines.values():
            engine.faults.clear()
        assert (await asked).engine != (await other).engine


async def test_a_late_router_hears_everything_and_a_lost_one_is_forgotten(setup: Setup) -> None:
    """A router that joins is told what is in flight and which engines are drained. When the router that had
    it is gone, its requests count no more."""
    async with engines_of(setup) as engines:
        workers = [Worker(place, 2, setup.directory) for place in range(2)]
        async with sibling_of(setup, engines, workers[0]) as a:
            for engine in engines.values():
                engine.arm(Fault(FaultKind.HANG, count=0))
            asked = [asyncio.create_task(a.complete([14 + at] * TOKENS)) for at in range(3)]
            await eventually(lambda: a.num_open == 3, what="all requests are with an engine")
            drained = await call(a.port, "POST", "/admin/engines/e1/drain")
            assert drained.status == 200
            async with sibling_of(setup, engines, workers[1], ready=["e0"]) as b:
                await b.hears(3)
                assert await b.state("e1") == "draining"
                assert a.router.exchange is not None
                await a.router.exchange.stop()
                await b.hears(0)
            for engine in engines.values():
                engine.faults.clear()
            await asyncio.gather(*asked)
            await call(a.port, "POST", "/admin/engines/e1/undrain")


async def test_a_late_router_has_the_index_of_its_sibling(tokenizer_dir: Path, socket_dir: Path) -> None:
    """The engine can no longer replay the batch that told of a prompt: a router that comes late knows the
    prompt from its sibling all the same, and goes on from there; one without a sibling does not know it."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, engine={"events": {"buffer_steps": 2}})
    workers = [Worker(place, 2, socket_dir) for place in range(2)]
    async with engines_of(setup) as engines:
        async with sibling_of(setup, engines, workers[0]) as a:
            await a.followed()
            await a.complete([21] * TOKENS)
            for other in range(4):
                await a.complete([22 + other] * TOKENS)
            await a.followed()
            async with sibling_of(setup, engines, workers[1]) as b:
                await b.followed()
                kv = (await b.described())["e0"]["kv_events"]
                assert (kv["complete"], kv["partial"], kv["gaps"]) == (True, False, 0)
                again = await b.complete([21] * TOKENS)
                assert again.predicted == again.cached == TOKENS - 1
                assert (await b.complete([30] * TOKENS)).predicted == 0
        async with sibling_of(setup, engines, workers[1]) as alone:
            kv = (await alone.described())["e0"]["kv_events"]
            assert kv["partial"]
            assert (await alone.complete([21] * TOKENS)).predicted == 0


async def test_a_choice_is_explained_by_whichever_router_is_asked(setup: Setup) -> None:
    """Requests come to one router, the questions to the other: it shows what that one has kept, and its own;
    an id that none of them knows is 404, a format that is none is 400 at both."""
    async with engines_of(setup) as engines, siblings_of(setup, engines) as (a, b):
        for place, each in enumerate((a, b)):
            headers = {"x-request-id": f"asked-{place}"}
            assert (await each.post(COMPLETIONS, completion("a", max_tokens=1), headers)).status == 200
        found = await b.get("/admin/explain/asked-0")
        assert [one["request_id"] for one in found.json["requests"]] == ["asked-0"]
        assert (await b.get("/admin/explain/asked-0?format=text")).body.startswith(b"request asked-0")
        latest = (await a.get("/admin/explain")).json["requests"]
        assert [one["request_id"] for one in latest[:2]] == ["asked-1", "asked-0"]
        assert (await a.get("/admin/explain/nobody")).status == 404
        for asked in ("asked-0", "asked-1", "nobody"):
            wrong = await b.get(f"/admin/explain/{asked}?format=xml")
            assert (wrong.status, wrong.json["error"]["param"]) == (400, "format")


async def test_machines_find_each_other_by_address_and_secret(setup: Setup) -> None:
    """Three routers dial the same list of addresses, in which each finds itself too. The two with one secret
    count each other's requests, and one of them drains an engine for both; the third, with another secret,
    hears nothing and is not heard."""
    async with (
        engines_of(setup) as engines,
        machines_of(setup, engines, ["s" * 32, "s" * 32, "t" * 32]) as (a, b, stranger),
    ):
        await a.follows(1)
        await b.follows(1)
        for engine in engines.values():
            engine.arm(Fault(FaultKind.HANG, count=0))
        asked = [asyncio.create_task(a.complete([41] * TOKENS)) for _ in range(2)]
        await b.hears(2)
        await eventually(lambda: a.num_open == 2, what="both requests are with an engine")
        asked.append(asyncio.create_task(b.complete([41] * TOKENS)))
        await a.hears(1)
        await call(a.port, "POST", "/admin/engines/e1/drain")
        await b.becomes("e1", "draining")
        assert await stranger.elsewhere() == 0
        assert await stranger.state("e1") == "ready"
        for engine in engines.values():
            engine.faults.clear()
        assert len({answer.engine for answer in await asyncio.gather(*asked)}) == 1
        assert stranger.router.exchange is not None
        assert not stranger.router.exchange.followed


async def test_a_repeated_request_is_answered_once_whichever_worker_has_it(setup: Setup) -> None:
    """Requests with a key, each to one worker and its repetition to the other, together and one after the
    other, are each run once; the key of another request is refused at both. Enough
    keys that each worker keeps some."""
    async with engines_of(setup) as engines, siblings_of(setup, engines) as (a, b):
        for engine in engines.values():
            engine.records.clear()
        sent = []
        for number in range(8):
            headers = {"idempotency-key": f"key-{number}"}
            first, second = (a, b) if number % 2 else (b, a)
            body = completion(f"text {number}")
            sent += [first.post(COMPLETIONS, body, headers), second.post(COMPLETIONS, body, headers)]
        answers = await asyncio.gather(*sent)
        assert {answer.status for answer in answers} == {200}
        assert a.num_seen == 8
        for number in range(8):
            one, other = answers[2 * number : 2 * number + 2]
            assert one.json == other.json
            assert sum("idempotent-replayed" in answer.headers for answer in (one, other)) == 1
            headers = {"idempotency-key": f"key-{number}"}
            for each in (a, b):
                again = await each.post(COMPLETIONS, completion(f"text {number}"), headers)
                assert again.json == one.json
                assert (await each.post(COMPLETIONS, completion("other"), headers)).status == 422
        assert a.num_seen == 8
