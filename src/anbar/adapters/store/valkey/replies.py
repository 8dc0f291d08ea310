"""Reads a server's replies off a socket, and values straight into the caller's memory.

RESP 2, as Valkey's documentation of its serialization protocol has it. Every wait ends at a deadline.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import valkey

from anbar.adapters.store.valkey.waits import receive

_BUFFER_BYTES = 16 * 1024
"""Read ahead: whole pages of short replies, and of a value so little that copying it once more is nothing."""
_MAX_BULK_BYTES = 512 * 1024 * 1024
"""The servers' own default bound (`proto-max-bulk-len`)."""


class ProtocolError(Exception):
    """What came is no reply of such a server."""


@dataclass(frozen=True, slots=True)
class ServerError:
    """A reply that says why not: `OOM command not allowed ...` has the code `OOM`."""

    text: str

    @property
    def code(self) -> str:
        return self.text.partition(" ")[0]


Reply = Union[bytes, int, None, ServerError, list["Reply"]]  # noqa: UP007 (it names itself)


@dataclass(frozen=True, slots=True)
class OtherLength:
    """A value that is not as long as what it was to be read into; it was skipped."""

    num_bytes: int


Filled = Callable[[memoryview], None]


class ReplyReader:
    """The parser of a `valkey.Connection`, which makes it and tells it of its socket.

    Waits end at `deadline_s` (`time.monotonic`) in a TimeoutError; a socket that ends is a ConnectionError.
    After any error the socket is of no use, since nobody knows where the next reply begins.
    """

    def __init__(self, socket_read_size: int) -> None:
        self.deadline_s = 0.0
        self._sock: socket.socket | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def on_connect(self, connection: Any) -> None:
        """Called by the connection when its socket is there."""
        self._sock = connection._sock
        self._start = self._end = 0

    def on_disconnect(self) -> None:
        """Called by the connection before it closes its socket."""
        self._sock = None

    def read_response(self, disable_decoding: bool = False) -> object:
        """One reply as the connection wants it while it logs in."""
        reply = self.reply()
        return valkey.ResponseError(reply.text) if isinstance(reply, ServerError) else reply

    @property
    def num_unread(self) -> int:
        """Bytes that came and belong to no reply that was asked for yet."""
        return self._end - self._start

    def reply(self) -> Reply:
        """The next reply, of any kind."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return rest
            case b"-":
                return ServerError(rest.decode("utf-8", "replace"))
            case b":":
                return _number(rest)
            case b"$":
                return None if (length := _length(rest)) is None else self._bulk(length)
            case b"*":
                count = _length(rest)
                return None if count is None else [self.reply() for _ in range(count)]
        raise ProtocolError(f"a reply began with {kind!r}")

    def value(self, parts: Sequence[memoryview], filled: Filled) -> Reply | OtherLength:
        """The next reply, to a GET: its bytes go into `parts`, one after the other, if they are as many as
        these hold; then their number is returned. None for a missing key. `filled` is told of each part as
        soon as it is there, while it lies in the processor's cache."""
        line = self._line()
        if line[:1] == b"-":
            return ServerError(line[1:].decode("utf-8", "replace"))
        if line[:1] != b"$":
            raise ProtocolError(f"the reply to a GET began with {line[:1]!r}")
        length = _length(line[1:])
        if length is None:
            return None
        fits = length == sum(map(len, parts))
        if fits:
            for part in parts:
                self._into(part)
                filled(part)
        else:
            self._skip(length)
        self._end_of_bulk()
        return length if fits else OtherLength(length)

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._start, self._end)) < 0:
            if self.num_unread == _BUFFER_BYTES:
                raise ProtocolError(f"a line of more than {_BUFFER_BYTES} bytes")
            self._fill()
        line = bytes(self._view[self._start : end])
        self._start = end + 2
        return line

    def _bulk(self, length: int) -> bytes:
        data = bytearray(length)
        self._into(memoryview(data))
        self._end_of_bulk()
        return bytes(data)

    def _into(self, target: memoryview) -> None:
        """Fill `target`, first from what was read ahead."""
        done = min(self.num_unread, len(target))
        target[:done] = self._view[self._start : self._start + done]
        self._start += done
        while done < len(target):
            done += self._receive(target[done:], whole=True)

    def _skip(self, length: int) -> None:
        while length > 0:
            if self.num_unread == 0:
                self._fill()
            step = min(self.num_unread, length)
            self._start += step
            length -= step

    def _end_of_bulk(self) -> None:
        while self.num_unread < 2:
            self._fill()
        if not self._buffer.startswith(b"\r\n", self._start):
            raise ProtocolError("a value was not followed by the end of a line")
        self._start += 2

    def _fill(self) -> None:
        """Read ahead; there is room, since only a line's start may be left."""
        unread = self.num_unread
        self._view[:unread] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, unread
        self._end += self._receive(self._view[unread:])

    def _receive(self, target: memoryview, *, whole: bool = False) -> int:
        if self._sock is None:
            raise ConnectionError("closed")
        count = receive(self._sock, target, self.deadline_s, whole=whole)
        if count == 0:
            raise ConnectionError("the server closed the connection")
        return count


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(f"{text[:20]!r} is no number") from None


def _length(text: bytes) -> int | None:
    """Of a bulk or an array; None for -1, which stands for nothing."""
    length = _number(text)
    if not -1 <= length <= _MAX_BULK_BYTES:
        raise ProtocolError(f"a length of {length}")
    return None if length == -1 else length
