"""The request reader without sockets: any cut of the bytes gives the same requests."""

import itertools
import re
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.reader import Incoming, Phase, RequestReader

LIMITS = ServerLimits(max_body_bytes=10_000)
STREAM = (
    b"POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\nX-A:  b \r\nContent-Length: 5\r\n\r\nhello"
    b"GET /h HTTP/1.1\r\nhost: a\r\n\r\n"
    b"POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
    b"POST /u HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\nok"
    b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\nignored"
)


def read(pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes, bytes]], RequestReader]:
    reader = RequestReader(LIMITS)
    for piece in pieces:
        reader.feed(piece)
    got = []
    while incoming := reader.pop():
        request = incoming.request(peer_is_local=False)
        got.append((request.method, request.target, request.body))
    return got, reader


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_cuts_do_not_matter(cuts: list[int]) -> None:
    """Five requests of all kinds, cut anywhere: the same five, and nothing refused."""
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(places)]
    got, reader = read(pieces)
    assert got == [
        (b"POST", b"/v1/x?y=1", b"hello"),
        (b"GET", b"/h", b""),
        (b"POST", b"/c", b"abcdefg"),
        (b"POST", b"/u", b"ok"),
        (b"GET", b"/last", b""),
    ]
    assert reader.refusal is None
    assert reader.phase is Phase.IDLE


def refused_rightly(reader: RequestReader, data: bytes) -> bool:
    """With a 4xx, if at all; with 505 only what asks for another major version of HTTP (RFC 9110, 15.6.6)."""
    if reader.refusal is None or reader.refusal.status in range(400, 500):
        return True
    asks = re.search(rb"HTTP/(?!1\.)", data)
    return reader.refusal.status == 505 and asks is not None


@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
@example([b"GET / HTTP/3.0\r\nhost: a\r\n\r\n"])
@example([b"GET / HTTP/1.7\r\nhost: a\r\n\r\n"])
def test_no_bytes_raise(pieces: list[bytes]) -> None:
    """Whatever arrives: requests or a refusal with a 4xx or a rightful 505, never an exception."""
    _, reader = read(pieces)
    assert refused_rightly(reader, b"".join(pieces))


@given(st.binary(max_size=40), st.integers(0, len(STREAM)))
def test_damage_does_not_raise(damage: bytes, place: int) -> None:
    """Random bytes in the middle of good requests: requests before them stand, nothing raises."""
    data = STREAM[:place] + damage + STREAM[place:]
    _, reader = read([data])
    assert refused_rightly(reader, data)


def test_header_names_are_lower_case_and_values_stripped() -> None:
    """Values keep their inner bytes; names are folded."""
    reader = RequestReader(LIMITS)
    reader.feed(STREAM)
    incoming = reader.pop()
    assert incoming is not None
    request = incoming.request(peer_is_local=True)
    assert request.header(b"x-a") in (b"b", b"b ")
    assert request.path == b"/v1/x"


def only(data: bytes) -> tuple[Incoming, RequestReader]:
    reader = RequestReader(LIMITS)
    reader.feed(data)
    incoming = reader.pop()
    assert incoming is not None
    return incoming, reader


def test_trailers_are_no_headers() -> None:
    """Headers behind a chunked body: they were not there when the head was judged, and are dropped."""
    head = b"POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"
    incoming, reader = only(head + b"Host: evil\r\nAuthorization: z\r\n\r\n")
    assert incoming.headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
    assert reader.refusal is None


@pytest.mark.parametrize("space", [b" ", b"   "])
def test_space_behind_chunked_is_not_of_it(space: bytes) -> None:
    """RFC 9112, 5: a field's value may be followed by space."""
    head = b"POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked%b\r\n\r\n" % space
    incoming, reader = only(head + b"2\r\nhi\r\n0\r\n\r\n")
    assert (bytes(incoming.body), reader.refusal) == (b"hi", None)


def test_trailer_without_end_is_limited() -> None:
    """A trailer line that never ends is refused; a body in chunks of one byte is not taken for one."""
    reader = RequestReader(LIMITS)
    reader.feed(b"POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(9_000):
        for piece in (b"1;extension\r\n", b"x\r\n"):
            reader.feed(piece)
    assert reader.refusal is None
    reader.feed(b"0\r\nx: ")
    for _ in range(100):
        reader.feed(b"y" * 1000)
    assert reader.refusal is not None
    assert reader.refusal.status == 431


@pytest.mark.parametrize(
    ("version", "connection", "keep_alive"),
    [
        (b"1.1", b"upgrade", True),
        (b"1.1", b"close, upgrade", False),
        (b"1.0", b"upgrade", False),
    ],
)
def test_ignored_upgrade_changes_nothing_else(version: bytes, connection: bytes, keep_alive: bool) -> None:
    """An offer to upgrade is dropped, and nothing with it: neither `close` nor the version."""
    incoming, _ = only(
        b"POST /u HTTP/%b\r\nhost: a\r\nupgrade: h2c\r\nconnection: %b\r\ncontent-length: 2\r\n\r\nok"
        % (version, connection)
    )
    assert (incoming.keep_alive, incoming.http_1_0) == (keep_alive, version == b"1.0")
    assert incoming.request(peer_is_local=False).body == b"ok"
    assert incoming.request(peer_is_local=False).header(b"upgrade") is None


def test_a_body_of_tiny_chunks_takes_the_memory_of_its_bytes() -> None:
    """200 KB in chunks of two bytes: held as 200 KB, not as 100,000 objects."""
    num_chunks = 100_000
    reader = RequestReader(ServerLimits())
    reader.feed(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(num_chunks):
            reader.feed(b"2\r\nab\r\n")
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < 2 * 2 * num_chunks
    reader.feed(b"0\r\n\r\n")
    incoming = reader.pop()
    assert incoming is not None
    assert incoming.request(peer_is_local=False).body == b"ab" * num_chunks


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"http://a:1/health?x=http://b/", b"/health?x=http://b/"),
        (b"HTTP://a:1", b"/"),
        (b"http://a:1?x", b"/?x"),
    ],
)
def test_absolute_targets_are_accepted(target: bytes, expected: bytes) -> None:
    """As a proxy is asked: path and query are the target's, and its host counts, not the Host header's."""
    incoming, reader = only(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % target)
    assert reader.refusal is None
    assert (incoming.target, incoming.headers) == (expected, [(b"host", b"a:1")])
