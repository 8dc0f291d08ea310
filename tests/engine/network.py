"""A network between a client and a server on this machine that can be made to fail while both run."""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from tests.waiting import PATIENCE_S

_PIECE = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Network(Enum):
    """What becomes of bytes."""

    WORKS = "works"
    LOST = "lost"
    """Connections are made and stay, and nothing arrives on either side."""
    RESET = "reset"
    """Each connection is reset at its next byte, new ones included."""


class NetworkProxy:
    """Forwards connections on `port` to `target`. Use in a `with`; `network` may be changed at any time, and
    applies to connections that are open, too. What was lost never arrives later."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.network = Network.WORKS
        self.cut_after: int | None = None
        """Bytes that the server may send from now on, over all connections, before the network is RESET."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> "NetworkProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _reset(connection)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target), PATIENCE_S)
        except OSError:
            _reset(client)
            return
        server.settimeout(None)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=self._carry, args=(server, client, self._counted), daemon=True)
        back.start()
        self._carry(client, server, lambda data: data)
        back.join()
        with self._lock:
            self._open -= {client, server}

    def _counted(self, data: bytes) -> bytes:
        if self.cut_after is None:
            return data
        passed = data[: self.cut_after]
        self.cut_after -= len(passed)
        if len(passed) < len(data):
            self.cut_after, self.network = None, Network.RESET
        return passed

    def _carry(self, source: socket.socket, sink: socket.socket, counted: Callable[[bytes], bytes]) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                if self.network is Network.WORKS:
                    sink.sendall(counted(data))
                if self.network is Network.RESET:
                    break
        for end in (source, sink):
            _reset(end) if self.network is Network.RESET else _shut(end)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _reset(end: socket.socket) -> None:
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        end.shutdown(socket.SHUT_RD)
    end.close()
