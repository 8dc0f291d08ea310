"""The store in S3 beside bare loops of its client."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack

import obstore
from tests.s3_server import S3Server

from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from benchmarks.transfer.loop import ENGINE_THREADS, PATIENCE_S, EngineCalls, Loop, Pair, Rows

_PER_CALL = 8
"""Requests at a time of one call on the store."""


def pairs(rows: Rows, server: S3Server, stack: ExitStack) -> Iterator[Pair]:
    """To one server on loopback and back, with as many requests at a time."""
    config = S3StoreConfig(server.place("store"), "bench", timeout_s=PATIENCE_S, concurrency=_PER_CALL)
    store = S3Store(config, b"bench")
    store.open()
    calls = EngineCalls(store, rows)
    stack.callback(calls.close)
    client = server.client()
    names = [f"bare/{number}" for number in range(len(rows.rows))]

    async def put(index: int) -> object:
        return await obstore.put_async(client, names[index], rows.rows[index])

    async def get(index: int) -> object:
        return await (await obstore.get_async(client, names[index])).bytes_async()

    numbers = range(len(names))
    at_a_time = _PER_CALL * min(ENGINE_THREADS, calls.num_calls)
    bare_put = Loop(
        lambda: asyncio.run(_each(put, numbers, at_a_time)), lambda: obstore.delete(client, names)
    )
    yield Pair("s3: put of PUT", Loop(calls.store, calls.forget), bare_put)
    bare_get = Loop(lambda: asyncio.run(_each(get, numbers, at_a_time)))
    yield Pair("s3: get_into of GET", Loop(calls.load), bare_get)


async def _each(act: Callable[[int], Awaitable[object]], numbers: Sequence[int], at_a_time: int) -> None:
    turns = asyncio.Semaphore(at_a_time)

    async def one(number: int) -> None:
        async with turns:
            await act(number)

    await asyncio.gather(*map(one, numbers))
