"""One engine computes prompts, others answer: through a shared store, with emulated engines."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.emulator.nixl import Nixl
from anbar.core.cost import TierCost
from anbar.sim.engine.shape import HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import SharedCost
from tests.integration.harness import Answer, call
from tests.integration.stack import COMPLETIONS, Setup, Stack, completion, running_stack, text_prompt

BLOCK = 16
LONG = 60
"""Words of a prompt of some hundred tokens."""
SLOW_STORE = SharedCost(store=TierCost(0.5, math.inf))
"""What is stored is there half a second later: the decode engine asks before that."""
NEVER = SharedCost(store=TierCost(10_000.0, math.inf))


def split_setup(tokenizer: Path, sockets: Path, cost: SharedCost = SLOW_STORE, **split: object) -> Setup:
    """`e0` for prefill, `e1` and `e2` answer."""
    return Setup(
        tokenizer,
        sockets,
        num_engines=3,
        router={"split": {"via": "shared", "min_uncached_tokens": 64, "wait_ms": 60_000, **split}},
        engine={"host_tier": HostShape(256), "shared": SharedTier(4096, cost)},
        entries=[{"role": "prefill"}, {"role": "decode"}, {"role": "decode"}],
    )


def prefilled_by(answer: Answer) -> str | None:
    return answer.headers.get("x-anbar-prefill-engine")


async def outcomes(stack: Stack) -> dict[str, float]:
    """What became of requests, by the metric's label."""
    samples = await stack.samples("anbar_router_split_requests_total")
    return {labels.split('outcome="')[1].split('"')[0]: value for labels, value in samples.items()}


async def test_the_decode_engine_loads_what_the_prefill_engine_computed(
    tokenizer_dir: Path, socket_dir: Path
) -> None:
    """A long prompt: `e0` computes it for one token, another engine waits for the store, loads all of its
    whole blocks and answers as it would have alone. Both legs are explained."""
    async with running_stack(split_setup(tokenizer_dir, socket_dir)) as stack:
        prompt = text_prompt("handed over", LONG)
        answer = await stack.complete(prompt)
        assert answer.status == 200
        assert (prefilled_by(answer), answer.engine in ("e1", "e2")) == ("e0", True)
        num_tokens = answer.json["usage"]["prompt_tokens"]
        assert answer.cached == answer.predicted == num_tokens // BLOCK * BLOCK
        (leg,) = stack.engines["e0"].records.seen
        assert (json.loads(leg.body)["max_tokens"], leg.num_generated) == (1, 1)
        alone = await stack.post("/v1/completions", completion(prompt))
        assert alone.json["choices"] == answer.json["choices"]
        page = (await stack.get(f"/admin/explain/{answer.headers['x-request-id']}")).json
        found: dict[str, Any] = page["requests"][0]
        assert (found["chosen"], found["split"]["engine"]) == (answer.engine, "e0")
        assert (found["split"]["outcome"], found["split"]["cached_tokens"]) == ("split", 0)
        assert [engine["engine"] for engine in found["split"]["engines"] if engine["place"]] == ["e0"]
        lines = [line for line in await stack.logged() if line["event"] == "request"]
        assert (lines[0]["split"], lines[0]["prefill_engine"]) == ("split", "e0")
        assert lines[0]["prefill_s"] > 0


