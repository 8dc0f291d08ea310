"""Requests with a head that was read before: the same as from a reader that never saw it."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.http.known_head import head_of
from anbar.adapters.http.limits import ServerLimits
from anbar.adapters.http.message import Request
from anbar.adapters.http.reader import RequestReader

LIMITS = ServerLimits(max_body_bytes=1000)
HEADS = [
    b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length:%d\r\nx-a: b\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d \r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 0%d\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n",
    b"POST /v1/x HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: %d\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: %d\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\ncontent-length: 3\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n",
    b"\r\nPOST /v1/y HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n",
]
BODIES = st.sampled_from([b"", b"{}", b"abc", b"x" * 999, b"x" * 1001, b"\r\n\r\n", HEADS[0] % 0])
READS = st.tuples(st.sampled_from(HEADS), BODIES, st.sampled_from([0, 0, 0, -1, 1]))


def whole(head: bytes, body: bytes, wrong_by: int) -> bytes:
    """A request whose body may be shorter or longer than it says."""
    return head % max(0, len(body) + wrong_by) + body


def taken(reader: RequestReader, data: bytes) -> list[Request]:
    reader.feed(data)
    got = []
    while incoming := reader.pop():
        got.append(incoming.request(peer_is_local=False))
    return got


@given(st.lists(READS, max_size=8))
def test_known_heads_change_nothing(reads: list[tuple[bytes, bytes, int]]) -> None:
    """Heads of all kinds, one after the other and again, with bodies of their length or of another: the same
    requests, refusals and phases as from a reader that gets each read byte by byte, which knows no head."""
    knowing, plain = RequestReader(LIMITS), RequestReader(LIMITS)
    for read in reads:
        data = whole(*read)
        got = taken(knowing, data)
        expected = [request for byte in data for request in taken(plain, bytes((byte,)))]
        assert got == expected
        assert (knowing.phase, knowing.refusal is None) == (plain.phase, plain.refusal is None)
        if knowing.refusal is not None and plain.refusal is not None:
            assert knowing.refusal.status == plain.refusal.status


def test_head_is_known_from_its_second_request_on() -> None:
    """Only the length may be another; one byte more or less behind it, and the parser is asked."""
    first, second = (HEADS[0] % len(body) + body for body in (b"abc", b"{}" * 8))
    head = head_of(first, 3)
    assert head is not None
    assert head.parted(second) == (b"16", b"{}" * 8)
    for other in (second[:-1], second + b"x", second + first, second.replace(b"/v1/x", b"/v1/y"), b""):
        assert head.parted(other) is None
    assert head.parted(second.replace(b"Length: 16", b"Length: +16")) is None
    assert head.parted(HEADS[1] % 3 + b"abc") is None
