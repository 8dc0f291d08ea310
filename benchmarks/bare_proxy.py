"""The floor: a proxy of asyncio protocols that does nothing but read the model's name and pass bytes on.

No limits, no timeouts, no retries, no metrics, nothing learned: what any proxy in Python pays.
"""

import asyncio
import itertools
import sys
from typing import cast

import httptools
import msgspec
import uvloop


class _Named(msgspec.Struct):
    model: str


_decode = msgspec.json.Decoder(_Named).decode


class Up(asyncio.Protocol):
    """A connection to an engine."""

    def __init__(self, pool: "list[Up]") -> None:
        self._pool = pool
        self._down: Down | None = None
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def start(self, down: "Down", data: bytes) -> None:
        self._down = down
        self._over = False
        self._parser = httptools.HttpResponseParser(self)
        self.transport.write(data)

    def on_message_complete(self) -> None:
        self._over = True

    def data_received(self, data: bytes) -> None:
        down = self._down
        assert down is not None, "an engine speaks when it is asked"
        self._parser.feed_data(data)
        down.transport.write(data)
        if self._over:
            down.up = self._down = None
            self._pool.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._down is not None:
            self._down.transport.close()
        elif self in self._pool:
            self._pool.remove(self)


class Down(asyncio.Protocol):
    """A connection from a client."""

    def __init__(self, proxy: "Proxy") -> None:
        self._proxy = proxy
        self.up: Up | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._clear()

    def _clear(self) -> None:
        self._target = b""
        self._headers: list[bytes] = []
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        _decode(body)
        head = b"%b %b HTTP/1.1\r\n" % (self._parser.get_method(), self._target)
        self._proxy.forward(self, b"%b%b\r\n%b" % (head, b"".join(self._headers), body))
        self._clear()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.up is not None:
            self.up.transport.close()

    def pause_writing(self) -> None:
        if self.up is not None:
            self.up.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.up is not None:
            self.up.transport.resume_reading()


class Proxy:
    """Engines in turn."""

    def __init__(self, ports: list[int]) -> None:
        self._pools: dict[int, list[Up]] = {port: [] for port in ports}
        self._turns = itertools.cycle(ports)
        self._connecting: set[asyncio.Task[None]] = set()

    def forward(self, down: Down, data: bytes) -> None:
        port = next(self._turns)
        if self._pools[port]:
            down.up = self._pools[port].pop()
            down.up.start(down, data)
        else:
            task = asyncio.get_running_loop().create_task(self._connect(port, down, data))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, port: int, down: Down, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, down.up = await loop.create_connection(lambda: Up(self._pools[port]), "127.0.0.1", port)
        down.up.start(down, data)


async def _serve(port: int, engines: list[int]) -> None:
    proxy = Proxy(engines)
    server = await asyncio.get_running_loop().create_server(lambda: Down(proxy), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
