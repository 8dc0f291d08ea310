"""Engines that hang, before their answer or amid it: the router is patient for so long, and not longer.

Its patience here is long enough for what works on a machine that stands still for some seconds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.emulator import Ending, Fault, FaultKind, Scope
from tests.integration.harness import Raw, eventually
from tests.integration.stack import (
    CHAT,
    COMPLETIONS,
    Setup,
    Stack,
    assert_broken_off,
    chat,
    completion,
    read_events,
    running_stack,
    text_prompt,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATIENCE_S = 5.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    patience = {"continue_streams": False, "first_byte_timeout_s": PATIENCE_S, "idle_timeout_s": PATIENCE_S}
    async with running_stack(Setup(tokenizer_dir, module_dir, router=patience)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    yield common
    await common.recover()


async def test_engine_hangs(stack: Stack) -> None:
    """An engine that accepts and never answers: after the first-byte timeout the next one answers."""
    prompt, target = await stack.warm()
    stack.engines[target].arm(Fault(FaultKind.HANG, count=0))
    before, began_s = await stack.num_failed_attempts(), asyncio.get_running_loop().time()
    answer = await stack.complete(prompt)
    assert answer.status == 200
    assert answer.engine != target
    assert asyncio.get_running_loop().time() - began_s > 0.9 * PATIENCE_S
    assert await stack.num_failed_attempts() == before + 1
    await eventually(lambda: stack.engines[target].records.count(Ending.CANCELLED) == 1)
    stack.engines[target].faults.clear()
    await stack.becomes(target, "ready")


async def test_wholly_hung_engine_is_avoided(stack: Stack) -> None:
    """An engine that hangs on everything, health checks included, costs one request its patience."""
    prompt, target = await stack.warm()
    stack.engines[target].arm(Fault(FaultKind.HANG, count=0, scope=Scope.ALL))
    before = await stack.num_failed_attempts()
    answers = [await stack.complete(prompt)]
    assert await stack.state(target) == "unhealthy"
    answers += [await stack.complete(text_prompt(str(index))) for index in range(8)]
    assert {answer.status for answer in answers} == {200}
    assert target not in {answer.engine for answer in answers}
    assert await stack.num_failed_attempts() <= before + 1  # none, where a health check was even sooner
    stack.engines[target].faults.clear()
    await stack.becomes(target, "ready")


async def test_hung_in_mid_stream(stack: Stack) -> None:
    """A stream that stops, of a chat and of a completion, is broken off after the idle timeout, with an error
    event and without [DONE], and the request is not done again."""
    for engine in stack.engines.values():
        engine.arm(Fault(FaultKind.HANG_MID_STREAM, count=0, after_events=3))

    async def read(path: str, body: object) -> list[bytes]:
        async with Raw.open(stack.port) as raw:
            raw.post(path, body)
            status, _ = await raw.head()
            assert status == 200
            return await read_events(raw)

    streams = (
        read(CHAT, chat("hello", stream=True, max_tokens=8)),
        read(COMPLETIONS, completion("hello", stream=True, max_tokens=8)),
    )
    for events in await asyncio.gather(*streams):
        assert_broken_off(events)
    assert stack.num_seen == 2
