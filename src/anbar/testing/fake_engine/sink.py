"""Where an answer goes: straight to the client, or through the fault that was armed for it."""

import asyncio
from collections.abc import Sequence

from anbar.testing.fake_engine.api import dump
from anbar.testing.fake_engine.errors import ApiError
from anbar.testing.fake_engine.faults import Fault, FaultBox, FaultKind
from anbar.testing.fake_engine.http import Exchange, Header

JSON: tuple[Header, ...] = ((b"content-type", b"application/json"),)
SSE: tuple[Header, ...] = ((b"content-type", b"text/event-stream; charset=utf-8"),)
_MID_STREAM = {
    FaultKind.HANG_MID_STREAM,
    FaultKind.RESET_MID_STREAM,
    FaultKind.TRUNCATE,
    FaultKind.ERROR_MID_STREAM,
}


class FaultStruck(Exception):
    """The fault ended the request: nothing more is to be sent."""


class Sink:
    """One answer on its way out."""

    def __init__(self, exchange: Exchange, faults: FaultBox, fault: Fault | None) -> None:
        self._exchange = exchange
        self._faults = faults
        self._fault = fault
        self._num_events = 0

    async def begin(self) -> None:
        """What a fault does before anything is computed; ApiError for STATUS, FaultStruck when it is over."""
        fault = self._fault
        if fault is None:
            return
        match fault.kind:
            case FaultKind.HANG:
                await self._faults.hang()
            case FaultKind.SLOW:
                await asyncio.sleep(fault.delay_s)
            case FaultKind.DRIP:
                self._exchange.drip_bytes, self._exchange.drip_s = fault.drip_bytes, fault.delay_s
            case FaultKind.RESET:
                self._exchange.reset()
                raise FaultStruck
            case FaultKind.CLOSE:
                self._exchange.close()
                raise FaultStruck
            case FaultKind.STATUS:
                if fault.retry_after_s is not None:
                    self._exchange.extra.append((b"retry-after", f"{fault.retry_after_s:g}".encode()))
                raise ApiError(fault.message, status=fault.status, kind="InjectedError")

    async def whole(self, status: int, body: bytes, headers: Sequence[Header] = JSON) -> None:
        """An answer in one piece; a fault of the stream's middle strikes in the middle of the body."""
        fault = self._fault
        if fault is None or fault.kind not in _MID_STREAM:
            await self._exchange.respond(status, headers, body)
            return
        if fault.kind is FaultKind.ERROR_MID_STREAM:
            raise ApiError("Internal server error", status=500, kind="InternalServerError")
        num_sent = len(body) // 2 if fault.after_events else 0
        await self._exchange.respond_part(status, headers, body, num_sent)
        if fault.kind is FaultKind.HANG_MID_STREAM:
            await self._faults.hang()
            await self._exchange.send_rest(body[num_sent:])
            return
        self._break(fault)

    async def start_stream(self) -> None:
        """The head of an event stream."""
        await self._exchange.start(200, SSE)

    async def event(self, data: object) -> None:
        """One SSE event of JSON."""
        await self.raw_event(b"data: " + dump(data) + b"\n\n")

    async def raw_event(self, event: bytes) -> None:
        """One SSE event as bytes, unless the fault's turn has come."""
        fault = self._fault
        if fault is not None and fault.kind in _MID_STREAM and self._num_events >= fault.after_events:
            if fault.kind is FaultKind.ERROR_MID_STREAM:
                error = ApiError("Internal server error", status=500, kind="InternalServerError")
                await self._exchange.send(b"data: " + dump(error.body()) + b"\n\n")
                await self.done()
                raise FaultStruck
            if fault.kind is FaultKind.HANG_MID_STREAM:
                await self._faults.hang()
            else:
                if fault.kind is FaultKind.TRUNCATE:
                    await self._exchange.send_part(event)
                self._break(fault)
        self._num_events += 1
        await self._exchange.send(event)

    async def done(self) -> None:
        """[DONE] and the end of the stream."""
        await self._exchange.send(b"data: [DONE]\n\n")
        await self._exchange.finish()

    def _break(self, fault: Fault) -> None:
        if fault.kind is FaultKind.RESET_MID_STREAM:
            self._exchange.reset()
        else:
            self._exchange.close()
        raise FaultStruck
