"""Heads that come again and again, all but the body's length: a client's with each request on a connection,
an engine's with each answer.

A message with a head like an earlier one needs no parser: it would say the same of it.
"""

import re

_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,7})(?=\r\n)", re.IGNORECASE)
_END = b"\r\n\r\n"
MAX_DIGITS = 7


class KnownHead:
    """A head that was parsed, with a hole for the body's length."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: bytes, end: bytes) -> None:
        self._begin = begin
        self._end = end

    def body(self, data: bytes) -> bytes | None:
        """The body, if `data` is one whole message with this head; else None."""
        begin = self._begin
        if not data.startswith(begin):
            return None
        start = len(begin)
        stop = data.find(self._end, start, start + MAX_DIGITS + len(self._end))
        digits = data[start:stop] if stop > start else b""
        body = data[stop + len(self._end) :]
        return body if digits.isdigit() and int(digits) == len(body) else None


def head_of(data: bytes, num_body_bytes: int) -> KnownHead | None:
    """The head of `data`, if that is one message, which was parsed and has so long a body, and if nothing but
    its length may change from one to the next. The caller looks at what the headers mean."""
    size = data.find(_END) + len(_END)
    lengths = list(_LENGTH.finditer(data, 0, size))
    if len(lengths) != 1 or len(data) - size != num_body_bytes or int(lengths[0][1]) != num_body_bytes:
        return None
    start, stop = lengths[0].span(1)
    return KnownHead(data[:start], data[stop:size])
