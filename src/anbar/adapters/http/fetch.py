"""A small request of our own to an engine, answered in full: probes, its models, its tokenizer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from anbar.adapters.http.message import Header, render_headers
from anbar.adapters.http.upstream import Reply, UpstreamPool
from anbar.core.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable

MAX_BYTES = 64 * 1024**2
"""Longest answer that is read: /metrics has some 100 KiB, the tokens of a long prompt a few MiB."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete answer."""

    status: int
    body: bytes


class _Collector:
    def __init__(self, done: "asyncio.Future[bytes]") -> None:
        self._done = done
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def body(self, data: bytes) -> None:
        self._parts.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > MAX_BYTES:
            self.broke(UpstreamBroken(f"the engine's answer is longer than {MAX_BYTES} bytes"))

    def ended(self) -> None:
        if not self._done.done():
            self._done.set_result(b"".join(self._parts))

    def broke(self, error: UpstreamBroken) -> None:
        if not self._done.done():
            self._done.set_exception(error)


async def fetch(
    pool: UpstreamPool,
    path: str,
    *,
    headers: Sequence[Header] = (),
    body: bytes = b"",
    timeout_s: float,
) -> Fetched:
    """GET `path`, or POST `body` to it as JSON; at most `timeout_s` for everything. Raises UpstreamError."""
    lines: list[Header] = [(b"host", pool.endpoint.host_header), *headers]
    if body:
        lines += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    target = pool.endpoint.prefix + path.encode()
    head = b"%b %b HTTP/1.1\r\n%b\r\n" % (b"POST" if body else b"GET", target, render_headers(lines))
    try:
        async with asyncio.timeout(timeout_s):
            return await _fetch(pool, head, body, timeout_s)
    except TimeoutError:
        raise UpstreamTimeout(f"{path} was not answered within {timeout_s:g} s") from None
    except UpstreamBroken as error:
        raise UpstreamUnreachable(f"{path}: {error}") from error
    except UpstreamError as error:
        raise type(error)(f"{path}: {error}") from error


async def _fetch(pool: UpstreamPool, head: bytes, body: bytes, timeout_s: float) -> Fetched:
    reply = await pool.ask(head, body, timeout_s)
    try:
        return Fetched(reply.status, await whole_body(reply))
    finally:
        reply.close()


async def whole_body(reply: Reply) -> bytes:
    """The body of an answer, which nobody reads besides. Raises UpstreamError when it breaks off."""
    done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    reply.pump(_Collector(done))
    return await done
