"""What the router believes of the caches, when events come late, twice, out of order, or not at all."""

from pathlib import Path

import pytest

from anbar.adapters.vllm.kv_publish import Framing
from tests.integration.harness import call, eventually
from tests.integration.stack import (
    COMPLETIONS,
    Setup,
    completion,
    engines_of,
    router_of,
    running_stack,
    text_prompt,
)


async def test_replay_when_the_router_starts(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Engines that are warm before the router starts are known to it: it asks for what it missed."""
    setup = Setup(tokenizer_dir, socket_dir)
    async with engines_of(setup) as engines:
        for name in "abc":
            await call(engines["e1"].port, "POST", COMPLETIONS, completion(text_prompt(name)))
        async with router_of(setup, engines) as stack:
            await stack.followed()
            for name in "abc":
                answer = await stack.complete(text_prompt(name))
                assert answer.engine == "e1"
                assert answer.predicted == answer.cached > 0


async def test_router_restart(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A router that is started again knows what the one before it knew."""
    setup = Setup(tokenizer_dir, socket_dir)
    async with engines_of(setup) as engines:
        async with router_of(setup, engines) as stack:
            first = await stack.complete(text_prompt("kept"))
        async with router_of(setup, engines) as stack:
            await stack.followed()
            again = await stack.complete(text_prompt("kept"))
            assert again.engine == first.engine
            assert again.predicted == again.cached > 0


@pytest.mark.parametrize("fault", ["drop", "duplicate", "swap"])
async def test_spoiled_events(tokenizer_dir: Path, socket_dir: Path, fault: str) -> None:
    """Batches that were dropped (and can be replayed), sent twice or out of order leave no trace."""
    async with running_stack(Setup(tokenizer_dir, socket_dir)) as stack:
        where = {"a": "e0", "b": "e0", "c": "e0", "d": "e1", "e": "e1", "f": "e1"}
        for name, engine in where.items():  # past the router, so that each engine has three batches or more
            if name in "ad":
                setattr(stack.engines[engine].event_faults, fault, 1)
            await call(stack.engines[engine].port, "POST", COMPLETIONS, completion(text_prompt(name)))
        await stack.followed()
        for name, engine in where.items():
            again = await stack.complete(text_prompt(name))
            assert again.engine == engine
            assert again.predicted == again.cached > 0


async def test_lost_events_are_never_stale(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Batches that are gone for good cost hits, and the router says so with every prediction that is
    wrong."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, engine={"num_blocks": 64, "max_model_len": 1000})
    async with running_stack(setup) as stack:
        engine = stack.engines["e0"]
        await stack.complete(text_prompt("early"))
        await stack.followed()
        engine.event_faults.lose = 1000
        for name in "abcdefghi":  # evicts "early", and nobody hears of it
            await stack.complete(text_prompt(name, words=80))
        engine.event_faults.lose = 0
        await stack.complete(text_prompt("heard of"))

        async def is_noticed() -> bool:
            return (await stack.described())["e0"]["kv_events"]["gaps"] > 0

        await eventually(is_noticed)
        answers = [await stack.complete(text_prompt(name)) for name in ("early", "a", "early")]
        assert all(a.predicted == a.cached or "x-anbar-degraded" in a.headers for a in answers)
        for name in "xyz":
            await stack.complete(text_prompt(name))
            answer = await stack.complete(text_prompt(name))
        assert answer.cached > 0
        await stack.restart("e0")
        await stack.complete(text_prompt("fresh"))
        await stack.followed()
        answer = await stack.complete(text_prompt("fresh"))
        assert answer.predicted == answer.cached > 0
        assert "x-anbar-degraded" not in answer.headers


async def test_engine_restart_purges(tokenizer_dir: Path, socket_dir: Path) -> None:
    """After an engine's restart nothing of its former life is believed, also when it speaks again."""
    async with running_stack(Setup(tokenizer_dir, socket_dir)) as stack:
        where = {name: (await stack.complete(text_prompt(name))).engine for name in "abcd"}
        await stack.followed()
        restarted = where["a"]
        await stack.restart(restarted)
        one = await call(
            stack.engines[restarted].port, "POST", COMPLETIONS, completion(text_prompt("new life"))
        )
        assert one.status == 200
        await stack.followed()
        for name, engine in where.items():
            again = await stack.complete(text_prompt(name))
            assert again.predicted == again.cached
            assert (again.cached == 0) == (engine == restarted), name
            await stack.followed()


async def test_silent_restart_is_noticed(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Also before a restarted engine published anything, its old cache is no longer believed in."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, num_engines=1)) as stack:
        await stack.complete(text_prompt("old"))
        await stack.followed()
        await stack.restart("e0")
        first = await stack.complete(text_prompt("old"))
        assert first.predicted == first.cached == 0
        await stack.followed()
        again = await stack.complete(text_prompt("old"))
        assert again.predicted == again.cached > 0


async def test_cleared_cache(tokenizer_dir: Path, socket_dir: Path) -> None:
    """AllBlocksCleared empties what is believed of that engine, and of no other."""
    async with running_stack(Setup(tokenizer_dir, socket_dir)) as stack:
        where = {name: (await stack.complete(text_prompt(name))).engine for name in "abcd"}
        await stack.followed()
        await stack.forget("e0")
        for name, engine in where.items():
            again = await stack.complete(text_prompt(name))
            assert again.predicted == again.cached
            assert (again.cached == 0) == (engine == "e0")
            await stack.followed()


async def test_older_framing(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Engines that publish tagged arrays and replay without a topic are understood, from a gap on too."""
    setup = Setup(tokenizer_dir, socket_dir, engine={"events": {"framing": Framing.ARRAYS}})
    async with engines_of(setup) as engines:
        await call(engines["e0"].port, "POST", COMPLETIONS, completion(text_prompt("before")))
        async with router_of(setup, engines) as stack:
            await stack.followed()
            answer = await stack.complete(text_prompt("before"))
            assert answer.engine == "e0"
            assert answer.predicted == answer.cached > 0


async def test_without_events(tokenizer_dir: Path, socket_dir: Path) -> None:
    """An engine that publishes no events still serves; the answer says that routing was not precise."""
    setup = Setup(tokenizer_dir, socket_dir, engine={"events": None})
    async with running_stack(setup) as stack:
        answer = await stack.complete(text_prompt("blind"))
        assert answer.status == 200
        assert answer.headers["x-anbar-degraded"]


async def test_without_replay(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Without a replay socket what happened before is unknown, and what comes after is right or degraded."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, engine={"events": {"replay_endpoint": ""}})
    async with engines_of(setup) as engines, router_of(setup, engines) as stack:
        for name in "abc":
            for _ in range(2):
                answer = await stack.complete(text_prompt(name))
                assert answer.status == 200
                assert answer.predicted <= answer.cached


async def test_addresses_from_the_file(tokenizer_dir: Path, socket_dir: Path) -> None:
    """`engines[].events` and `replay` are used as given."""
    entries = [{"events": f"ipc://{socket_dir}/e{i}", "replay": f"ipc://{socket_dir}/r{i}"} for i in range(2)]
    async with running_stack(Setup(tokenizer_dir, socket_dir, entries=entries)) as stack:
        known = await stack.described()
        assert [known[name]["kv_events"]["address"] for name in ("e0", "e1")] == [
            e["events"] for e in entries
        ]
        first = await stack.complete(text_prompt("given"))
        await stack.followed()
        assert (await stack.complete(text_prompt("given"))).predicted > first.predicted == 0
