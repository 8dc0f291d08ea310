"""The fake's HTTP/1.1 server: httptools on asyncio protocols, with the rough handling that faults need.

A connection's requests are answered in order, by one task; when the client goes away the task is cancelled,
which is how the engine learns of it.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

Header = tuple[bytes, bytes]


@dataclass(slots=True)
class HttpRequest:
    """One request as it arrived: header names as sent, the body undecoded."""

    method: str
    target: str
    headers: list[Header]
    body: bytes = b""
    keep_alive: bool = True

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        wanted = name.lower().encode()
        return next((v.decode("latin-1") for k, v in self.headers if k.lower() == wanted), None)


Handler = Callable[[HttpRequest, "Exchange"], Awaitable[None]]

_REASONS = {status.value: status.phrase for status in HTTPStatus}


def _head(status: int, headers: Sequence[Header]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}".encode()]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


class Exchange:
    """The answer to one request; `drip_bytes` above 0 sends it in pieces of that size, `drip_s` apart."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.drip_bytes = 0
        self.drip_s = 0.0
        self.started = False
        self.extra: list[Header] = []
        """Headers added to whatever is answered (x-request-id)."""

    async def respond(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """A whole answer with a content-length."""
        self.started = True
        length = (b"content-length", str(len(body)).encode())
        await self._write(_head(status, [*headers, length, *self.extra]) + body)

    async def respond_part(self, status: int, headers: Sequence[Header], body: bytes, num_sent: int) -> None:
        """The head of a whole answer and the first `num_sent` bytes of its body."""
        self.started = True
        length = (b"content-length", str(len(body)).encode())
        await self._write(_head(status, [*headers, length, *self.extra]) + body[:num_sent])

    async def send_rest(self, data: bytes) -> None:
        """More of a body that `respond_part` began."""
        await self._write(data)

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Begin a chunked answer."""
        self.started = True
        await self._write(_head(status, [*headers, (b"transfer-encoding", b"chunked"), *self.extra]))

    async def send(self, data: bytes) -> None:
        """One chunk; waits while the client does not read."""
        await self._write(b"%x\r\n" % len(data) + data + b"\r\n")

    async def finish(self) -> None:
        """End a chunked answer."""
        await self._write(b"0\r\n\r\n")

    async def send_part(self, data: bytes) -> None:
        """A chunk's size line and only half of its data."""
        await self._write(b"%x\r\n" % len(data) + data[: len(data) // 2])

    def close(self) -> None:
        """Close the connection after what was written."""
        self._connection.close()

    def reset(self) -> None:
        """Reset the connection: the client's next read fails."""
        self._connection.reset()

    async def _write(self, data: bytes) -> None:
        if not self.drip_bytes:
            await self._connection.write(data)
            return
        for start in range(0, len(data), self.drip_bytes):
            await self._connection.write(data[start : start + self.drip_bytes])
            await asyncio.sleep(self.drip_s)


@dataclass(slots=True)
class _Partial:
    headers: list[Header] = field(default_factory=list)
    body: list[bytes] = field(default_factory=list)
    target: bytes = b""


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, handler: Handler, connections: set["Connection"]) -> None:
        self._handler = handler
        self._connections = connections
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpRequestParser(self)
        self._partial = _Partial()
        self._queue: deque[HttpRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse()

    def on_url(self, url: bytes) -> None:
        self._partial.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._partial.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if any(k.lower() == b"expect" for k, _ in self._partial.headers) and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._partial.body.append(body)

    def on_message_complete(self) -> None:
        partial, self._partial = self._partial, _Partial()
        self._queue.append(
            HttpRequest(
                self._parser.get_method().decode(),
                partial.target.decode("latin-1"),
                partial.headers,
                b"".join(partial.body),
                self._parser.should_keep_alive(),
            )
        )
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self.closed.set_result(None)
        self._transport = None
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
        if self._writable is not None:
            self._writable.cancel()

    async def write(self, data: bytes) -> None:
        """Write and wait while the client does not read; CancelledError when it is gone."""
        if self._transport is None or self._transport.is_closing():
            raise asyncio.CancelledError
        self._transport.write(data)
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        """Flush and close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once, unsent data lost."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        """Close with a TCP reset."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def _serve(self) -> None:
        try:
            while self._queue:
                request = self._queue.popleft()
                await self._handler(request, Exchange(self))
                if not request.keep_alive:
                    self.close()
        except BaseException:
            self.abort()
            raise
        finally:
            self._task = None

    def _refuse(self) -> None:
        if self._transport is not None:
            body = b"Invalid HTTP request received."
            self._transport.write(
                _head(
                    400,
                    [
                        (b"content-type", b"text/plain; charset=utf-8"),
                        (b"content-length", str(len(body)).encode()),
                        (b"connection", b"close"),
                    ],
                )
                + body
            )
            self._transport.close()


class HttpServer:
    """A listener that can vanish, with everything it had accepted, and come back on the same port."""

    def __init__(self, handler: Handler, host: str, port: int) -> None:
        self._handler = handler
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    async def open(self) -> None:
        """Listen; port 0 picks one, which is kept for later."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handler, self._connections), self._host, self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def vanish(self) -> None:
        """Close the listener and drop every connection, as a killed process does."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in self._connections))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1.0)
