"""Requests and answers with a head that was read before: the same as from who never saw it."""

import asyncio
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from wire import BodySink, Wire

from anbar.adapters.http.known_head import head_of
from anbar.adapters.http.limits import ServerLimits, UpstreamLimits
from anbar.adapters.http.message import Header, Request
from anbar.adapters.http.reader import RequestReader
from anbar.adapters.http.upstream import UpstreamConnection, UpstreamPool, parse_endpoint
from anbar.core.errors import UpstreamError

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
ANSWERS = [
    b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Length: %d\r\ncontent-type: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ndate: then\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 404 No\r\ncontent-length:%d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n",
    b"HTTP/1.0 200 OK\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 204 No\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-length: 3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 100 Wait\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nx: %d\r\n\r\n",
]
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
    assert head.body(second) == b"{}" * 8
    for other in (second[:-1], second + b"x", second + first, second.replace(b"/v1/x", b"/v1/y"), b""):
        assert head.body(other) is None
    assert head.body(second.replace(b"Length: 16", b"Length: +16")) is None
    assert head.body(HEADS[1] % 3 + b"abc") is None


class Got(NamedTuple):
    """What came of one answer."""

    status: int
    headers: tuple[Header, ...]
    length: int | None
    body: bytes
    complete: bool


async def answers(reads: list[list[bytes]]) -> list[Got | type[UpstreamError]]:
    """What comes of answers that arrive in these reads, one after the other from one engine, on the same
    connection for as long as it is kept."""
    pool = UpstreamPool(parse_endpoint("http://e"), UpstreamLimits())
    got: list[Got | type[UpstreamError]] = []
    for answer in reads:
        kept = [connection for connection in pool._idle if connection.is_open]
        pool._idle.clear()
        connection = kept[0] if kept else UpstreamConnection(pool)
        if not kept:
            connection.connection_made(Wire())
        asked = asyncio.ensure_future(connection.ask(b"", b"", 60.0))
        await asyncio.sleep(0)
        sink = BodySink()
        for read in answer:
            connection.data_received(read)
            await asyncio.sleep(0)
        try:
            reply = await asyncio.wait_for(asked, None if asked.done() else 0)
        except UpstreamError as error:
            got.append(type(error))
        except TimeoutError:
            got.append(UpstreamError)
        else:
            reply.pump(sink)
            got.append(Got(reply.status, reply.headers, reply.length, sink.data, reply.complete))
            reply.close()
    return got


@given(st.lists(st.tuples(st.sampled_from(ANSWERS), BODIES, st.sampled_from([0, 0, 0, -1, 1])), max_size=8))
def test_known_heads_of_answers_change_nothing(reads: list[tuple[bytes, bytes, int]]) -> None:
    """Answers of all kinds, mostly several with one head in a row: the same as when each comes byte by byte,
    so that no head is known."""
    whole_reads = [[whole(*read)] for read in reads for _ in range(3)]
    single_bytes = [[bytes((byte,)) for byte in answer] for [answer] in whole_reads]
    assert asyncio.run(answers(whole_reads)) == asyncio.run(answers(single_bytes))


def test_head_of_an_answer_is_known_from_its_third_on() -> None:
    """One that came twice, that is: what differs with each answer would be learned in vain. Another one takes
    its place."""
    pool = UpstreamPool(parse_endpoint("http://e"), UpstreamLimits())

    async def take(number: int, body: bytes) -> bool:
        before = pool.known
        connection = UpstreamConnection(pool)
        connection.connection_made(Wire())
        asked = asyncio.ensure_future(connection.ask(b"", b"", 60.0))
        await asyncio.sleep(0)
        connection.data_received(ANSWERS[number] % len(body) + body)
        assert (await asked).complete
        return before is not None and pool.known is before

    async def run() -> list[bool]:
        return [await take(number, b"x" * size) for size, number in enumerate((0, 0, 0, 0, 1, 0, 1, 1, 1), 1)]

    assert asyncio.run(run()) == [False, False, True, True, True, True, False, True, True]
