"""The router's books beside the engines' own gauges."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.emulator import steady
from tests.integration.harness import Raw, eventually
from tests.integration.stack import COMPLETIONS, Setup, Stack, completion, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOR_LONG = {"max_tokens": 8000, "stream": True}
"""With steps of 0.1 s: longer than any test."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    settings = {"policy": "least_loaded", "load_check_interval_s": 0.05}
    async with running_stack(Setup(tokenizer_dir, module_dir, router=settings)) as running:
        yield running


async def has_strangers(stack: Stack, number: int) -> None:
    """Until the first engine has so many sequences that were not sent from the router."""

    async def so_many() -> bool:
        return bool((await stack.described())["e0"]["reported"]["strangers"] == number)

    await eventually(so_many, what=f"{number} strangers are seen")


async def test_work_that_came_past_the_router_is_seen_and_avoided(stack: Stack) -> None:
    """Three requests that somebody else has at an engine: the router knows of them, tells of them, and
    takes the other engine. When they have ended, nothing is left of them."""
    busy = stack.engines["e0"]
    busy.pace.cost = steady(step_s=0.1)
    async with AsyncExitStack() as others:
        for number in range(3):
            raw = await others.enter_async_context(Raw.open(busy.port))
            raw.post(COMPLETIONS, completion(f"past {number}", **FOR_LONG))
        await has_strangers(stack, 3)
        assert (await stack.samples("anbar_router_stranger_requests"))['{engine="e0"}'] == 3
        assert {(await stack.complete(f"own {number}")).engine for number in range(4)} == {"e1"}
    await has_strangers(stack, 0)


async def test_what_was_sent_from_here_is_no_stranger(stack: Stack) -> None:
    """A stream of the router's own is in the engine's gauge, and in nothing else."""
    for engine in stack.engines.values():
        engine.pace.cost = steady(step_s=0.1)
    async with Raw.open(stack.port) as raw:
        raw.post(COMPLETIONS, completion("mine", **FOR_LONG))
        _, headers = await raw.head()

        async def is_reported() -> bool:
            told = (await stack.described())[headers["x-anbar-engine"]]["reported"]
            return bool(told["running"] == 1 and told["strangers"] == 0)

        await eventually(is_reported)
