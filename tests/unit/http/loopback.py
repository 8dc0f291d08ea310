"""Small ends of a real loopback connection for the tests: a raw client, a scripted engine, a pool that is
watched."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from manual_timers import ManualTimers
from tests.waiting import until, within

from anbar.adapters.http.limits import ServerLimits, UpstreamLimits
from anbar.adapters.http.server import Connection, Exchange, HttpServer
from anbar.adapters.http.upstream import Endpoint, UpstreamConnection, UpstreamPool

LIMITS = ServerLimits(
    header_timeout_s=60.0, body_timeout_s=60.0, keep_alive_s=60.0, linger_s=60.0, max_body_bytes=100_000
)
"""Times that no stall of the machine takes: what is to expire is made to by `ManualTimers`."""
UPSTREAM_LIMITS = UpstreamLimits(
    connect_timeout_s=60.0, first_byte_timeout_s=60.0, idle_timeout_s=90.0, keep_idle_s=70.0
)
"""The same for the client side."""


@asynccontextmanager
async def serving(
    handler: Callable[[Exchange], None], limits: ServerLimits = LIMITS, port: int = 0
) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server; on a port of the kernel's choice, for which nobody may look once the server has closed it."""
    server = HttpServer(handler, limits)
    port = await server.start("127.0.0.1", port)
    try:
        yield server, port
    finally:
        await server.stop()
        await until(lambda: not server.connections)


async def only(server: HttpServer) -> Connection:
    """The server's end of the one connection."""
    await until(lambda: server.connections)
    (connection,) = server.connections
    return connection


@dataclass
class Client:
    """A raw connection: bytes out, bytes in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """All bytes until the peer closes."""
        return await within(self.reader.read())

    async def until(self, mark: bytes) -> bytes:
        return await within(self.reader.readuntil(mark))


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that runs `script` on each connection; yields its port."""
    tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.create_task(run(reader, writer))] = writer

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**20, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task, writer in tasks.items():
            task.cancel()
            writer.transport.abort()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


class WatchedPool(UpstreamPool):
    """Knows its open connections; its timers may be another loop's."""

    def __init__(
        self,
        port: int,
        limits: UpstreamLimits = UPSTREAM_LIMITS,
        timers: ManualTimers | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(Endpoint("localhost" if tls else "127.0.0.1", port, tls=tls), limits)
        self.open: set[UpstreamConnection] = set()
        self._timers = timers

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._timers or super().loop  # type: ignore[return-value]

    async def _connect(self) -> UpstreamConnection:
        connection = await super()._connect()
        if connection.is_open:
            self.open.add(connection)
        return connection

    def forget(self, connection: UpstreamConnection) -> None:
        super().forget(connection)
        self.open.discard(connection)


class PoolOf(Protocol):
    """Makes a `WatchedPool`."""

    def __call__(
        self,
        port: int,
        limits: UpstreamLimits = UPSTREAM_LIMITS,
        timers: ManualTimers | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> WatchedPool: ...


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one request with a content-length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return head, await reader.readexactly(length)


def ok(body: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), extra, body)


def unsent(exchange: Exchange) -> int:
    """Bytes of answers that the client's connection holds."""
    transport = exchange._connection._transport
    assert transport is not None
    return transport.get_write_buffer_size()
