"""Where an answer goes: straight to the client, or through the fault that was armed for it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from anbar.adapters.http.message import Header, render_headers, status_line
from anbar.adapters.http.server import Exchange
from anbar.apps.emulator.body import dump
from anbar.apps.emulator.errors import ApiError, failed
from anbar.apps.emulator.faults import Fault, FaultBox, FaultKind

JSON: tuple[Header, ...] = ((b"content-type", b"application/json"),)
SSE: tuple[Header, ...] = ((b"content-type", b"text/event-stream; charset=utf-8"),)
_DONE = b"data: [DONE]\n\n"
_MID_STREAM = {
    FaultKind.HANG_MID_STREAM,
    FaultKind.RESET_MID_STREAM,
    FaultKind.TRUNCATE,
    FaultKind.ERROR_MID_STREAM,
}


class FaultStruck(Exception):
    """The fault ended the request: nothing more is to be sent."""


class Sink:
    """One answer on its way out; `extra` are headers that it carries whatever it is."""

    def __init__(self, exchange: Exchange, extra: Sequence[Header] = ()) -> None:
        self.exchange = exchange
        self._extra = extra

    def whole(self, status: int, body: bytes, headers: Sequence[Header] = JSON) -> None:
        """An answer in one piece."""
        exchange = self.exchange
        exchange.begin(status, render_headers((*headers, *self._extra)), len(body))
        exchange.write(body)
        exchange.end()

    def refuse(self, error: ApiError) -> None:
        """An error as the whole answer."""
        self.whole(error.status, dump(error.body()))

    def start_stream(self, headers: Sequence[Header] = SSE, status: int = 200) -> None:
        """The head of an event stream, which leaves before there is anything to say."""
        self.exchange.begin(status, render_headers((*headers, *self._extra)), None)
        self.exchange.flush()

    def event(self, data: object) -> None:
        """One SSE event of JSON."""
        self.part(b"data: %b\n\n" % dump(data))

    def part(self, data: bytes) -> None:
        """Bytes of a stream's body."""
        self.exchange.write(data)

    def done(self) -> None:
        """[DONE] and the end of the stream."""
        self.part(_DONE)
        self.end()

    def end(self) -> None:
        """The end of a stream."""
        self.exchange.end()

    def give_up(self) -> None:
        """What works for the answer failed: whoever does hears no more of it, and the client is cut off."""
        self.exchange.on_gone()
        self.exchange.cut()


