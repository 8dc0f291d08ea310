"""Edits of a JSON object's bytes in place: one member's value, and not a byte besides.

For bodies that were judged to be JSON already (`adapters.http.openai`). Whitespace, the order of members,
numbers of any length, escapes and members that nobody knows stay as the client wrote them."""

import re
from collections.abc import Collection, Mapping

import msgspec

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(rb"[\s,]*(" + _STRING + rb")\s*:\s*", re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_SCALAR = re.compile(_STRING + rb"|[^\s,}\]]++", re.DOTALL)
_EMPTY = re.compile(rb"\s*\}")

_unquoted = msgspec.json.Decoder(str).decode
_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Where a value ends is found in C: a long prompt has many thousand brackets, quotes and escapes."""
_AFTER = b" \t\r\n,}"


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object `body` with `value`, JSON itself, as its member `name`: in place of the value that it has,
    else as its first member."""
    span = member_span(body, name)
    if span is None:
        return with_new_member(body, name, value)
    start, end = span
    return b"".join((body[:start], value, body[end:]))


def with_members(body: bytes, known: Mapping[str, object], members: Mapping[str, bytes]) -> bytes:
    """The object `body`, whose members are those of `known`, with each of `members` as `with_member` would
    put it. However many they are, a long body is gone through once, or not at all where it has none of
    them."""
    present = members.keys() & known.keys()
    spans = _spans(body, present) if present else {}
    pieces: list[bytes] = []
    at = 0
    for name, (start, end) in sorted(spans.items(), key=lambda found: found[1]):
        pieces += (body[at:start], members[name])
        at = end
    body = b"".join((*pieces, body[at:]))
    for name, value in members.items():
        if name not in spans:
            body = with_new_member(body, name, value)
    return body


def with_new_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object `body`, which is known to have no member `name`, with `value` as its first one: nothing of a
    long body has to be looked at."""
    return with_new_members(body, b"%b:%b" % (msgspec.json.encode(name), value))


def with_new_members(body: bytes, members: bytes) -> bytes:
    """As `with_new_member`, for several: `members` are as they stand in an object, with commas between."""
    begin = body.index(b"{") + 1
    comma = b"" if _EMPTY.match(body, begin) else b","
    return b"".join((body[:begin], members, comma, body[begin:]))


def member_span(body: bytes, name: str) -> tuple[int, int] | None:
    """Where the value of the member `name` begins and ends in the object `body`; of several with one name
    it is the last, which is the one that parsers take. None: there is no such member."""
    return _spans(body, (name,)).get(name)


def _spans(body: bytes, names: Collection[str]) -> dict[str, tuple[int, int]]:
    values, found = _values(body), {}
    at = body.index(b"{") + 1
    while (key := _KEY.match(body, at)) is not None:
        name, start = _unquoted(key[1]), key.end()
        value = bytes(values[name])
        at = start + len(value)
        if not body.startswith(value, start) or body[at] not in _AFTER:
            at = _value_end(body, start)  # the value is that of a later member with this name
        if name in names:
            found[name] = start, at
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
