"""Random requests, right and wrong: the router answers each with 2xx or 4xx in OpenAI's shape, and has no
defect. `ANBAR_FUZZ_REQUESTS` says how many, 1,000 by default."""

import asyncio
import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.harness import Answer, Raw
from tests.integration.stack import CHAT, COMPLETIONS, MODEL, Stack
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUM_REQUESTS = int(os.environ.get("ANBAR_FUZZ_REQUESTS", "1000"))
_FIELDS = (
    *("model", "prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n"),
    *(
        "temperature",
        "top_p",
        "stop",
        "seed",
        "logprobs",
        "top_logprobs",
        "echo",
        "user",
        "tools",
        "metadata",
    ),
    *("tool_choice", "response_format", "logit_bias", "presence_penalty", "cache_salt", "kv_transfer_params"),
    *("prompt_logprobs", "truncate_prompt_tokens", "chat_template_kwargs", "continue_final_message", "\x00"),
)
_NAMES = ("role", "content", "type", "text", "image_url", "function", "name", "include_usage", "1", "")
_LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**40, 0.5, -0.0, 1e308, "", "user", "a" * 300, "سلام"),
    *("\ud800", "\x00", "none", "5", [], {}, MODEL),
)


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON, mostly small."""
    draw = rng.random()
    if depth > 3 or draw < 0.6:
        return rng.choice(_LEAVES)
    if draw < 0.8:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_NAMES): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def valid(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A request that is right."""
    if rng.random() < 0.5:
        messages = [{"role": "user", "content": "hello"}]
        return CHAT, {"model": MODEL, "messages": messages, "max_tokens": 2}
    return COMPLETIONS, {"model": MODEL, "prompt": "hello", "max_tokens": 2}


def fields(rng: random.Random) -> tuple[str, bytes]:
    """A right request with some fields replaced."""
    path, body = valid(rng)
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(_FIELDS)] = value(rng)
    return path, json.dumps(body).encode()


def characters(rng: random.Random) -> tuple[str, bytes]:
    """A right request with some bytes replaced, added or lost."""
    path, body = valid(rng)
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
    return path, bytes(data)


def anything(rng: random.Random) -> tuple[str, bytes]:
    """Any JSON, or no JSON at all, or JSON without end."""
    path, _ = valid(rng)
    junk = (json.dumps(value(rng)).encode(), rng.randbytes(rng.randrange(200)), b"[" * rng.randrange(20_000))
    return path, rng.choice(junk)


def headers(rng: random.Random) -> dict[str, str]:
    """Headers that are odd, none of which frames the request."""
    names = ("x-request-id", "accept", "idempotency-key", "traceparent", "x-anbar-explain", "authorization")
    text = "".join(rng.choice('aZ09 ,;=:/"\\\t\xe9') for _ in range(rng.randrange(300)))
    return {rng.choice(names): text.strip()}


KINDS: tuple[Callable[[random.Random], tuple[str, bytes]], ...] = (fields, characters, anything)


async def asked(raw: Raw, rng: random.Random) -> tuple[Answer, bytes]:
    path, body = rng.choice(KINDS)(rng)
    raw.post(path, body, headers(rng))
    return await asyncio.wait_for(raw.answer(), PATIENCE_S), body


async def test_random_requests(stack: Stack) -> None:
    """Fields, bytes and headers at random, on connections that go on: whatever is refused is refused with 4xx
    and OpenAI's error, by the router or by its engine, and no engine is blamed."""
    rng = random.Random(20)
    num_refused = 0
    async with Raw.open(stack.port) as raw:
        for _ in range(NUM_REQUESTS):
            answer, body = await asked(raw, rng)
            assert 200 <= answer.status < 500, (answer.status, body[:500], answer.body[:500])
            if answer.status >= 400:
                num_refused += 1
                assert {"message", "type", "param", "code"} <= set(answer.json["error"]), answer.body
    assert num_refused > NUM_REQUESTS / 2
    described = (await stack.described()).values()
    assert {(engine["state"], engine["breaker"]) for engine in described} == {("ready", "closed")}
