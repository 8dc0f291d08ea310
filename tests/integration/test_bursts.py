"""Requests that come before the engines could say what they have."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.stack import Setup, Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOKENS = 101 * 16 + 1
"""All but the last token of a prompt are in whole blocks, so that an equal one leaves one to compute."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    async with running_stack(Setup(tokenizer_dir, module_dir, num_engines=4)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    yield common
    await common.recover()


async def test_a_burst_of_equal_prompts_stays_together(stack: Stack) -> None:
    """Sixteen requests with one new long prompt, none of which is answered before all were sent: computing it
    once and waiting for that is not slower than computing it everywhere, so all go to one engine."""
    answers = await stack.at_once([[11] * TOKENS] * 16)
    assert len({answer.engine for answer in answers}) == 1
    assert sorted(answer.predicted for answer in answers) == [0] + [TOKENS - 1] * 15
    assert sum(answer.cached == 0 for answer in answers) == 1


async def test_a_burst_without_sharing_spreads(stack: Stack) -> None:
    """The same burst of different prompts is shared out evenly."""
    answers = await stack.at_once([[100 + at] * TOKENS for at in range(16)])
    counts = [sum(answer.engine == name for answer in answers) for name in stack.engines]
    assert counts == [4, 4, 4, 4]


async def test_load_ends_the_togetherness(stack: Stack) -> None:
    """Bursts of two prompts go to two engines: who has the one prompt queued is no place for the other."""
    answers = await stack.at_once([[20 + at % 2] * TOKENS for at in range(8)])
    even, odd = ({answer.engine for answer in answers[at::2]} for at in (0, 1))
    assert len(even) == len(odd) == 1
    assert even != odd


async def test_what_was_sent_is_not_believed_against_the_events(stack: Stack) -> None:
    """An engine that has answered and dropped its cache since is not taken to have it: what events tell is
    newer than what was sent."""
    prompt = [31] * TOKENS
    first = await stack.complete(prompt)
    await stack.followed()
    await stack.forget()
    again = await stack.complete(prompt)
    assert first.predicted == again.predicted == again.cached == 0
