"""The store in Valkey beside SET and GET on bare sockets, and beside the servers' own benchmark."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from shutil import which
from threading import local

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


def own_benchmark(server: Server, rows: Rows) -> Callable[[str], float] | None:
    """Seconds in which the servers' own benchmark does as many SETs or GETs of values of this size, with as
    many connections; None where it is not installed."""
    program = next(filter(None, map(which, _OWN_BENCHMARKS)), None)
    if program is None:
        return None

    def seconds(command: str) -> float:
        asked = ["-p", str(server.port), "-t", command, "-d", str(rows.num_bytes), "-n", str(len(rows.rows))]
        done = subprocess.run(
            [program, *asked, "-c", str(ENGINE_THREADS), "--csv"],
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        per_second = float(done.stdout.splitlines()[1].split(",")[1].strip('"'))
        return len(rows.rows) / per_second

    return seconds
