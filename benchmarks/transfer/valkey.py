"""The store in Valkey beside SET and GET on bare sockets, the servers' own benchmark, and other clients."""

import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from threading import local
from typing import Any

from tests.integration.valkey.servers import Server, store_on

from benchmarks.transfer.loop import ENGINE_THREADS, EngineCalls, Loop, Pair, Rows, on_threads

_OWN_BENCHMARKS = ("valkey-benchmark", "redis-benchmark")


def pairs(rows: Rows, server: Server, stack: ExitStack) -> Iterator[Pair]:
    """To one server on loopback and back; the bare loops have a connection for each thread of an engine."""
    calls = EngineCalls(stack.enter_context(store_on(server.node)), rows)
    stack.callback(calls.close)
    bare = _Bare(server.port, rows)
    names = len(rows.rows)
    stored = Loop(calls.store, calls.forget)
    yield Pair("valkey: put of SET", stored, Loop(on_threads(ENGINE_THREADS, bare.set, names)))
    yield Pair("valkey: get_into of GET", Loop(calls.load), Loop(on_threads(ENGINE_THREADS, bare.get, names)))


class _Bare:
    """As little as is needed: no check of what comes, no deadline, one value at a time."""

    def __init__(self, port: int, rows: Rows) -> None:
        self._port = port
        self._rows = rows
        self._of_thread = local()

    def set(self, index: int) -> None:
        sock, row = self._connection(), self._rows.rows[index]
        key = self._rows.keys[index]
        head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, len(row))
        sock.sendall(head)
        sock.sendall(row)
        sock.sendall(b"\r\n")
        assert sock.recv(64) == b"+OK\r\n"

    def get(self, index: int) -> None:
        sock, row = self._connection(), self._rows.rows[index]
        key = self._rows.keys[index]
        sock.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        line = bytearray(64)
        count = sock.recv_into(line)
        start = line.index(b"\r\n") + 2
        done = count - start
        row[:done] = line[start:count]
        while done < len(row):
            done += sock.recv_into(row[done:])
        assert sock.recv(2, socket.MSG_WAITALL) == b"\r\n"

    def _connection(self) -> socket.socket:
        if not hasattr(self._of_thread, "sock"):
            sock = socket.create_connection(("127.0.0.1", self._port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._of_thread.sock = sock
        found: socket.socket = self._of_thread.sock
        return found


def others(rows: Rows, server: Server, stack: ExitStack, *, clients: bool) -> Iterator[tuple[str, Loop]]:
    """The servers' own benchmark, where it is installed, with as many connections; with `clients` also loops
    of the libraries for Python that are installed, on one connection."""
    program = next(filter(None, map(which, _OWN_BENCHMARKS)), None)
    if program is not None:
        for command in ("set", "get"):
            asked = [program, "-p", str(server.port), "-t", command, "-d", str(rows.num_bytes)]
            asked += ["-n", str(len(rows.rows)), "-c", str(ENGINE_THREADS), "--csv"]
            yield f"valkey: {Path(program).name} {command.upper()}", Loop(partial(_own_seconds, asked, rows))
    if clients:
        for name, client in _libraries(server.port, stack):
            pairs = [(key, bytes(row)) for key, row in zip(rows.keys, rows.rows, strict=True)]
            yield f"valkey: {name} SET", Loop(partial(_each, client.set, pairs))
            yield f"valkey: {name} GET", Loop(partial(_each, client.get, [(key,) for key in rows.keys]))


def _own_seconds(command: list[str], rows: Rows) -> float:
    """As it counts them itself, without its start."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return len(rows.rows) / float(done.stdout.splitlines()[1].split(",")[1].strip('"'))


def _each(act: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
    for given in arguments:
        act(*given)


def _libraries(port: int, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """valkey-py, redis-py and GLIDE, each with the fastest parser that is installed."""
    if find_spec("valkey"):
        yield "valkey-py", stack.enter_context(import_module("valkey").Valkey(port=port))
    if find_spec("redis"):
        yield "redis-py", stack.enter_context(import_module("redis").Redis(port=port))
    if find_spec("glide_sync"):
        glide = import_module("glide_sync")
        nodes = [glide.NodeAddress("127.0.0.1", port)]
        settings = glide.GlideClientConfiguration(nodes, request_timeout=60_000)
        yield "GLIDE", glide.GlideClient.create(settings)