async def test_over_nixl(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Engines with vLLM's connector and no cache below the device: `e0` says where its blocks are, the other
    engine is told, has the whole prompt, and answers as it would have alone. A client that goes through the
    router sees nothing of that."""
    setup = split_setup(tokenizer_dir, socket_dir, via="nixl")
    setup = replace(setup, cache={"mode": "none"}, engine={"nixl": Nixl("emulated-p", "127.0.0.1", 5601)})
    async with running_stack(setup) as stack:
        prompt = text_prompt("fetched", LONG)
        answer = await stack.complete(prompt)
        assert (answer.status, prefilled_by(answer)) == (200, "e0")
        num_tokens = answer.json["usage"]["prompt_tokens"]
        assert (answer.cached, answer.predicted) == (0, 0)  # as the prefill engine had it
        assert stack.engines[answer.engine].counters.num_prompt_external_hit == num_tokens
        assert answer.json["kv_transfer_params"] is None
        (leg,) = stack.engines["e0"].records.seen
        assert json.loads(leg.body)["kv_transfer_params"]["do_remote_decode"] is True
        (told,) = stack.engines[answer.engine].records.seen
        params = json.loads(told.body)["kv_transfer_params"]
        assert (params["remote_engine_id"], params["remote_port"]) == ("emulated-p", 5601)
        assert params["remote_num_tokens"] == num_tokens
        await stack.followed()
        await stack.forget()
        alone = await call(stack.engines["e1"].port, "POST", COMPLETIONS, completion(prompt))
        assert (alone.cached, alone.json["choices"]) == (0, answer.json["choices"])


async def test_an_engine_without_a_connector_is_found_out(tokenizer_dir: Path, socket_dir: Path) -> None:
    """`via: nixl`, and the engines were not started with it: the prompt is computed twice, and the metric
    says why."""
    setup = replace(split_setup(tokenizer_dir, socket_dir, via="nixl"), cache={"mode": "none"}, engine={})
    async with running_stack(setup) as stack:
        answer = await stack.complete(text_prompt("no connector", LONG))
        assert (answer.status, prefilled_by(answer), answer.cached) == (200, None, 0)
        assert await outcomes(stack) == {"not_handed_over": 1}


async def test_short_and_cached_prompts_are_not_split(tokenizer_dir: Path, socket_dir: Path) -> None:
    """A short prompt; a long one, for the first time and again: only the first of the long ones is split, the
    second one finds its blocks on the engine that answered. Metrics tell the three apart."""
    async with running_stack(split_setup(tokenizer_dir, socket_dir)) as stack:
        short = await stack.complete("a b c")
        prompt = text_prompt("long", LONG)
        first = await stack.complete(prompt)
        await stack.followed()
        second = await stack.complete(prompt)
        assert [prefilled_by(answer) for answer in (short, first, second)] == [None, "e0", None]
        assert short.engine != "e0"
        assert second.cached >= first.cached - BLOCK  # of a prompt on the device the last token is computed
        assert await outcomes(stack) == {"short": 1, "split": 1, "cached": 1}


async def test_what_was_handed_over_stays_in_the_store(tokenizer_dir: Path, socket_dir: Path) -> None:
    """The engine that answered dies, and the prefill engine forgets: the other decode engine serves the
    prompt from the store, and nobody computes it again."""
    async with running_stack(split_setup(tokenizer_dir, socket_dir)) as stack:
        prompt = text_prompt("kept", LONG)
        first = await stack.complete(prompt)
        await stack.followed()
        await stack.engines[first.engine].die()
        await stack.becomes(first.engine, "unhealthy")
        second = await stack.complete(prompt)
        assert (prefilled_by(second), second.cached) == (None, first.cached)
        assert {first.engine, second.engine} == {"e1", "e2"}
        await stack.engines[first.engine].revive()
        await stack.becomes(first.engine, "ready")


async def test_a_store_that_is_late_costs_the_wait_and_no_more(tokenizer_dir: Path, socket_dir: Path) -> None:
    """Nothing is ever stored: the decode engine waits for as long as it may and computes. Neither it nor the
    index is taken to be wrong."""
    setup = split_setup(tokenizer_dir, socket_dir, NEVER, wait_ms=50)
    async with running_stack(setup) as stack:
        answer = await stack.complete(text_prompt("late", LONG))
        assert (answer.status, prefilled_by(answer), answer.cached) == (200, "e0", 0)
        described = await stack.described()
        assert {engine["degraded"] for engine in described.values()} == {""}
        for engine in stack.engines.values():  # its stores would be waited for
            await engine.die()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_prefill_group_costs_no_request(
    stream: bool, tokenizer_dir: Path, socket_dir: Path
) -> None:
    """The only prefill engine is gone, which nobody knows yet, and then is known: the others compute."""
    setup = split_setup(tokenizer_dir, socket_dir)
    setup = replace(setup, router={**setup.router, "health_interval_s": 3600.0})
    async with running_stack(setup) as stack:
        await stack.engines["e0"].die()
        for name in ("unknown", "known"):
            answer = await stack.complete(text_prompt(name, LONG), stream=stream)
            assert (answer.status, prefilled_by(answer)) == (200, None)
        assert await outcomes(stack) == {"prefill_failed": 1, "no_prefill_engine": 1}
