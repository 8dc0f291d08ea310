"""A TCP proxy on loopback that fails as networks do: it holds answers back, cuts them, or resets.

Threads, so that a test of a blocking client needs no event loop.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 65536
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 s: closing sends RST and drops what was not sent."""


class TcpProxy:
    """Set the attributes at any time; they hold for what comes next.

    `cut_after_bytes`: an answer's connection is reset after so many bytes of it; `num_cuts` bounds how often
    (None: always). `gate`: bytes of answers wait until it is set; `held` tells that some do.
    """

    def __init__(self, target_port: int) -> None:
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

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK_BYTES):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        num_bytes = 0
        with suppress(OSError):
            while data := server.recv(_CHUNK_BYTES):
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
        for one in (client, server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if self.num_cuts is not None or self.cut_after_bytes is not None:
            with suppress(OSError):
                client.close()


@contextmanager
def running_proxy(target_port: int) -> Iterator[TcpProxy]:
    """A proxy in front of a port."""
    proxy = TcpProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
