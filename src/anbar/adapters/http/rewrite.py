"""Edits of a JSON object's bytes in place: one member's value, and not a byte besides.

For bodies that were judged to be JSON already (`adapters.http.openai`). Whitespace, the order of members,
numbers of any length, escapes and members that nobody knows stay as the client wrote them."""

import re

import msgspec

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,}\]]++", re.DOTALL)
_EMPTY = re.compile(rb"\s*\}")

_unquoted = msgspec.json.Decoder(str).decode


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object `body` with `value`, JSON itself, as its member `name`: in place of the value that it has,
    else as its first member."""
    span = member_span(body, name)
    if span is None:
        return with_new_member(body, name, value)
    start, end = span
    return b"".join((body[:start], value, body[end:]))


def with_new_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object `body`, which is known to have no member `name`, with `value` as its first one: nothing of a
    long body has to be looked at."""
    begin = body.index(b"{") + 1
    comma = b"" if _EMPTY.match(body, begin) else b","
    return b"".join((body[:begin], msgspec.json.encode(name), b":", value, comma, body[begin:]))


def member_span(body: bytes, name: str) -> tuple[int, int] | None:
    """Where the value of the member `name` begins and ends in the object `body`; of several with one name
    it is the last, which is the one that parsers take. None: there is no such member."""
    quoted = msgspec.json.encode(name)
    found = None
    at = body.index(b"{") + 1
    while (key := _KEY.match(body, at)) is not None:
        at = _value_end(body, key.end())
        if key[1] == quoted or (b"\\" in key[1] and _unquoted(key[1]) == name):
            found = key.end(), at
    return found


def _value_end(body: bytes, start: int) -> int:
    """Where the value that begins at `start` ends."""
    if body[start] not in b"{[":
        scalar = _SCALAR.match(body, start)
        assert scalar is not None, "the body was judged to be JSON"
        return scalar.end()
    depth = 0
    for token in _TOKEN.finditer(body, start):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    raise AssertionError("the body was judged to be JSON")
