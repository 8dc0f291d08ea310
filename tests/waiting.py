"""Waiting for what a test expects, not for some time: a loaded machine may stall anything for seconds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = 60.0
"""Longer than any stall: who waits so long waits for something that will not come."""
_TURNS = 50

_T = TypeVar("_T")


async def until(condition: Callable[[], object]) -> None:
    """Until `condition` holds; TimeoutError when it does not come to hold."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (the condition is about parts that announce nothing)
            await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], object]) -> None:
    """As `until`, for tests without an event loop; AssertionError when it does not come to hold."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to hold"
        time.sleep(0.01)


async def within(awaitable: Awaitable[_T]) -> _T:
    """The result of what is expected to come; TimeoutError when it does not."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def settled(value: Callable[[], _T]) -> _T:
    """`value` once it does not move for many turns of the loop: all that runs on this loop waits then."""
    last, num_same = value(), 0
    async with asyncio.timeout(PATIENCE_S):
        while num_same < _TURNS:
            await asyncio.sleep(0)
            now = value()
            last, num_same = now, num_same + 1 if now == last else 0
    return last
