"""Requests, headers and heads: pure values and functions, no sockets."""

from collections.abc import Iterable, Sequence
from http import HTTPStatus

import msgspec

from anbar.core.errors import RequestError

Header = tuple[bytes, bytes]
"""Name in lower case, value as it came."""

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
"""Headers that speak of one connection (RFC 9110, 7.6.1); they are never passed on."""

_PLAIN_CONNECTION = (b"keep-alive", b"close")
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
JSON_TYPE: Header = (b"content-type", b"application/json")


class Request(msgspec.Struct, frozen=True):
    """One complete request. `target` is the request target as sent, `path` its part before `?`; of `headers`
    the length of the body is left out."""

    method: bytes
    target: bytes
    headers: tuple[Header, ...]
    body: bytes
    peer_is_local: bool = False

    @property
    def path(self) -> bytes:
        return self.target.partition(b"?")[0]

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; `name` in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Answer(msgspec.Struct, frozen=True):
    """A complete answer that the router makes itself."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON_TYPE,)


def json_answer(status: int, value: object, headers: Sequence[Header] = ()) -> Answer:
    """An answer with `value` as JSON."""
    return Answer(status, msgspec.json.encode(value), (JSON_TYPE, *headers))


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """OpenAI's error object as JSON."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def error_answer(error: RequestError, headers: Sequence[Header] = ()) -> Answer:
    """The answer that says what was wrong with a request."""
    body = error_body(error.message, error.kind, error.code, error.param)
    if error.retry_after_s is not None:
        headers = (*headers, (b"retry-after", b"%d" % error.retry_after_s))
    return Answer(error.status, body, (JSON_TYPE, *headers))


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or f"HTTP/1.1 {status} Unknown\r\n".encode()


def render_headers(headers: Iterable[Header]) -> bytes:
    """Header lines, each with its line end, without the final empty line."""
    lines = b"\r\n".join(map(b": ".join, headers))
    return lines + b"\r\n" if lines else b""


def _named_by(connection: bytes) -> frozenset[bytes]:
    """Headers that a `Connection` header names: they too end here."""
    return frozenset(name.strip().lower() for name in connection.split(b","))


def end_to_end(headers: Sequence[Header], dropped: frozenset[bytes]) -> list[Header]:
    """The headers that may be passed on: neither hop-by-hop, nor named by `Connection`, nor in `dropped`
    (which contains HOP_BY_HOP), nor Anbar's own."""
    kept = [header for header in headers if header[0] not in dropped and header[0][:8] != b"x-anbar-"]
    for key, value in headers:
        if key == b"connection" and value.lower() not in _PLAIN_CONNECTION:
            named = _named_by(value)
            kept = [header for header in kept if header[0] not in named]
    return kept
