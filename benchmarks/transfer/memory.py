"""What memory and the loopback device can do by themselves."""

import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from benchmarks.transfer.loop import ENGINE_THREADS, MIB, Loop, Rows, on_threads

_PIECE = MIB
"""Bytes of one `send` and one `recv_into`."""


def memcpy(rows: Rows) -> Loop:
    """Rows copied to other memory, on as many threads as an engine's calls have."""
    sources = [np.frombuffer(row, dtype=np.uint8) for row in rows.rows]
    targets = [np.zeros(rows.num_bytes, dtype=np.uint8) for _ in sources]
    return Loop(on_threads(ENGINE_THREADS, lambda i: np.copyto(targets[i], sources[i]), len(sources)))


def sockets(num_bytes: int, stack: ExitStack) -> dict[str, Loop]:
    """One TCP connection to another process on loopback, 1 MiB at a time, there and back."""
    peer = stack.enter_context(_peer(num_bytes))
    memory = memoryview(bytearray(_PIECE))

    def send() -> None:
        peer.sendall(b"s")
        for _ in range(num_bytes // _PIECE):
            peer.sendall(memory)
        assert peer.recv(1) == b"."

    def receive() -> None:
        peer.sendall(b"r")
        _fill(peer, memory, num_bytes)

    return {"send": Loop(send), "recv_into": Loop(receive)}


@contextmanager
def _peer(num_bytes: int) -> Iterator[socket.socket]:
    listener = socket.create_server(("127.0.0.1", 0))
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_serve, args=(listener.getsockname()[1], num_bytes), daemon=True)
    process.start()
    sock, _ = listener.accept()
    listener.close()
    try:
        yield sock
    finally:
        sock.close()
        process.join()


def _serve(port: int, num_bytes: int) -> None:
    memory = memoryview(bytearray(_PIECE))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while command := sock.recv(1):
            if command == b"s":
                _fill(sock, memory, num_bytes)
                sock.sendall(b".")
            else:
                for _ in range(num_bytes // _PIECE):
                    sock.sendall(memory)


def _fill(sock: socket.socket, memory: memoryview, num_bytes: int) -> None:
    """Receive so many bytes, into the same memory again and again."""
    left = num_bytes
    while left:
        left -= sock.recv_into(memory, min(left, _PIECE))
