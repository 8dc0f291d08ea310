"""Listening for other routers, and dialling them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from anbar.adapters.peers.channel import HANDSHAKE_S, Channel
from anbar.core.errors import WireError

MAX_CONNECTIONS = 256
"""From others, at a time. More are closed unheard."""


@dataclass(frozen=True, slots=True)
class Local:
    """A router on this machine: its Unix socket."""

    path: Path


@dataclass(frozen=True, slots=True)
class Remote:
    """A router at an address of the network. `secret` is what both sides have to know."""

    host: str
    port: int
    secret: bytes = field(repr=False)


Address = Local | Remote
LOST = (OSError, EOFError, WireError, TimeoutError)
"""What ends a connection, all of it expected."""


@asynccontextmanager
async def dialled(address: Address) -> AsyncIterator[Channel]:
    """A connection to another router. Raises one of `LOST`."""
    async with asyncio.timeout(HANDSHAKE_S):
        if isinstance(address, Local):
            streams = await asyncio.open_unix_connection(str(address.path))
        else:
            streams = await asyncio.open_connection(address.host, address.port)
    channel = Channel(*streams)
    try:
        if isinstance(address, Remote):
            _no_delay(streams[1])
            async with asyncio.timeout(HANDSHAKE_S):
                await channel.prove_as_client(address.secret)
        yield channel
    finally:
        channel.cut()


class Listener:
    """Takes connections, each of which `serve` has until it returns or raises one of `LOST`."""

    def __init__(self, serve: Callable[[Channel], Awaitable[None]]) -> None:
        self._serve = serve
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: Address) -> None:
        """Listen there too. Raises OSError."""
        if isinstance(address, Local):
            address.path.unlink(missing_ok=True)

            def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self._take(Channel(reader, writer), None)

            self._servers.append(await asyncio.start_unix_server(taken, str(address.path)))
            return
        secret = address.secret

        def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            _no_delay(writer)
            self._take(Channel(reader, writer), secret)

        self._servers.append(await asyncio.start_server(came, address.host, address.port))

    def _take(self, channel: Channel, secret: bytes | None) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS:
            channel.cut()
            return
        task = asyncio.get_running_loop().create_task(self._run(channel, secret))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, channel: Channel, secret: bytes | None) -> None:
        try:
            with suppress(*LOST):
                if secret is not None:
                    async with asyncio.timeout(HANDSHAKE_S):
                        await channel.prove_as_server(secret)
                await self._serve(channel)
                await channel.drained()
        finally:
            channel.close()

    async def stop(self) -> None:
        """Take no more connections, and end those there are."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close with the next turn of the loop


def _no_delay(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
