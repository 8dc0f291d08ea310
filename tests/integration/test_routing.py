"""Requests go where their prefix is, and the router says beforehand what the engine will report."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.emulator import steady
from anbar.sim.engine.shape import HostShape
from anbar.sim.engine.shared import SharedTier
from tests.integration.harness import Answer
from tests.integration.stack import (
    COMPLETIONS,
    Setup,
    Stack,
    completion,
    open_stream,
    parsed,
    running_stack,
    text_prompt,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
BLOCK = 16
TURNS = [
    {"role": "system", "content": "You keep the books of a storehouse. " * 6},
    {"role": "user", "content": "How much grain is left? چقدر غله مانده است؟ " * 4},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    async with running_stack(Setup(tokenizer_dir, module_dir, num_engines=3)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    yield common
    await common.recover()


def assert_hit(answer: Answer, engine: str, at_least: int = BLOCK) -> None:
    assert answer.status == 200
    assert answer.engine == engine
    assert answer.predicted == answer.cached >= at_least


async def test_completion_follows_its_prefix(stack: Stack) -> None:
    """The second request with a prefix goes to the engine that served the first, predicted exactly."""
    for name in "abcdef":
        first = await stack.complete(text_prompt(name))
        assert first.predicted == first.cached == 0
        await stack.followed()
        again = await stack.complete(text_prompt(name))
        tokens = again.json["usage"]["prompt_tokens"]
        assert_hit(again, first.engine, (tokens - 1) // BLOCK * BLOCK)


async def test_long_prompts_are_read_as_far_as_they_match(stack: Stack) -> None:
    """Of a long prompt that nobody has only the beginning is tokenized; what comes back, goes on, or leaves
    it in its middle is predicted to the token."""
    prompt = text_prompt("long", 1200)
    first = await stack.complete(prompt)
    num_tokens = first.json["usage"]["prompt_tokens"]
    assert num_tokens > 600
    assert first.predicted == first.cached == 0
    page = (await stack.get(f"/admin/explain/{first.headers['x-request-id']}")).json
    assert page["requests"][0]["prompt_tokens_estimated"]
    await stack.followed()
    at_least = (num_tokens - 1) // BLOCK * BLOCK
    assert_hit(await stack.complete(prompt), first.engine, at_least)
    await stack.followed()
    assert_hit(await stack.complete(prompt + "and what else? " * 100), first.engine, at_least)
    await stack.followed()
    left = prompt[: len(prompt) // 2] + "or something else altogether? " * 100
    assert_hit(await stack.complete(left), first.engine, at_least // 3)


async def test_chat_over_several_turns(stack: Stack) -> None:
    """Each turn of a chat, the answers included, goes to where the turns before it are."""
    messages = list(TURNS)
    first = await stack.chat(messages, max_tokens=40)
    answer = first
    for question in ("And how much water?", "क्या यह काफ़ी है?", "Write it down."):
        messages.append(answer.json["choices"][0]["message"])
        messages[-1] = {"role": "assistant", "content": messages[-1]["content"]}
        messages.append({"role": "user", "content": question})
        await stack.followed()
        before = answer.json["usage"]["prompt_tokens"]
        answer = await stack.chat(messages, max_tokens=40)
        assert_hit(answer, first.engine, before // BLOCK * BLOCK)


async def test_prediction_for_streams(stack: Stack) -> None:
    """A stream's head carries the prediction that its usage confirms at the end."""
    first = await stack.complete(text_prompt("s"))
    await stack.followed()
    body = completion(text_prompt("s"), stream=True, stream_options={"include_usage": True})
    answer = await stack.post(COMPLETIONS, body)
    events = [event.removeprefix(b"data: ") for event in answer.body.split(b"\n\n") if event]
    usage = parsed(events)[-1]["usage"]
    assert answer.engine == first.engine
    assert answer.predicted == usage["prompt_tokens_details"]["cached_tokens"] >= BLOCK


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_generation_prompt": False},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "tool_choice": "none",
        },
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"reasoning_effort": "high"},
        {"add_special_tokens": True},
    ],
)
async def test_chat_rendering_options(stack: Stack, fields: dict[str, object]) -> None:
    """Options that change how a chat is rendered change the prediction in the same way.

    Prompts that differ only at their ends share blocks, so each is asked twice, beside the plain one.
    """
    messages = [*TURNS, {"role": "assistant", "content": "There is grain for " * 10}]
    for asked in ({}, fields, {}, fields):
        answer = await stack.chat(messages, **asked)
        assert answer.status == 200
        assert answer.predicted == answer.cached
        assert "x-anbar-degraded" not in answer.headers
        await stack.followed()
    assert answer.cached >= answer.json["usage"]["prompt_tokens"] - BLOCK - 1


