"""The router finds out that what it believes of an engine's cache is wrong, says so, and mends it."""

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.emulator import Fault, FaultKind
from anbar.apps.router import self_check
from anbar.sim.engine.shape import EngineShape
from tests.integration.harness import Answer, eventually
from tests.integration.stack import Setup, Stack, running_stack, text_prompt

pytestmark = pytest.mark.asyncio
SMALL = {"num_blocks": 40, "max_model_len": 600}
"""A cache that evicts all the time."""
MANY = 100_000


@pytest.fixture(autouse=True)
def long_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are judged when their events are in for sure, however late threads are."""
    monkeypatch.setattr(self_check, "SETTLE_S", 5.0)


async def check(stack: Stack, engine: str = "e0") -> dict[str, Any]:
    """What `/admin/engines` says of the self-check of an engine, and whether it is degraded."""
    described = (await stack.described())[engine]
    return {**described["self_check"], "degraded": described["degraded"]}


async def ask(stack: Stack, rng: random.Random) -> Answer:
    """One of a few prompts, which do not all fit into the cache."""
    answer = await stack.complete(text_prompt(rng.choice("abcdefgh"), words=rng.choice((24, 40, 64))))
    assert answer.status == 200
    return answer


async def changes(stack: Stack) -> list[str]:
    """The states that the log tells of, in order."""
    return [line["after"] for line in await stack.logged() if line["event"] == "trust"]


async def test_missed_removals_are_found_and_mended(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Removals go missing and nothing in the stream tells. The answers do: the engine is routed to by
    placements, its index is built anew from replay, compared in the background, and believed again. All of it
    can be seen."""
    rng = random.Random(3)
    async with running_stack(Setup(tokenizer_dir, socket_dir, num_engines=1, engine=SMALL)) as stack:
        faults = stack.engines["e0"].event_faults
        prompts = [text_prompt(f"prompt {number}", words=40) for number in range(20)]
        faults.mute = MANY
        for prompt in prompts:  # most of them are evicted again, and nobody hears of it
            await stack.complete(prompt)
        await stack.followed()
        faults.mute = 0
        for prompt in prompts[:12]:
            answer = await stack.complete(prompt)
            assert answer.predicted > answer.cached

        async def is_comparing() -> bool:
            return (await check(stack))["trust"] == "comparing"

        await eventually(is_comparing, what="the index was found wrong, and was built anew")
        found = await check(stack)
        assert (found["degraded"], found["rebuilds"]) == ("drift", 1)
        assert found["over"] >= 8
        modes = await stack.samples("anbar_router_engine_mode")
        assert modes == {'{engine="e0",mode="approximate",reason="drift"}': 1.0}
        answer = await ask(stack, rng)
        assert answer.headers["x-anbar-degraded"] == "drift"

        async def is_precise() -> bool:
            await stack.followed()
            return "x-anbar-degraded" not in (await ask(stack, rng)).headers

        await eventually(is_precise, what="the engine is routed to precisely again")
        for _ in range(20):
            await stack.followed()
            answer = await ask(stack, rng)
            assert answer.predicted == answer.cached
        for prompt in prompts[12:]:  # of what was wrong nothing is left, asked for since or not
            await stack.followed()
            answer = await stack.complete(prompt)
            assert answer.predicted == answer.cached
        assert (await check(stack))["degraded"] == ""
        modes = await stack.samples("anbar_router_engine_mode")
        assert modes == {'{engine="e0",mode="precise",reason=""}': 1.0}
        assert await changes(stack) == ["rebuilding", "comparing", "precise"]
        assert await stack.samples("anbar_router_index_rebuilds_total") == {'{engine="e0"}': 1.0}


