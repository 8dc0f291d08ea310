"""The client side: pooled keep-alive connections to one engine.

`UpstreamPool.ask` returns when the first byte of the answer's body is there (or its end), because until then
nothing was promised to a client and another engine may be tried. vLLM sends a stream's head at once and its
first token only after the prefill, so waiting for the head alone would be too early.
"""

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import httptools

from anbar.adapters.http.chunks import ends_with_chunk, whole_chunk
from anbar.adapters.http.deadline import Deadline
from anbar.adapters.http.known_head import KnownHead, head_of
from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.message import Header
from anbar.core.errors import (
    UpstreamBroken,
    UpstreamError,
    UpstreamStalled,
    UpstreamTimeout,
    UpstreamUnreachable,
)

SMALL_BODY_BYTES = 16 * 1024
"""Up to here copying a body behind its head is cheaper than sending two buffers."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine listens. `prefix` comes before every path; `tls` is None for plain HTTP."""

    host: str
    port: int
    prefix: bytes = b""
    tls: ssl.SSLContext | None = None
    host_header: bytes = field(init=False)

    def __post_init__(self) -> None:
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "host_header", f"{host}:{self.port}".encode())


def parse_endpoint(url: str) -> Endpoint:
    """The endpoint of `http(s)://host[:port][/prefix]`; ValueError when it is not one."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not of the form http(s)://host[:port][/prefix]")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    return Endpoint(parts.hostname, port, parts.path.rstrip("/").encode(), tls)


class BodySink(Protocol):
    """Where an answer's body goes, called synchronously as it arrives."""

    def body(self, data: bytes) -> None: ...

    def ended(self) -> None:
        """The body is complete."""
        ...

    def broke(self, error: UpstreamBroken) -> None:
        """The body will never be complete. Not called when this side closed the answer."""
        ...


TakeChunk = Callable[[bytes, bytes], None]
"""Takes a whole chunk of a body in place of `BodySink.body`: what it carries, and as it came in its frame."""


class StaleConnection(UpstreamUnreachable):
    """A kept connection was closed by the engine before any byte of an answer."""


class ConnectFailed(UpstreamUnreachable):
    """There was no connection: the engine never had the request."""


class NoDescriptor(UpstreamError):
    """This process may open no more connections; no fault of the engine's, which never had the request."""


class AnswerHead(NamedTuple):
    """What an engine's answer begins with; of its headers the length of the body is left out, so that many
    answers have the same."""

    status: int
    headers: tuple[Header, ...]
    content_type: bytes


