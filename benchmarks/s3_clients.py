"""The S3 store beside bare loops of its client, on one real S3 server on loopback.

    python -m benchmarks.s3_clients [MiB of a value] [rounds]

The loops are taken in turn, each with as many requests at a time, and what is printed is the median of the
rounds. The store does more than they: it verifies (xxh3-128), copies, and asks before it stores.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import S3Store as Client
from tests.s3_server import running_s3

from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from anbar.tier.store import Outcome, PutItem

NUM_VALUES = 24
AT_A_TIME = 8
PATIENCE_S = 600.0


def main(num_mib: int, rounds: int) -> None:
    data = bytes(range(256)) * (num_mib * 4096)
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        config = S3StoreConfig(server.place("store"), "bench", timeout_s=PATIENCE_S, concurrency=AT_A_TIME)
        store = S3Store(config, b"model")
        store.open()
        loops = {**with_threads(server.client(), data), **with_tasks(server.client(), data)}
        loops |= with_store(store, data)
        seconds: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(rounds + 1):
            for name, (prepare, loop) in loops.items():
                prepare()
                started_s = time.perf_counter()
                loop()
                if number:  # the first round opens connections
                    seconds[name].append(time.perf_counter() - started_s)
        store.close()
    for name, taken in seconds.items():
        print(f"{name:24} {len(data) * NUM_VALUES / statistics.median(taken) / 1e6:8.0f} MB/s")


Loops = dict[str, tuple[Callable[[], object], Callable[[], object]]]


def with_threads(client: Client, data: bytes) -> Loops:
    """Blocking calls on a pool of threads."""
    pool = ThreadPoolExecutor(AT_A_TIME)
    names = [f"threads/{number}" for number in range(NUM_VALUES)]

    def put() -> None:
        list(pool.map(lambda name: obstore.put(client, name, data), names))

    def get() -> None:
        list(pool.map(lambda name: obstore.get(client, name).bytes(), names))

    return {"threads: put": (lambda: obstore.delete(client, names), put), "threads: get": (lambda: None, get)}


def with_tasks(client: Client, data: bytes) -> Loops:
    """Tasks of one event loop: what the store is made of, and nothing else."""
    names = [f"tasks/{number}" for number in range(NUM_VALUES)]

    async def put(name: str) -> object:
        return await obstore.put_async(client, name, data)

    async def get(name: str) -> object:
        return await (await obstore.get_async(client, name)).bytes_async()

    return {
        "tasks: put": (lambda: obstore.delete(client, names), lambda: asyncio.run(each(put, names))),
        "tasks: get": (lambda: None, lambda: asyncio.run(each(get, names))),
    }


async def each(act: Callable[[str], Awaitable[object]], names: Iterable[str]) -> None:
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(name: str) -> None:
        async with turns:
            await act(name)

    await asyncio.gather(*map(one, names))


def with_store(store: S3Store, data: bytes) -> Loops:
    """All values in one call."""
    keys = [b"%032d" % number for number in range(NUM_VALUES)]
    items = [PutItem(key, memoryview(data)) for key in keys]
    buffers = [memoryview(bytearray(len(data))) for _ in keys]

    def put() -> None:
        assert set(store.put(items, scope="", timeout_s=PATIENCE_S)) == {Outcome.HIT}

    def get() -> None:
        assert set(store.get_into(keys, buffers, scope="", timeout_s=PATIENCE_S)) == {Outcome.HIT}

    def forget() -> None:
        store.delete(keys, scope="", timeout_s=PATIENCE_S)

    return {"store: put": (forget, put), "store: get_into": (lambda: None, get)}


if __name__ == "__main__":
    main(*(int(text) for text in [*sys.argv[1:], "1", "9"][:2]))
