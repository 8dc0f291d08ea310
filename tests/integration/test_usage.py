"""Streams through the router are the engine's own, though the router asked for their usage."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from anbar.apps.emulator import Fault, FaultKind
from tests.integration.harness import call
from tests.integration.stack import (
    CHAT,
    COMPLETIONS,
    Setup,
    Stack,
    chat,
    completion,
    running_stack,
    text_prompt,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
_OWN = re.compile(rb'"(?:id|created)":(?:"[^"]*"|\d+),|,"system_fingerprint":"[^"]*"')
"""What no two answers have in common, and the fingerprint: vLLM has it in the event that is taken out, where
there is one (docs/known-limits.md)."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    async with running_stack(Setup(tokenizer_dir, module_dir, num_engines=1)) as running:
        yield running


async def streams(stack: Stack, path: str, body: dict[str, object]) -> tuple[bytes, bytes]:
    """The body of a stream through the router and straight from the engine."""
    sent = {**body, "stream": True, "seed": 7}
    through = await stack.post(path, sent)
    straight = await call(stack.engines["e0"].port, "POST", path, sent)
    assert through.status == straight.status == 200
    return _OWN.sub(b"", through.body), _OWN.sub(b"", straight.body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, completion("grain")),
        (COMPLETIONS, completion(["grain", "water"], n=2, temperature=1.0, echo=True)),
        (COMPLETIONS, completion("grain", logprobs=2, return_token_ids=True)),
        (CHAT, chat("آب کجاست؟ अंबार 🜚", n=3, temperature=1.0, max_tokens=20)),
        (CHAT, chat("grain", stream_options={"include_usage": False})),
        (CHAT, chat("grain", stream_options={"continuous_usage_stats": True})),
        (CHAT, chat("grain", logprobs=True, top_logprobs=2)),
    ],
)
async def test_the_stream_is_the_one_that_was_asked_for(
    stack: Stack, path: str, body: dict[str, object]
) -> None:
    """A client that did not ask for usage gets the engine's stream without it, and the router has read it."""
    through, straight = await streams(stack, path, body)
    assert through == straight
    assert b"usage" not in through
    await stack.assert_idle()
    line = [line for line in await stack.logged() if line["event"] == "request"][-1]
    assert line["num_output_tokens"] > 0
    assert line["reported_cached_tokens"] is not None


async def test_a_stream_in_pieces(stack: Stack) -> None:
    """The engine's stream comes seven bytes at a time: the event is taken out all the same."""
    stack.engines["e0"].arm(Fault(FaultKind.DRIP, drip_bytes=7, count=1))
    through, straight = await streams(stack, CHAT, chat("grain"))
    assert through == straight


async def test_a_stream_with_an_error(stack: Stack) -> None:
    """The engine fails in its own way, without a usage event: the client gets every byte of that."""
    stack.engines["e0"].arm(Fault(FaultKind.ERROR_MID_STREAM, after_events=2, count=2))
    through, straight = await streams(stack, CHAT, chat("grain"))
    assert through == straight
    assert b'"error"' in through


async def test_a_refused_stream(stack: Stack) -> None:
    """An answer that is no stream passes as it is."""
    body: Any = completion("grain", stream=True, min_tokens=100, max_tokens=10)
    through = await stack.post(COMPLETIONS, body)
    straight = await call(stack.engines["e0"].port, "POST", COMPLETIONS, body)
    assert (through.status, through.body) == (straight.status, straight.body)
    assert through.status == 400


async def test_a_stream_that_asks(stack: Stack) -> None:
    """A client that asks for usage gets it, in every event if it wants it so."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    await streams(stack, CHAT, chat("grain"))  # the usage of both tells the same cached tokens
    through, straight = await streams(stack, CHAT, chat("grain", stream_options=options))
    assert through == straight
    assert through.count(b'"usage"') == through.count(b"data: {")


async def test_the_prediction_of_streams_is_checked(stack: Stack) -> None:
    """Streams are compared with their prediction too: what was reported stands in the log line."""
    prompt = text_prompt("a stream")
    for _ in range(2):
        await stack.post(COMPLETIONS, completion(prompt, stream=True))
        await stack.followed()
    await stack.assert_idle()
    line = [line for line in await stack.logged() if line["event"] == "request"][-1]
    assert line["reported_cached_tokens"] == line["predicted_cached_tokens"] > 0


async def test_usage_that_the_engine_forces(tokenizer_dir: Path, socket_dir: Path) -> None:
    """An engine that shows usage to everybody goes on doing so behind the router."""
    setup = Setup(tokenizer_dir, socket_dir, num_engines=1, engine={"force_include_usage": True})
    async with running_stack(setup) as stack:
        await streams(stack, CHAT, chat("grain"))
        through, straight = await streams(stack, CHAT, chat("grain"))
        assert through == straight
        assert through.count(b'"usage"') == through.count(b"data: {")