class Reply:
    """An answer whose body has begun. Give it a sink with `pump`; `close` it in every case.

    Closing before the body's end closes the connection, which makes the engine abort the request.
    """

    def __init__(self, connection: "UpstreamConnection", head: AnswerHead, length: int | None) -> None:
        self.status = head.status
        self.headers = head.headers
        self.content_type = head.content_type
        self.length = length
        self.complete = False
        self.take_chunk: TakeChunk | None = None
        """What takes chunks that come one by one, where somebody has a use for their frames."""
        self._connection = connection
        self._sink: BodySink | None = None
        self._held: list[bytes] = []
        self._error: UpstreamBroken | None = None

    def pump(self, sink: BodySink, take_chunk: TakeChunk | None = None) -> None:
        """Hand over what has arrived and from now on everything as it arrives."""
        self._sink = sink
        self.take_chunk = take_chunk
        held, self._held = self._held, []
        for data in held:
            sink.body(data)
        if self.complete:
            sink.ended()
        elif self._error is not None:
            sink.broke(self._error)

    def pause(self) -> None:
        """Do not read from the engine until `resume`."""
        if not self.complete:
            self._connection.pause()

    def resume(self) -> None:
        if not self.complete:
            self._connection.resume()

    def close(self) -> None:
        """Give up what is left of the answer."""
        self._sink = self.take_chunk = None
        if not self.complete:
            self._connection.abandon()

    # What the connection says

    def received(self, data: bytes) -> None:
        if self._sink is None:
            self._held.append(data)
        else:
            self._sink.body(data)

    def completed(self) -> None:
        self.complete = True
        if self._sink is not None:
            self._sink.ended()

    def failed(self, error: UpstreamBroken) -> None:
        self._error = error
        if self._sink is not None:
            self._sink.broke(error)


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine; serves one request at a time."""

    def __init__(self, pool: "UpstreamPool") -> None:
        self._pool = pool
        self._limits = pool.limits
        self._transport: asyncio.Transport | None = None
        self._deadline: Deadline
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Reply] | None = None
        self._reply: Reply | None = None
        self._parts: list[bytes] = []
        self._headers: list[Header] = []
        self._header_bytes = 0
        self._head = AnswerHead(0, (), b"")
        self._length: int | None = None
        self._is_chunked = False
        self._heard = False
        self._answering = False
        self._message_over = False
        self._between_chunks = False
        """The parser has read to the end of a chunk, and nothing of what follows it."""
        self._until_close = False
        self._keeps_alive = False
        self._reused = False
        self._paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, head: bytes, body: bytes, first_byte_timeout_s: float) -> Reply:
        """Send a request; returns when the answer's body has begun or ended."""
        if self._transport is None:
            raise self._no_answer("closed")
        waiter: asyncio.Future[Reply] = self._pool.loop.create_future()
        self._waiter = waiter
        self._heard = self._answering = self._message_over = self._between_chunks = False
        self._deadline.set(first_byte_timeout_s)
        if len(body) <= SMALL_BODY_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._belongs_to(waiter):
                self.abandon()
            raise

    def _belongs_to(self, waiter: "asyncio.Future[Reply]") -> bool:
        """Whether the connection still serves the request of `waiter`: with its answer complete it may serve
        another one already."""
        if self._waiter is waiter:
            return True
        answered = waiter.done() and not waiter.cancelled() and waiter.exception() is None
        return answered and waiter.result() is self._reply

    def pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._deadline.clear()
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused:
            self._paused = False
            self._deadline.set(self._limits.idle_timeout_s)
            self._transport.resume_reading()

    def abandon(self) -> None:
        """Close at once and tell nobody."""
        self._waiter = self._reply = None
        if self._transport is not None:
            self._transport.abort()

    def begin_idle(self) -> None:
        self._reused = True
        self._deadline.set(self._limits.keep_idle_s)

    # Transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's interface, but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._deadline = Deadline(self._pool.loop, self._expired)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._deadline.close()
        self._pool.forget(self)
        if self._until_close and exc is None and self._reply is not None:
            self._complete(self._reply)
            return
        self._fail(f"closed the connection ({type(exc).__name__})" if exc else "closed the connection")

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            if self._waiter is None:
                self.abandon()
                return
            if not self._heard and self._is_known(data):
                return
        elif self._between_chunks and not self._paused and reply.take_chunk is not None:
            # The parser need not see it: it stands where it stood before.
            chunk = whole_chunk(data)
            if chunk:
                self._deadline.put_off(self._limits.idle_timeout_s)
                reply.take_chunk(chunk, data)
                return
        is_first, self._heard = not self._heard, True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._message_over:
                self._break("did not answer in HTTP/1.1")
                return
            self._keeps_alive = False
        self._between_chunks = not self._message_over and ends_with_chunk(data, self._parts)
        if is_first and self._message_over and self._keeps_alive and self._length and not self._is_chunked:
            self._pool.answered(self._head, data, self._length)
        if self._answering:
            self._deliver()

    def _is_known(self, data: bytes) -> bool:
        """Take in `data` if it is one whole answer with a known head. The parser, which is between two
        answers, need not see it."""
        known = self._pool.known
        body = known[1].body(data) if known is not None else None
        if known is None or body is None:
            return False
        self._heard = self._answering = self._message_over = self._keeps_alive = True
        self._head, self._length, self._is_chunked = known[0], len(body), False
        self._parts = [body]
        self._deliver()
        return True

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._message_over:
            raise UpstreamBroken("more bytes than the answer has")
        self._headers = []
        self._header_bytes = 0
        self._length, self._is_chunked = None, False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._limits.max_header_bytes:
            raise UpstreamBroken("headers too long")
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
            return
        self._is_chunked = self._is_chunked or name == b"transfer-encoding"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        content_type = dict(self._headers).get(b"content-type", b"")
        self._head = AnswerHead(self._parser.get_status_code(), tuple(self._headers), content_type)
        self._answering = self._head.status >= 200
        # Asked here: once the message is over the parser has forgotten how it was framed.
        self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._message_over = self._answering

    # Decisions

    def _deliver(self) -> None:
        parts, self._parts = self._parts, []
        if not parts and not self._message_over:
            return
        reply = self._reply or self._begin_reply()
        if reply is None:
            return
        if not self._message_over and not self._paused:
            self._deadline.set(self._limits.idle_timeout_s)
        if parts:
            reply.received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._message_over and self._reply is reply:
            self._complete(reply)

    def _begin_reply(self) -> Reply | None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            self.abandon()
            return None
        reply = self._reply = Reply(self, self._head, self._length)
        self._until_close = self._length is None and not self._is_chunked and reply.status not in (204, 304)
        waiter.set_result(reply)
        return reply

    def _complete(self, reply: Reply) -> None:
        self._reply = None
        transport = self._transport
        if transport is not None:
            reusable = not self._until_close and self._keeps_alive and transport.get_write_buffer_size() == 0
            if self._paused:
                self.resume()
            if reusable and self.is_open:
                self._pool.keep(self)
            else:
                transport.abort()
        reply.completed()

    def _expired(self) -> None:
        if self._reply is not None:
            self._break(f"sent nothing for {self._limits.idle_timeout_s:g} s", timed_out=True)
        elif self._waiter is not None:
            self._break("sent no byte of an answer in time", timed_out=True)
        else:
            self.abandon()

    def _break(self, what: str, timed_out: bool = False) -> None:
        self._fail(what, timed_out)
        self.abandon()

    def _fail(self, what: str, timed_out: bool = False) -> None:
        waiter, self._waiter = self._waiter, None
        reply, self._reply = self._reply, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(self._no_answer(what, timed_out))
        if reply is not None:
            kind = UpstreamStalled if timed_out else UpstreamBroken
            reply.failed(kind(f"the engine {what} in the middle of its answer"))

    def _no_answer(self, what: str, timed_out: bool = False) -> UpstreamError:
        if timed_out:
            return UpstreamTimeout(f"the engine {what}")
        if self._reused and not self._heard:
            return StaleConnection(f"the engine {what}")
        return UpstreamUnreachable(f"the engine {what} before it answered")


