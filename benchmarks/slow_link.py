"""A TCP link on loopback whose answers are late and slow: a store far away, for benchmarks."""

import socket
import threading
import time
from contextlib import suppress

_PIECE = 65_536
_VALUE_BYTES = 4_096
"""A longer answer carries values, and is what the link delays: looking up stays quick."""


class SlowLink:
    """Forwards connections on `port` to `target`. Use in a `with`; delay and rate may be changed at any time.

    `delay_s`: how late the first value after a request comes; `bytes_per_s`: of values, over all connections.
    """

    def __init__(self, target: int) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = float("inf")
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._free_s = 0.0
        """When the link has sent what it was given."""

    def __enter__(self) -> "SlowLink":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(("127.0.0.1", self._target))
            asked = threading.Event()
            threading.Thread(target=self._ask, args=(client, server, asked), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client, asked), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_PIECE):
                asked.set()
                server.sendall(data)
        _end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, asked: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_PIECE):
                if len(data) > _VALUE_BYTES:
                    self._wait(len(data), is_first=asked.is_set())
                    asked.clear()
                client.sendall(data)
        _end(client, server)

    def _wait(self, num_bytes: int, *, is_first: bool) -> None:
        if is_first:
            time.sleep(self.delay_s)
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + num_bytes / self.bytes_per_s
            wait_s = self._free_s - time.monotonic()
        time.sleep(max(0.0, wait_s))


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
