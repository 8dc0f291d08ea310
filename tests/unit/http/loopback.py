"""Small ends of a real loopback connection for the tests: a raw client, and a scripted engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.server import Exchange, HttpServer

LIMITS = ServerLimits(
    header_timeout_s=0.5, body_timeout_s=0.5, keep_alive_s=0.4, linger_s=0.1, max_body_bytes=100_000
)


@asynccontextmanager
async def serving(
    handler: Callable[[Exchange], None], limits: ServerLimits = LIMITS
) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server on a free port."""
    server = HttpServer(handler, limits)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


@dataclass
class Client:
    """A raw connection: bytes out, bytes in."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self, timeout_s: float = 3.0) -> bytes:
        """All bytes until the peer closes."""
        async with asyncio.timeout(timeout_s):
            return await self.reader.read()

    async def until(self, mark: bytes, timeout_s: float = 3.0) -> bytes:
        async with asyncio.timeout(timeout_s):
            return await self.reader.readuntil(mark)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(script: Script) -> AsyncIterator[int]:
    """A server that runs `script` on each connection; yields its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(run, "127.0.0.1", 0, limit=2**20)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.sleep(0)


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
