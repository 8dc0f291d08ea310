"""A TCP proxy on loopback that fails as networks do: it loses, delays, holds back, cuts, or resets.

Threads, so that a test of a blocking client needs no event loop.
"""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

_CHUNK_BYTES = 65536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing sends RST and drops what was not sent."""
_SLOW_S = 0.05
"""For each chunk, each way: a megabyte takes a second."""


class Network(Enum):
    """What becomes of bytes."""

    WORKS = "works"
    LOST = "lost"
    """Connections are made and stay, and nothing arrives on either side, nor later."""
    RESET = "reset"
    """Each connection is reset at its next byte, new ones included."""
    SLOW = "slow"
    """All arrives, late."""


class TcpProxy:
    """Set the attributes at any time; they hold for what comes next, also on connections that are open.

    `cut_after_bytes`: an answer's connection is reset after so many bytes of it; `num_cuts` bounds how often
    (None: always). `gate`: bytes of answers wait until it is set; `held` tells that some do.
    """

    def __init__(self, target_port: int) -> None:
        self.network = Network.WORKS
        self.cut_after_bytes: int | None = None
        self.num_cuts: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()
        self.num_connections = 0
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        self._spawn(self._accept)

    def stop(self) -> None:
        """Close everything and wait for the threads."""
        self.gate.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in [self._listener, *self._sockets]:
            one.close()

    def _spawn(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            self._spawn(self._pass_on, client, server)
            self._spawn(self._answer, server, client)

    def _arrived(self, source: socket.socket) -> bytes:
        """What comes from there next; nothing once it has ended."""
        while data := source.recv(_CHUNK_BYTES):
            if self.network is Network.RESET:
                raise ConnectionResetError
            if self.network is Network.SLOW:
                time.sleep(_SLOW_S)
            if self.network is not Network.LOST:
                return data
        return b""

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := self._arrived(client):
                server.sendall(data)
        if self.network is Network.RESET:
            _reset(client, server)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        num_bytes = 0
        with suppress(OSError):
            while data := self._arrived(server):
                if not self.gate.is_set():
                    self.held.set()
                    self.gate.wait()
                limit = self.cut_after_bytes if self.num_cuts != 0 else None
                if limit is not None and num_bytes + len(data) > limit:
                    client.sendall(data[: max(0, limit - num_bytes)])
                    if self.num_cuts is not None:
                        self.num_cuts -= 1
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    break
                num_bytes += len(data)
                client.sendall(data)
        if self.network is Network.RESET:
            _reset(client, server)
        for one in (client, server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if self.num_cuts is not None or self.cut_after_bytes is not None:
            with suppress(OSError):
                client.close()


def _reset(*ends: socket.socket) -> None:
    for one in ends:
        with suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            one.shutdown(socket.SHUT_RD)
        one.close()


@contextmanager
def running_proxy(target_port: int) -> Iterator[TcpProxy]:
    """A proxy in front of a port."""
    proxy = TcpProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
