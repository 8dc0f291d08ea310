"""What an engine says it reused, read from the end of its answer after the client has it."""

import re

import msgspec

TAIL_BYTES = 4096
"""How much of an answer's end is kept to find its usage in: a usage object has some 300 bytes and stands at
the end of a stream; in a JSON answer it follows the choices."""

_USAGE = b'"usage"'
_OBJECT = re.compile(rb"\s*:\s*(?=\{)")


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the engine counted them. `cached_tokens` is None when it does not report them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


_decode = msgspec.json.Decoder(_Usage).decode


def find_usage(tail: bytes) -> Usage | None:
    """The last usage object in `tail`, the end of a JSON answer or of an event stream."""
    end = len(tail)
    while (end := tail.rfind(_USAGE, 0, end)) >= 0:
        value = _OBJECT.match(tail, end + len(_USAGE))
        found = _read(tail, value.end()) if value is not None else None
        if found is not None:
            return found
    return None


def _read(tail: bytes, start: int) -> Usage | None:
    """The object that begins at `start`: it ends where as many braces have closed as were opened."""
    end, num_open = start + 1, 1
    while num_open:
        closed = tail.find(b"}", end)
        if closed < 0:
            return None
        num_open += tail.count(b"{", end, closed) - 1
        end = closed + 1
    try:
        usage = _decode(tail[start:end])
    except msgspec.DecodeError:
        return None
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    return Usage(usage.prompt_tokens, usage.completion_tokens or 0, cached)


class Tail:
    """Keeps the last `TAIL_BYTES` of a body without copying it: whole parts, oldest dropped."""

    __slots__ = ("_num_bytes", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def add(self, data: bytes) -> None:
        parts = self._parts
        parts.append(data)
        self._num_bytes += len(data)
        while self._num_bytes - len(parts[0]) >= TAIL_BYTES:
            self._num_bytes -= len(parts.pop(0))

    def bytes(self) -> bytes:
        return b"".join(self._parts)[-TAIL_BYTES:]