async def test_what_is_evicted_before_its_turn_is_no_drift(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A request waits in the engine's queue while others evict what it was told of: the engine has announced
    that, and nothing is held against the index."""
    shape = EngineShape(block_size=16, num_blocks=40, max_model_len=600, max_num_seqs=1)
    async with running_stack(
        Setup(tokenizer_dir, socket_dir, num_engines=1, engine={"shape": shape})
    ) as stack:
        engine = stack.engines["e0"]
        await stack.complete(text_prompt("told"))
        await stack.followed()
        engine.arm(Fault(FaultKind.HANG, count=0))
        asked = []
        for number, name in enumerate(("new", "newer", "newest", "told"), 1):
            words = 60 if name == "told" else 160
            asked.append(asyncio.create_task(stack.complete(text_prompt(name, words))))
            await eventually(lambda number=number: stack.num_open == number)
        engine.faults.clear()
        *_, last = await asyncio.gather(*asked)
        assert last.predicted > last.cached == 0

        async def is_judged() -> bool:
            return (await check(stack))["evicted"] > 0

        await eventually(is_judged, what="the request was judged")
        found = await check(stack)
        assert (found["trust"], found["over"], found["evicted"]) == ("precise", 0, 1)


async def test_content_that_no_event_told_of_is_no_drift(tokenizer_dir: Path, socket_dir: Path) -> None:
    """An engine has more than its events told of: that is counted, and held against nobody."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, num_engines=1)) as stack:
        engine = stack.engines["e0"]
        for name in "abcdefghijkl":
            await stack.complete(text_prompt(name))
        await stack.followed()
        assert engine.publisher is not None
        stack_index = (await stack.described())["e0"]["kv_events"]["gaps"]
        engine.event_faults.lose = 1
        await stack.complete(text_prompt("lost"))
        await stack.complete(text_prompt("heard of"))

        async def has_gap() -> bool:
            return (await stack.described())["e0"]["kv_events"]["gaps"] > stack_index

        await eventually(has_gap)
        before = (await check(stack))["unknown_content"]
        for name in "abcdefghijkl":
            answer = await stack.complete(text_prompt(name))
            assert answer.cached > 0
        found = await check(stack)
        assert found["unknown_content"] == before + 12
        assert (found["trust"], found["over"]) == ("precise", 0)


async def test_an_engine_without_events_is_routed_to_by_placements(
    tokenizer_dir: Path, socket_dir: Path
) -> None:
    """Without KV events a prompt goes back to where its prefix was sent, and the reason says what this
    rests on."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=3, engine={"events": None})
    async with running_stack(setup) as stack:
        for name in "abcdef":
            first = await stack.complete(text_prompt(name))
            again = await stack.complete(text_prompt(name))
            assert again.engine == first.engine
            assert again.predicted == again.cached > 0
            assert again.headers["x-anbar-degraded"] == "no_kv_events"
        modes = await stack.samples("anbar_router_engine_mode")
        assert set(modes) == {f'{{engine="e{i}",mode="approximate",reason="no_kv_events"}}' for i in range(3)}


def other_template(tokenizer_dir: Path, directory: Path) -> Path:
    """A copy of the tokenizer whose chats are rendered in another way, as after an update of one side."""
    copy = directory / "other"
    shutil.copytree(tokenizer_dir, copy)
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ 'Beware. ' if messages[0].role == 'system' }}" + config["chat_template"]
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    return copy


async def test_a_tokenizer_that_is_not_the_engines(tokenizer_dir: Path, socket_dir: Path) -> None:
    """The router was given another chat template than the engine has: it says which text showed it, and
    asks the engine for tokens, so that predictions hold."""
    other = str(other_template(tokenizer_dir, socket_dir))
    setup = Setup(tokenizer_dir, socket_dir, entries=[{"tokenizer": other}] * 2)
    messages = [{"role": "system", "content": "You keep the books. " * 8}, {"role": "user", "content": "آب؟"}]
    async with running_stack(setup) as stack:
        described = (await stack.described())["e0"]
        assert described["tokens"] == "differs"
        assert "'system' at token " in described["tokenizer"]
        assert other in described["tokenizer"]
        checks = await stack.samples("anbar_router_tokens_check")
        assert checks == {f'{{engine="e{i}",result="differs"}}': 1.0 for i in range(2)}
        told = [line for line in await stack.logged() if line["event"] == "tokens"]
        assert {(line["engine"], line["result"]) for line in told} == {("e0", "differs"), ("e1", "differs")}
        first = await stack.chat(messages)
        await stack.followed()
        again = await stack.chat(messages)
        assert again.engine == first.engine
        assert again.predicted == again.cached > 0


async def test_the_engines_own_tokenizer(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Tokens agree where router and engine have one tokenizer, and so it is said."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, num_engines=1)) as stack:
        described = (await stack.described())["e0"]
        assert (described["tokens"], described["tokenizer"]) == ("agrees", str(tokenizer_dir))
