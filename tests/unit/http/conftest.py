"""Both event loops, asyncio's own and uvloop, which the router runs on; pools that end with their test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop
from loopback import PoolOf, WatchedPool
from tests.waiting import until


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each asynchronous test here runs on both."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_itemcollected(item: pytest.Item) -> None:
    """uvloop does not let the exception through by which pytest-timeout ends a test that hangs."""
    item.add_marker(pytest.mark.timeout(method="thread"))


@pytest.fixture
async def pool_of() -> AsyncIterator[PoolOf]:
    """Makes pools for the engine at a port. None of their connections outlives the test."""
    pools: list[WatchedPool] = []

    def make(*args: object, **kwargs: object) -> WatchedPool:
        pools.append(WatchedPool(*args, **kwargs))
        return pools[-1]

    yield make
    for pool in pools:
        for connection in list(pool.open):
            connection.abandon()
    await until(lambda: not any(pool.open for pool in pools))
