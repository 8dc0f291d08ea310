"""What black-box tests of the router need: a raw HTTP client, a router process, engines around it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.waiting import PATIENCE_S

MODEL = "fake-model"


@dataclass
class Answer:
    """One HTTP answer as the client read it; `body` has no chunk framing."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def engine(self) -> str:
        return self.headers["x-anbar-engine"]

    @property
    def predicted(self) -> int:
        return int(self.headers["x-anbar-cached-tokens-predicted"])

    @property
    def cached(self) -> int:
        return self.json["usage"]["prompt_tokens_details"]["cached_tokens"]


class Raw:
    """An HTTP/1.1 client that hides nothing: exact bytes out, exact bytes in."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int, limit: int = 2**16) -> AsyncIterator["Raw"]:
        raw = cls(*await asyncio.open_connection("127.0.0.1", port, limit=limit))
        try:
            yield raw
        finally:
            await raw.close()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a POST; `body` is bytes or goes as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(data))}
        head = "".join(f"{k}: {v}\r\n" for k, v in (lines | dict(headers or {})).items())
        self.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; b"" at its end."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            return b"".join(parts)
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        return await self.reader.read()

    async def answer(self) -> Answer:
        status, headers = await self.head()
        return Answer(status, headers, await self.body(headers))

    async def read_all(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), PATIENCE_S)

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def abort(self) -> None:
        self._writer.transport.abort()
        await self.close()


async def call(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own."""
    async with Raw.open(port) as raw:
        if method == "POST":
            raw.post(path, body, headers)
        else:
            lines = "".join(f"{k}: {v}\r\n" for k, v in (headers or {}).items())
            raw.write(f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}\r\n".encode())
        return await asyncio.wait_for(raw.answer(), PATIENCE_S)


async def eventually(holds: Callable[[], object], timeout_s: float = PATIENCE_S, what: str = "") -> None:
    """Wait until `holds()` (which may be a coroutine function) is true."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        result = holds()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert asyncio.get_running_loop().time() < end_s, f"not within {timeout_s} s: {what or holds}"
        await asyncio.sleep(0.02)
