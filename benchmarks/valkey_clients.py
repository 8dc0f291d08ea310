"""Bare loops of SET and GET: clients for Python beside the store, on one real Valkey server on loopback.

    python -m benchmarks.valkey_clients [MiB of a value] [rounds]

Clients that are not installed are left out. What is printed is the best round of each, taken in turn; the
store does more than the bare loops, since it also verifies (xxh3-128) and asks before it stores.
"""

import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.integration.valkey.servers import server, store_on

from anbar.adapters.store.valkey.wire import Node
from anbar.tier.store import Outcome, PutItem

NUM_VALUES = 32
PATIENCE_S = 60.0

Loop = Callable[[], None]


def main(num_mib: int, rounds: int) -> None:
    data = bytes(range(256)) * (num_mib * 4096)
    keys = [b"%032d" % index for index in range(NUM_VALUES)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        one = stack.enter_context(server(folder / "server"))
        loops = {name: loop for make in MAKERS for name, loop in make(one.port, keys, data, stack)}
        best = dict.fromkeys(loops, float("inf"))
        for _ in range(rounds):
            for name, (prepare, loop) in loops.items():
                prepare()
                started_s = time.perf_counter()
                loop()
                best[name] = min(best[name], time.perf_counter() - started_s)
    for name, seconds in best.items():
        print(f"{name:32} {len(data) * NUM_VALUES / seconds / 1e9:6.2f} GB/s")


Made = Iterator[tuple[str, tuple[Loop, Loop]]]


def nothing() -> None:
    """Before a loop that needs no preparation."""


def bare(port: int, keys: list[bytes], data: bytes, stack: ExitStack) -> Made:
    """A socket, and as little as is needed."""
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    target = memoryview(bytearray(len(data)))
    line = bytearray(64)

    def put() -> None:
        for key in keys:
            sock.sendall(b"*3\r\n$3\r\nSET\r\n$32\r\n%s\r\n$%d\r\n" % (key, len(data)))
            sock.sendall(data)
            sock.sendall(b"\r\n")
            assert sock.recv(64) == b"+OK\r\n"

    def get() -> None:
        for key in keys:
            sock.sendall(b"*2\r\n$3\r\nGET\r\n$32\r\n%s\r\n" % key)
            count = sock.recv_into(line)
            start = line.index(b"\r\n") + 2
            done = count - start
            target[:done] = line[start:count]
            while done < len(data):
                done += sock.recv_into(target[done:])
            assert sock.recv(2, socket.MSG_WAITALL) == b"\r\n"

    yield "bare socket: SET", (nothing, put)
    yield "bare socket: GET", (nothing, get)


def library(port: int, keys: list[bytes], data: bytes, stack: ExitStack) -> Made:
    """valkey-py, redis-py and GLIDE, each with the fastest parser that is installed."""
    clients = {}
    if find_spec("valkey"):
        clients["valkey-py"] = stack.enter_context(import_module("valkey").Valkey(port=port))
    if find_spec("redis"):
        clients["redis-py"] = stack.enter_context(import_module("redis").Redis(port=port))
    if find_spec("glide_sync"):
        glide = import_module("glide_sync")
        nodes = [glide.NodeAddress("127.0.0.1", port)]
        settings = glide.GlideClientConfiguration(nodes, request_timeout=60_000)
        clients["GLIDE"] = glide.GlideClient.create(settings)
    for name, client in clients.items():
        yield f"{name}: SET", (nothing, lambda client=client: [client.set(key, data) for key in keys])
        yield f"{name}: GET", (nothing, lambda client=client: [client.get(key) for key in keys])


def store(port: int, keys: list[bytes], data: bytes, stack: ExitStack) -> Made:
    """Anbar's store: all values in one call."""
    opened = stack.enter_context(store_on(Node(f"127.0.0.1:{port}")))
    items = [PutItem(key, memoryview(data)) for key in keys]
    buffers = [memoryview(bytearray(len(data))) for _ in keys]

    def forget() -> None:
        opened.delete(keys, scope="", timeout_s=PATIENCE_S)

    def put() -> None:
        assert set(opened.put(items, scope="", timeout_s=PATIENCE_S)) == {Outcome.HIT}

    def get() -> None:
        found = opened.get_into(keys, buffers, scope="", timeout_s=PATIENCE_S)
        assert set(found) == {Outcome.HIT}

    yield "store: put", (forget, put)
    yield "store: get_into", (nothing, get)


MAKERS = (bare, library, store)

if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*(given + [1, 9][len(given) :]))
