"""A TCP proxy in front of a server, whose replies it can hold back, cut off or let through in drops."""

import socket
import threading
import time
from contextlib import suppress

from tests.ports import free_port
from tests.waiting import PATIENCE_S

DROP_BYTES = 512
DROP_S = 0.02


class Proxy:
    """Set `budget` to how many bytes of replies still pass; then `is_spent` is set and the rest waits for
    `release`, or, with `cuts`, the connection is closed. With `drips` replies pass in drops."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.budget: int | None = None
        self.cuts = False
        self.drips = False
        self.is_spent = threading.Event()
        self.release = threading.Event()
        self.num_closed = 0
        """Connections whose client has gone."""
        self._upstream = port
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End every connection."""
        self.release.set()
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                try:
                    server = socket.create_connection(("127.0.0.1", self._upstream), timeout=PATIENCE_S)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)
                self._sockets.append(server)
                threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self._replies, args=(server, client), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        self.num_closed += 1
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _replies(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(DROP_BYTES if self.drips else 65536):
                with self._lock:
                    passing = len(data) if self.budget is None else min(self.budget, len(data))
                    if self.budget is not None:
                        self.budget -= passing
                client.sendall(data[:passing])
                if passing < len(data):
                    self.is_spent.set()
                    if self.cuts:
                        break
                    self.release.wait(PATIENCE_S)
                    client.sendall(data[passing:])
                if self.drips:
                    time.sleep(DROP_S)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