async def test_content_parts_are_text(stack: Stack) -> None:
    """Content given as a list of text parts is the same prompt to router and engine."""
    parts = [{"type": "text", "text": "The water is in the store. " * 6}, {"type": "text", "text": "آب"}]
    messages = [{"role": "user", "content": parts}]
    first = await stack.chat(messages)
    await stack.followed()
    assert_hit(await stack.chat(messages), first.engine)


async def test_token_ids_as_prompt(stack: Stack) -> None:
    """A prompt of token ids hits what the same text stored."""
    text = text_prompt("ids")
    ids = next(iter(stack.engines.values())).text.words(text)
    first = await stack.complete(text)
    await stack.followed()
    assert_hit(await stack.complete(ids), first.engine, (len(ids) - 1) // BLOCK * BLOCK)


async def test_exactly_full_blocks(stack: Stack) -> None:
    """Of a prompt of exactly n blocks, n-1 are predicted and reported: its last token is recomputed."""
    ids = next(iter(stack.engines.values())).text.words(text_prompt("full"))[: 4 * BLOCK]
    first = await stack.complete(ids, max_tokens=1)
    await stack.followed()
    again = await stack.complete(ids, max_tokens=1)
    assert_hit(again, first.engine)
    assert again.cached == 3 * BLOCK


async def test_prompt_logprobs_skip_the_cache(stack: Stack) -> None:
    """A request for prompt log-probabilities is predicted to find nothing, as it does."""
    await stack.complete(text_prompt("lp"))
    await stack.followed()
    again = await stack.complete(text_prompt("lp"), prompt_logprobs=1)
    assert (again.predicted, again.cached) == (0, 0)


async def test_salts_do_not_share(tokenizer_dir: Path, socket_dir: Path) -> None:
    """The same text under two salts, or none, shares nothing, in prediction and in fact."""
    setup = Setup(tokenizer_dir, socket_dir, router={"client_kv_fields": "allow"})
    async with running_stack(setup) as stack:
        prompt = text_prompt("salted")
        first = await stack.complete(prompt, cache_salt="one")
        await stack.followed()
        for salt in ({"cache_salt": "two"}, {}, {"cache_salt": "three"}):
            other = await stack.complete(prompt, **salt)
            assert (other.predicted, other.cached) == (0, 0)
            await stack.followed()
        assert_hit(await stack.complete(prompt, cache_salt="one"), first.engine)


async def test_salts_do_not_share_the_store(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Also a prefix in the shared store is found under its own salt only."""
    setup = Setup(
        tokenizer_dir,
        socket_dir,
        router={"client_kv_fields": "allow"},
        engine={"host_tier": HostShape(256), "shared": SharedTier(4096)},
    )
    async with running_stack(setup) as stack:
        prompt = text_prompt("salted store")
        await stack.complete(prompt, cache_salt="one")
        await stack.followed()
        await stack.forget()
        for salt in ({"cache_salt": "two"}, {}, {"cache_salt": "three"}):
            other = await stack.complete(prompt, **salt)
            assert (other.predicted, other.cached) == (0, 0)
            await stack.followed()
        again = await stack.complete(prompt, cache_salt="one")
        assert again.predicted == again.cached > 0


async def test_lora_adapters_do_not_share(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A LoRA adapter is a model of its own: its prefix is not the base model's."""
    async with running_stack(
        Setup(tokenizer_dir, socket_dir, engine={"loras": {"tuned": "/adapters/tuned"}})
    ) as stack:
        prompt = text_prompt("lora")
        first = await stack.complete(prompt)
        await stack.followed()
        tuned = await stack.complete(prompt, model="tuned")
        assert (tuned.predicted, tuned.cached) == (0, 0)
        await stack.followed()
        assert_hit(await stack.complete(prompt, model="tuned"), tuned.engine)
        assert_hit(await stack.complete(prompt), first.engine)


async def test_store_hit_goes_to_the_least_busy(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A prefix that only the shared store has may be served by any engine: the idle one gets it."""
    setup = Setup(
        tokenizer_dir,
        socket_dir,
        num_engines=3,
        engine={"host_tier": HostShape(256), "shared": SharedTier(4096)},
    )
    async with running_stack(setup) as stack:
        prompt = text_prompt("stored")
        first = await stack.complete(prompt)
        await stack.followed()
        await stack.forget(first.engine)
        for engine in stack.engines.values():
            engine.pace.cost = steady(step_s=0.02)
        async with AsyncExitStack() as busy:  # for two minutes, or until the end of this block
            taken = set()
            for number in range(2):
                body = completion(text_prompt(f"busy {number}"), max_tokens=6000)
                raw = await busy.enter_async_context(open_stream(stack.port, body))
                taken.add(raw.headers["x-anbar-engine"])
            assert len(taken) == 2
            (idle,) = set(stack.engines) - taken
            again = await stack.complete(prompt)
            tokens = again.json["usage"]["prompt_tokens"]
            assert_hit(again, idle, (tokens - 1) // BLOCK * BLOCK)


async def test_store_outlives_the_engine_that_filled_it(tokenizer_dir: Path, socket_dir: Path) -> None:
    """The engine that stored a prefix dies: another one serves it from the store, as predicted."""
    setup = Setup(tokenizer_dir, socket_dir, engine={"host_tier": HostShape(256), "shared": SharedTier(4096)})
    async with running_stack(setup) as stack:
        prompt = text_prompt("survivor")
        first = await stack.complete(prompt)
        await stack.followed()
        await stack.engines[first.engine].die()
        await stack.becomes(first.engine, "unhealthy")
        again = await stack.complete(prompt)
        assert again.engine != first.engine
        assert again.predicted == again.cached >= BLOCK
        await stack.engines[first.engine].revive()
        await stack.becomes(first.engine, "ready")


@pytest.mark.parametrize("chunk_blocks", [1, 3])
async def test_store_serves_to_the_last_token(
    tokenizer_dir: Path, socket_dir: Path, chunk_blocks: int
) -> None:
    """From the store come whole chunks, a prompt's last token included, and they continue the device's."""
    tiers = {"host_tier": HostShape(256, chunk_blocks), "shared": SharedTier(4096)}
    setup = Setup(tokenizer_dir, socket_dir, engine=tiers, cache={"chunk_blocks": chunk_blocks})
    async with running_stack(setup) as stack:
        ids = next(iter(stack.engines.values())).text.words(text_prompt("to the last", words=200))
        full = 12 * BLOCK
        await stack.complete(ids[:full], max_tokens=1)
        await stack.followed()
        await stack.forget()
        whole = await stack.complete(ids[:full], max_tokens=1)
        assert whole.predicted == whole.cached == full
        for length in (full - 1, full + 5, full // 2, 5 * BLOCK + 3, full):
            await stack.forget()
            await stack.complete(ids[: 2 * BLOCK], max_tokens=1)  # the device has a little
            await stack.followed()
            answer = await stack.complete(ids[:length], max_tokens=1)
            assert answer.predicted == answer.cached > 0, length
            await stack.followed()


async def test_host_tier_is_predicted(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A prefix that was evicted to host RAM is predicted there and comes back from there."""
    setup = Setup(tokenizer_dir, socket_dir, engine={"host_tier": HostShape(512)})
    async with running_stack(setup) as stack:
        first = await stack.complete(text_prompt("evicted"))
        await stack.followed()
        await stack.forget(first.engine)
        assert_hit(await stack.complete(text_prompt("evicted")), first.engine)
        assert stack.engines[first.engine].counters.num_external_hits > 0


async def test_cold_requests_spread(stack: Stack) -> None:
    """Concurrent requests without a common prefix are spread over all engines."""
    answers = await stack.at_once([text_prompt(str(i)) for i in range(12)])
    counts = [sum(answer.engine == name for answer in answers) for name in stack.engines]
    assert all(2 <= count <= 7 for count in counts), counts


async def test_load_beats_a_short_prefix(tokenizer_dir: Path, socket_dir: Path) -> None:
    """An engine with a long queue loses a request with a short common prefix to an idle one."""
    setup = Setup(tokenizer_dir, socket_dir, engine={"cost": steady(prefill_s_per_token=0.001)})
    async with running_stack(setup) as stack:
        shared = "the store " * 8
        first = await stack.complete(shared)
        await stack.followed()
        answers = await stack.at_once([shared + text_prompt(str(i), words=80) for i in range(6)])
        engines = [answer.engine for answer in answers]
        assert 1 <= engines.count(first.engine) <= 5, engines


async def test_prediction_under_eviction(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Over a hundred random requests on small caches that evict all the time, every prediction is exact."""
    setup = Setup(
        tokenizer_dir, socket_dir, engine={"num_blocks": 40, "max_model_len": 600, "block_size": 16}
    )
    rng = random.Random(7)
    async with running_stack(setup) as stack:
        hits = 0
        for _ in range(100):
            name = rng.choice("abcdefgh")
            answer = await stack.complete(text_prompt(name, words=rng.choice((24, 40, 64))), max_tokens=20)
            assert answer.predicted == answer.cached
            hits += answer.cached > 0
            await stack.followed()
        assert 20 < hits < 98, "the caches should be small enough to miss and large enough to hit"


async def test_tokenized_by_the_engine(tokenizer_dir: Path, socket_dir: Path) -> None:
    """When the model's root is no directory here, the engine's own /tokenize makes predictions exact."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, engine={"root": "org/model"})) as stack:
        for ask in (stack.complete, stack.chat):
            first = await ask(text_prompt(ask.__name__))
            await stack.followed()
            assert_hit(await ask(text_prompt(ask.__name__)), first.engine)
        assert any("/tokenize" in engine.records.others for engine in stack.engines.values())


async def test_configured_tokenizer(tokenizer_dir: Path, socket_dir: Path) -> None:
    """`engines[].tokenizer` names the directory when the root does not."""
    entries = [{"tokenizer": str(tokenizer_dir)}] * 2
    setup = Setup(tokenizer_dir, socket_dir, engine={"root": "org/model"}, entries=entries)
    async with running_stack(setup) as stack:
        first = await stack.chat(TURNS)
        await stack.followed()
        assert_hit(await stack.chat(TURNS), first.engine)
        for engine in (await stack.described()).values():
            assert engine["tokens"] == "agrees"


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "random"])
async def test_other_policies(tokenizer_dir: Path, socket_dir: Path, policy: str) -> None:
    """The policies for comparison serve as well, and say which they are."""
    async with running_stack(Setup(tokenizer_dir, socket_dir, router={"policy": policy})) as stack:
        answers = [await stack.complete(text_prompt("same")) for _ in range(4)]
        assert {answer.headers["x-anbar-policy"] for answer in answers} == {policy}
        assert not any("x-anbar-cached-tokens-predicted" in answer.headers for answer in answers)
        assert not any("x-anbar-degraded" in answer.headers for answer in answers)
        if policy == "round_robin":
            assert {answer.engine for answer in answers} == set(stack.engines)


async def test_session_policy(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Requests of one session, by header or by `user`, go to one engine, whatever they ask; sessions are
    spread; without a session the least loaded engine is taken."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=3, router={"policy": "session"})
    async with running_stack(setup) as stack:
        homes = {}
        for session in "abcdefgh":
            body = completion(text_prompt(f"first {session}"), max_tokens=1)
            asked = [await stack.post(COMPLETIONS, body, {"X-Session-Id": session}) for _ in range(2)]
            asked.append(await stack.complete("x", max_tokens=1, user=session))
            assert len({answer.engine for answer in asked}) == 1
            homes[session] = asked[0].engine
        assert set(homes.values()) == set(stack.engines)
        held = await stack.at_once(["a", "b", "c"], max_tokens=1)
        assert {answer.engine for answer in held} == set(stack.engines)


async def test_prefix_policy_without_events(tokenizer_dir: Path, socket_dir: Path) -> None:
    """With engines that publish nothing, a prompt follows its beginning to where the router sent it before,
    and what it was sent is predicted; a new prompt is not drawn along."""
    router = {"policy": "prefix"}
    setup = Setup(tokenizer_dir, socket_dir, num_engines=3, router=router, engine={"events": None})
    async with running_stack(setup) as stack:
        for name in "abcdef":
            first = await stack.complete(text_prompt(name))
            for question in ("", " And then?"):
                assert_hit(await stack.complete(text_prompt(name) + question), first.engine)
        bursts = await stack.at_once([[50] * 400] * 4)
        assert len({answer.engine for answer in bursts}) == 1