class FaultySink(Sink):
    """An answer with a fault. Writes heads and framing itself, so that they can be cut anywhere."""

    def __init__(self, exchange: Exchange, extra: Sequence[Header], fault: Fault, faults: FaultBox) -> None:
        super().__init__(exchange, extra)
        self._fault = fault
        self._faults = faults
        self._num_clears = faults.num_clears
        self._num_events = 0
        self._is_hung = False
        self._has_struck = False
        self._pieces: deque[bytes] = deque()
        """Bytes that wait: for their turn to drip, or for the end of a hang."""
        self._dripping: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_ended = False

    def begin(self, proceed: Callable[[], None]) -> None:
        """What the fault does before anything is computed; `proceed` may be called later, or never.

        ApiError for STATUS, FaultStruck when it is over.
        """
        fault = self._fault
        match fault.kind:
            case FaultKind.HANG:
                self._wait(proceed)
            case FaultKind.SLOW:
                asyncio.get_running_loop().call_later(fault.delay_s, proceed)
            case FaultKind.RESET:
                self.exchange.reset()
                raise FaultStruck
            case FaultKind.CLOSE:
                self.exchange.hang_up()
                raise FaultStruck
            case FaultKind.STATUS:
                if fault.retry_after_s is not None:
                    self._extra = (*self._extra, (b"retry-after", f"{fault.retry_after_s:g}".encode()))
                raise ApiError(fault.message, status=fault.status, kind="InjectedError")
            case _:
                proceed()

    def whole(self, status: int, body: bytes, headers: Sequence[Header] = JSON) -> None:
        """An answer in one piece; a fault of the stream's middle strikes in the middle of the body."""
        fault = self._fault
        length = (b"content-length", str(len(body)).encode())
        head = self._head(status, (*headers, length))
        if fault.kind not in _MID_STREAM:
            self._send(head + body)
            self._finish()
            return
        if fault.kind is FaultKind.ERROR_MID_STREAM:
            error = dump(failed().body())
            self._send(self._head(500, (*JSON, (b"content-length", str(len(error)).encode()))) + error)
            self._finish()
            raise FaultStruck
        num_sent = len(body) // 2 if fault.after_events else 0
        self._send(head + body[:num_sent])
        if fault.kind is FaultKind.HANG_MID_STREAM:
            self._hang()
            self._send(body[num_sent:])
            self._finish()
            return
        self._break()

    def start_stream(self, headers: Sequence[Header] = SSE, status: int = 200) -> None:
        """The head of a chunked answer."""
        self._send(self._head(status, (*headers, (b"transfer-encoding", b"chunked"))))

    def part(self, data: bytes) -> None:
        """One chunk, unless the fault's turn has come."""
        fault = self._fault
        if fault.kind in _MID_STREAM and self._num_events >= fault.after_events and not self._has_struck:
            self._strike(data)
        self._num_events += 1
        self._send(_chunk(data))

    def end(self) -> None:
        """The last chunk."""
        self._send(b"0\r\n\r\n")
        self._finish()

    def _strike(self, data: bytes) -> None:
        self._has_struck = True
        match self._fault.kind:
            case FaultKind.HANG_MID_STREAM:
                self._hang()
                return
            case FaultKind.ERROR_MID_STREAM:
                self._send(_chunk(b"data: %b\n\n" % dump(failed().body())) + _chunk(_DONE) + b"0\r\n\r\n")
                self._finish()
                raise FaultStruck
            case FaultKind.TRUNCATE:
                self._send(_chunk(data)[: -2 - len(data) // 2])
        self._break()

    def _break(self) -> None:
        if self._fault.kind is FaultKind.RESET_MID_STREAM:
            self.exchange.reset()
        else:
            self.exchange.hang_up()
        raise FaultStruck

    def _head(self, status: int, headers: Sequence[Header]) -> bytes:
        return b"%b%b\r\n" % (status_line(status), render_headers((*headers, *self._extra)))

    def _send(self, data: bytes) -> None:
        if self._is_hung:
            self._pieces.append(data)
        elif self._fault.kind is FaultKind.DRIP:
            size = self._fault.drip_bytes
            self._pieces += (data[start : start + size] for start in range(0, len(data), size))
            if self._dripping is None:
                self._drip()
        else:
            self.exchange.write_raw(data)

    def _finish(self) -> None:
        self._is_ended = True
        if not self._pieces and not self._is_hung:
            self.exchange.end()

    def _hang(self) -> None:
        self._is_hung = True
        self._wait(self._go_on)

    def _wait(self, go_on: Callable[[], None]) -> None:
        """Until the fault is cleared, or the client has left."""
        gone = self.exchange.on_gone

        def leave() -> None:
            self._faults.forget(self)
            gone()

        self.exchange.on_gone = leave
        self._faults.hang(self, go_on, self._num_clears)

    def _go_on(self) -> None:
        while self._pieces:
            self.exchange.write_raw(self._pieces.popleft())
        self._is_hung = False
        if self._is_ended:
            self.exchange.end()

    def _drip(self) -> None:
        loop = asyncio.get_running_loop()
        self._dripping = None
        if self.exchange.over:
            return
        if not self._pieces:
            if self._is_ended:
                self.exchange.end()
            return
        self.exchange.write_raw(self._pieces.popleft())
        delay_s = self._fault.delay_s
        self._dripping = loop.call_later(delay_s, self._drip) if delay_s else loop.call_soon(self._drip)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
