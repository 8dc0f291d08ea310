"""The server: client connections, one exchange at a time on each, with limits and backpressure.

A handler is called synchronously with each `Exchange` and answers it then or later. A client that closes its
side, or half of it, counts as gone: the answer in progress is given up at once.
"""

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Sequence
from typing import cast

from anbar.adapters.http.deadline import Deadline
from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.message import Answer, Header, Request, error_answer, render_headers, status_line
from anbar.adapters.http.reader import Incoming, Phase, RequestReader
from anbar.core.errors import RequestError

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked\r\n"
_CLOSE = b"connection: close\r\n"
_KEEP_ALIVE = b"connection: keep-alive\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""Linger for no time: closing resets."""


def _nothing() -> None:
    """No listener."""


class Exchange:
    """One request and its answer: `begin`, any number of `write`, `end`; or `answer`; or `cut` at any time.

    After the client went away, or after `end` or `cut`, all of them do nothing. The listeners `on_gone` (the
    client went away before the answer's end), `on_pause` and `on_resume` (it reads more slowly than the
    answer comes) are assigned by the handler.
    """

    __slots__ = (
        "_bodyless",
        "_chunked",
        "_connection",
        "_head",
        "begun",
        "closing",
        "num_body_bytes",
        "on_gone",
        "on_pause",
        "on_resume",
        "over",
        "request",
    )

    def __init__(self, connection: "Connection", request: Request, closing: bool) -> None:
        self.request = request
        self.begun = False
        self.over = False
        self.closing = closing
        self.num_body_bytes = 0
        self.on_gone: Callable[[], object] = _nothing
        self.on_pause: Callable[[], None] = _nothing
        self.on_resume: Callable[[], None] = _nothing
        self._connection = connection
        self._head = b""
        self._chunked = False
        self._bodyless = False

    @property
    def paused(self) -> bool:
        """The client is behind: hold back."""
        return self._connection.paused

    def begin(self, status: int, headers: bytes, length: int | None) -> None:
        """Start the answer. `headers` are rendered lines without framing; `length` None: not known.

        The head is sent together with the first bytes of the body.
        """
        if self.over:
            return
        self.begun = True
        self._bodyless = self.request.method == b"HEAD" or status in (204, 304)
        framing = b""
        if length is not None:
            framing = b"" if status in (204, 304) else b"content-length: %d\r\n" % length
        elif self._bodyless:
            framing = b""
        elif self._connection.http_1_0:
            self.closing = True
        else:
            self._chunked = True
            framing = _CHUNKED
        if self._connection.must_close(self.closing):
            self.closing = True
            framing += _CLOSE
        elif self._connection.http_1_0:
            framing += _KEEP_ALIVE
        self._head = b"".join((status_line(status), headers, framing, b"\r\n"))

    def flush(self) -> None:
        """Send the head at once, before there is any body."""
        head, self._head = self._head, b""
        if head and not self.over:
            self._connection.send(head)

    def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if self.over or not data:
            return
        if self._bodyless:
            data = b""
        else:
            self.num_body_bytes += len(data)
            if self._chunked:
                data = b"%x\r\n%b\r\n" % (len(data), data)
        head, self._head = self._head, b""
        self._connection.send(head + data if head else data)

    def pass_on(self, data: bytes, chunk: bytes) -> None:
        """As `write(data)`, for data that is at hand in the frame of a chunk."""
        if self.over or self._head or not self._chunked or self._bodyless:
            self.write(data)
            return
        self.num_body_bytes += len(data)
        self._connection.send(chunk)

    def end(self) -> None:
        """Finish the answer."""
        if self.over:
            return
        self.over = True
        head, self._head = self._head, b""
        self.on_gone = self.on_pause = self.on_resume = _nothing  # they may hold much, and this exchange
        tail = head + _LAST_CHUNK if self._chunked else head
        if tail:
            self._connection.send(tail)
        self._connection.finished(self.closing)

    def answer(self, answer: Answer) -> None:
        """Send a complete answer, if none has begun."""
        self.begin(answer.status, render_headers(answer.headers), len(answer.body))
        self.write(answer.body)
        self.end()

    def cut(self) -> None:
        """Break the connection, so that the client cannot take what it has for a whole answer."""
        if not self.over:
            self.over = True
            self._connection.abort()

    # For a server that imitates the failures of others.

    def write_raw(self, data: bytes) -> None:
        """Send bytes as they are, in place of `begin` and `write`: head and framing are the caller's."""
        if not self.over:
            self.begun = True
            self._connection.send(data)

    def hang_up(self) -> None:
        """Close the connection in an orderly way in the middle of the answer, once all is sent."""
        if not self.over:
            self.over = True
            self._connection.finished(closing=True)

    def reset(self) -> None:
        """Have the client's system report a reset connection (RST)."""
        if not self.over:
            self.over = True
            self._connection.reset()


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._limits = server.limits
        self._reader = RequestReader(server.limits)
        self._exchange: Exchange | None = None
        self._advancing = False
        self._lingering = False
        self._lingered_bytes = 0
        self._continued = False
        self._awaited: Phase | None = None
        self._body_began_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._deadline: Deadline
        self._peer_is_local = False
        self.http_1_0 = False
        self.paused = False

    # What an exchange does

    def must_close(self, wished: bool) -> bool:
        return wished or self._server.draining

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def finished(self, closing: bool) -> None:
        """The answer is complete: serve the next request, or close."""
        self._exchange = None
        if closing:
            self._close()
        else:
            self._advance()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def reset(self) -> None:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.abort()

    # What the server asks

    @property
    def is_busy(self) -> bool:
        """A request is being received or answered, or an answer is still being sent. What is received after
        a refusal is none: a drain does not wait for a client that sends on and on."""
        if self._exchange is not None or (not self._lingering and self._reader.phase is not Phase.IDLE):
            return True
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def close_now(self) -> None:
        self.abort()

    # What the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's interface, but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.high_water_bytes)
        self._deadline = Deadline(self._server.loop, self._expired)
        self._deadline.set(self._limits.header_timeout_s)
        self._peer_is_local = _is_loopback(transport.get_extra_info("peername"))
        self._server.connections.add(self)
        if self._server.stopped:  # it was being accepted when the others were broken
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._deadline.close()
        self._server.connections.discard(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            was_over, exchange.over = exchange.over, True
            if not was_over:
                exchange.on_gone()

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > self._limits.linger_bytes:
                self.abort()
            return
        self._reader.feed(data)
        if self._exchange is None:
            self._advance()
        else:
            self._reader.refuse_flood()

    def pause_writing(self) -> None:
        self.paused = True
        self._deadline.set(self._limits.write_stall_s)
        if self._exchange is not None:
            self._exchange.on_pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self._exchange is not None:
            self._deadline.clear()
            self._exchange.on_resume()

    # Decisions

    def _advance(self) -> None:
        """Serve what is complete, one at a time; then wait for more."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._exchange is None and (incoming := self._reader.pop()) and self._is_open():
                self._dispatch(incoming)
        finally:
            self._advancing = False
        if self._exchange is None and self._is_open():
            self._wait()

    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self._lingering

    def _dispatch(self, incoming: Incoming) -> None:
        self._continued = False
        self._awaited = None
        self._deadline.clear()
        self.http_1_0 = incoming.http_1_0
        request = incoming.request(self._peer_is_local)
        exchange = self._exchange = Exchange(self, request, not incoming.keep_alive)
        self._server.handler(exchange)

    def _wait(self) -> None:
        if self._reader.refusal is not None:
            self._refuse(self._reader.refusal)
            return
        phase = self._reader.phase
        if phase is Phase.BODY:
            self._wait_for_body()
        elif phase is not self._awaited:
            # Once per phase: bytes that trickle in do not extend it.
            idle = phase is Phase.IDLE
            self._deadline.set(self._limits.keep_alive_s if idle else self._limits.header_timeout_s)
        self._awaited = phase

    def _wait_for_body(self) -> None:
        now_s = self._server.loop.time()
        if self._awaited is not Phase.BODY:
            self._body_began_s = now_s
        incoming = self._reader.current
        assert incoming is not None, "a body has a head"
        if incoming.expects_continue and not self._continued:
            self._continued = True
            if incoming.num_body_bytes == 0:
                self.send(_CONTINUE)
        allowed_s = self._limits.body_timeout_s + incoming.num_body_bytes / self._limits.min_body_bytes_per_s
        self._deadline.set(max(0.0, self._body_began_s + allowed_s - now_s))

    def _refuse(self, refusal: RequestError) -> None:
        answer = self._server.refusal_answer(
            refusal, self._server.refusal_headers(self._reader.refused_headers)
        )
        head = status_line(answer.status) + render_headers(answer.headers)
        self.send(b"%bcontent-length: %d\r\n%b\r\n%b" % (head, len(answer.body), _CLOSE, answer.body))
        self._server.on_refusal(refusal)
        self._linger()

    def _linger(self) -> None:
        """Closing while input is unread would make the kernel reset the connection, and the client might
        never see the answer: end our side first and discard a bounded amount of input."""
        if self._transport is None:
            return
        self._lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._deadline.set(self._limits.linger_s)

    def _close(self) -> None:
        self._deadline.set(self._limits.write_stall_s)
        if self._transport is not None:
            self._transport.close()

    def _expired(self) -> None:
        closing = self._transport is None or self._transport.is_closing()
        if closing or self._lingering or self._exchange is not None or self.paused:
            self.abort()
        elif self._reader.phase is Phase.IDLE:
            self._close()
        else:
            self._refuse(RequestError("The request did not arrive in time.", status=408))


class HttpServer:
    """Listens and owns the connections. `handler` gets each exchange; `on_refusal` hears of requests that
    were refused before they were complete, `refusal_headers` says what their answers carry, from those of
    their headers that were read, and `refusal_answer` what they are."""

    def __init__(
        self,
        handler: Callable[[Exchange], None],
        limits: ServerLimits,
        on_refusal: Callable[[RequestError], None] = lambda refusal: None,
        refusal_headers: Callable[[Sequence[Header]], Sequence[Header]] = lambda headers: (),
        refusal_answer: Callable[[RequestError, Sequence[Header]], Answer] = error_answer,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.on_refusal = on_refusal
        self.refusal_headers = refusal_headers
        self.refusal_answer = refusal_answer
        self.connections: set[Connection] = set()
        self.draining = False
        self.stopped = False
        self.loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, backlog: int = 1024, *, shared: bool = False) -> int:
        """Listen; returns the port (of use when `port` is 0). `shared`: other processes of this user may
        listen there too, and each gets a part of the connections. Raises OSError when it is taken."""
        self.loop = asyncio.get_running_loop()
        self._server = await self.loop.create_server(
            lambda: Connection(self), host, port, backlog=backlog, reuse_port=shared or None
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def drain(self, timeout_s: float) -> int:
        """Accept nothing more and wait until all exchanges are over; returns how many are not after
        `timeout_s`. Requests on open connections are still served meanwhile, and then closed."""
        self.draining = True
        if self._server is None:
            return 0
        self._server.close()
        until_s = self.loop.time() + timeout_s
        # Polled: an event per request would cost every request, and this runs once in a life.
        while (num_busy := sum(c.is_busy for c in self.connections)) and (  # noqa: ASYNC110
            self.loop.time() < until_s
        ):
            await asyncio.sleep(0.01)
        return num_busy

    async def stop(self) -> None:
        """Stop listening, for good, and break every connection."""
        self.stopped = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_now()
        await asyncio.sleep(0)


def _is_loopback(peername: object) -> bool:
    if not isinstance(peername, tuple) or not peername:
        return False
    try:
        address = ipaddress.ip_address(str(peername[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