class UpstreamPool:
    """The connections to one engine. Use within one event loop."""

    def __init__(self, endpoint: Endpoint, limits: UpstreamLimits) -> None:
        self.endpoint = endpoint
        self.limits = limits
        self.num_stale = 0
        self.known: tuple[AnswerHead, KnownHead] | None = None
        """The head of the last whole answer that had the same as the one before."""
        self._last_head: AnswerHead | None = None
        self._idle: deque[UpstreamConnection] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    async def ask(self, head: bytes, body: bytes, first_byte_timeout_s: float | None = None) -> Reply:
        """Send a rendered request; returns when the answer's body has begun or ended.

        Raises UpstreamUnreachable or UpstreamTimeout when there is no answer. A kept connection that the
        engine had closed already is replaced once by a fresh one: not a byte of an answer had come on it.
        Where that one cannot be made, the engine may have died of the request: no ConnectFailed then.
        """
        limit_s = self.limits.first_byte_timeout_s if first_byte_timeout_s is None else first_byte_timeout_s
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_open:
                continue
            try:
                return await connection.ask(head, body, limit_s)
            except StaleConnection:
                self.num_stale += 1
                return await self._ask_again(head, body, limit_s)
        connection = await self._connect()
        return await connection.ask(head, body, limit_s)

    async def _ask_again(self, head: bytes, body: bytes, limit_s: float) -> Reply:
        try:
            connection = await self._connect()
        except ConnectFailed as error:
            raise UpstreamUnreachable(f"the engine closed its connection; then {error}") from error
        return await connection.ask(head, body, limit_s)

    def answered(self, head: AnswerHead, data: bytes, num_body_bytes: int) -> None:
        """`data` is a whole answer with this head. One that comes twice may come often, also one that has the
        time in it; what has a name for each answer does not."""
        if head == self._last_head:
            known = head_of(data, num_body_bytes)
            self.known = (head, known) if known is not None else None
        self._last_head = head

    def keep(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose answer is complete."""
        connection.begin_idle()
        self._idle.append(connection)
        if len(self._idle) > self.limits.max_idle:
            self._idle.popleft().abandon()

    def forget(self, connection: UpstreamConnection) -> None:
        """The connection was closed."""
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close the unused connections; those in use are closed by their replies."""
        while self._idle:
            self._idle.pop().abandon()

    async def _connect(self) -> UpstreamConnection:
        end = self.endpoint
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                _, connection = await self.loop.create_connection(
                    lambda: UpstreamConnection(self),
                    end.host,
                    end.port,
                    ssl=end.tls,
                    server_hostname=end.host if end.tls else None,
                )
        except TimeoutError as error:
            limit_s = self.limits.connect_timeout_s
            raise ConnectFailed(f"no connection to the engine within {limit_s:g} s") from error
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                text = "the router has no file descriptor left for a connection: raise its limit (ulimit -n)"
                raise NoDescriptor(text) from error
            reason = error.strerror or type(error).__name__
            raise ConnectFailed(f"no connection to the engine: {reason}") from error
        return connection
