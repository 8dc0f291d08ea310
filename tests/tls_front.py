"""TLS in front of a server that has none.

`integration/valkey/certificates/` holds a certificate for `localhost` (server.pem, with its key) and who
vouches for it (ca.pem), both for a hundred years and for tests alone.
"""

import select
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from tests.ports import free_port

_FILES = Path(__file__).parent / "integration/valkey/certificates"
CA, CERT, KEY_FILE = _FILES / "ca.pem", _FILES / "server.pem", _FILES / "server.key"


class TlsFront:
    """Takes TLS off connections to a server, with `asks` only from clients with a certificate."""

    def __init__(self, port: int, *, asks: bool = False) -> None:
        self.port = free_port()
        self._upstream = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERT, KEY_FILE)
        if asks:
            self._context.load_verify_locations(CA)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with (
            plain,
            suppress(OSError),
            self._context.wrap_socket(plain, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._upstream)) as upstream,
        ):
            while True:
                ready = [client] if client.pending() else select.select([client, upstream], [], [])[0]
                for source in ready:
                    if not (data := source.recv(65536)):
                        return
                    (upstream if source is client else client).sendall(data)
