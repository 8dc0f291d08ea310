"""One connection to one server. The library connects, secures and logs in; requests and replies are ours,
since it would copy each value several times (docs/decisions/016)."""

import select
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NewType

import valkey
from valkey.connection import Connection, SSLConnection

from anbar.adapters.store.valkey.replies import Filled, OtherLength, ProtocolError, Reply, ReplyReader
from anbar.adapters.store.valkey.waits import send
from anbar.core.errors import ConfigError

Node = NewType("Node", str)
"""`host:port` of a server; an IPv6 address stands in brackets."""

Argument = bytes | memoryview | tuple[bytes | memoryview, ...]
"""Some bytes, or several that are sent as one argument."""

Request = tuple[Argument, ...]
"""A command and its arguments."""


class Refused(Exception):
    """A server that answers, but not us: wrong password, wrong protocol, no TLS or TLS. It will not mend
    by itself."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How to know the server, and to be known by it."""

    ca_file: Path | None = None
    """Certificates of who may vouch for the server, in PEM. None: whom the system trusts."""
    cert_file: Path | None = None
    key_file: Path | None = None
    verify_host: bool = True
    """Whether the certificate must name the host. Some managed clusters name their nodes by addresses that
    their certificates do not hold."""

    def check(self) -> None:
        """Raises Refused when a file cannot be used."""
        try:
            context = ssl.create_default_context()
            if self.ca_file is not None:
                context.load_verify_locations(self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(str(file) for file in (self.ca_file, self.cert_file, self.key_file) if file)
            raise Refused(f"TLS: {files}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Login:
    """How to connect to any node of a store."""

    username: str | None = None
    password: Callable[[], str | None] = lambda: None
    """Asked for each connection, so that a password in a file may change. Raises ConfigError."""
    db: int = 0
    tls: Tls | None = None
    connect_timeout_s: float = 1.0
    """For connecting, and for each answer while logging in. Seconds."""


def parse_node(node: Node) -> tuple[str, int]:
    """Host, without brackets, and port."""
    host, _, port = node.rpartition(":")
    return host.strip("[]"), int(port) if port.isdigit() else 0


def make_node(host: str, port: int) -> Node:
    """The other way round."""
    return Node(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


class Wire:
    """Owned by one thread at a time; only `abort` may be called by another.

    Every operation ends at its deadline (`time.monotonic`) in a TimeoutError, and in another OSError when the
    connection is lost. Then, and after a ProtocolError, the wire must be closed.
    """

    def __init__(self, connection: Connection, reader: ReplyReader) -> None:
        self._connection = connection
        self._reader = reader
        self._sock: socket.socket = connection._sock

    def send(self, requests: Iterable[Request], deadline_s: float) -> None:
        """Send requests; large arguments go from where they lie."""
        for piece in pieces(requests):
            send(self._sock, piece, deadline_s)

    def reply(self, deadline_s: float) -> Reply:
        """The reply to the next request that has not got one."""
        self._reader.deadline_s = deadline_s
        return self._reader.reply()

    def value(self, parts: Sequence[memoryview], filled: Filled, deadline_s: float) -> Reply | OtherLength:
        """As `reply`, to a GET, into the caller's memory; see `ReplyReader.value`."""
        self._reader.deadline_s = deadline_s
        return self._reader.value(parts, filled)

    def call(self, *request: bytes, deadline_s: float) -> Reply:
        """Send one request and wait for its reply."""
        self.send([request], deadline_s)
        return self.reply(deadline_s)

    def fileno(self) -> int:
        """For `select`; readable also when the connection has ended. See `has_more`."""
        return self._sock.fileno()

    @property
    def has_more(self) -> bool:
        """Whether something was read that `select` does not know of any more."""
        pending = self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) else 0
        return self._reader.num_unread > 0 or pending > 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for; an ended connection is not quiet either."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return not self.has_more and not poll.poll(0)

    def abort(self) -> None:
        """End what runs on this wire, from any thread."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Shut the socket down: nothing is read or written any more. Idempotent."""
        self._connection.disconnect()


def dial(node: Node, login: Login) -> Wire:
    """Connect and log in. Raises OSError (TimeoutError included) when the server cannot be reached, Refused
    when it will not have us."""
    try:
        connection = _connection(node, login)
        reader: ReplyReader = connection._parser
        reader.deadline_s = time.monotonic() + 3 * login.connect_timeout_s
        connection.connect()
    except ConfigError as error:
        raise Refused(str(error)) from error
    except ProtocolError as error:
        raise Refused(f"what answers there does not speak the protocol: {error}") from error
    except valkey.TimeoutError as error:
        raise TimeoutError(f"no answer while connecting{', with TLS' if login.tls else ''}") from error
    except valkey.ConnectionError as error:
        if isinstance(error.__context__, ssl.SSLError) and not isinstance(error.__context__, _CUT_OFF):
            raise Refused(f"TLS: {error.__context__.reason or error.__context__}") from error
        raise ConnectionError(str(error)) from error
    except (valkey.ValkeyError, ssl.SSLError) as error:
        raise Refused(str(error)) from error
    return Wire(connection, reader)


def pieces(requests: Iterable[Request]) -> Iterable[bytes | memoryview]:
    """Requests as what is to be sent in turn: short things joined, large ones as they are."""
    short: list[bytes | memoryview] = []
    for request in requests:
        short.append(b"*%d\r\n" % len(request))
        for argument in request:
            parts = argument if isinstance(argument, tuple) else (argument,)
            short.append(b"$%d\r\n" % sum(map(len, parts)))
            for part in parts:
                if len(part) > _LARGE_BYTES:
                    yield b"".join(short)
                    yield part
                    short = []
                else:
                    short.append(part)
            short.append(b"\r\n")
    yield b"".join(short)


_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""A connection that ended while it was being secured says nothing of the settings."""

_LARGE_BYTES = 16 * 1024
"""What copying costs as much as another call of the kernel."""


def _connection(node: Node, login: Login) -> Connection:
    host, port = parse_node(node)
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": login.db,
        "username": login.username,
        "password": login.password(),
        "lib_name": None,
        "lib_version": None,
        "socket_timeout": login.connect_timeout_s,
        "socket_connect_timeout": login.connect_timeout_s,
        "socket_keepalive": True,
        "parser_class": ReplyReader,
    }
    if login.tls is None:
        return Connection(**options)
    return SSLConnection(
        **options,
        ssl_ca_certs=login.tls.ca_file,
        ssl_certfile=login.tls.cert_file,
        ssl_keyfile=login.tls.key_file,
        ssl_check_hostname=login.tls.verify_host,
    )
