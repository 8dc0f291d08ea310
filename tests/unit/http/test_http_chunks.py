"""Chunks that pass in their frames: what a client gets is the body, however the engine cuts and frames it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import BodySink, Wire

from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.upstream import UpstreamConnection, UpstreamPool, parse_endpoint

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
PIECES = st.sampled_from(
    [b"4\r\n4", b"\n", b"x" * 16 + b"\n", b"\r\n", b"0\r\n\r\n", b"10\r\n", b"a", b"data: x\n\n"]
)
BODIES = st.lists(PIECES, min_size=1, max_size=9).map(b"".join) | st.integers(1, 5000).map(lambda n: b"x" * n)
SIZES = st.sampled_from([b"%x", b"%X", b"0%x", b"%x;a=b"])


async def carried(reads: list[bytes]) -> tuple[BodySink, UpstreamPool]:
    """What an answer of these reads comes to, from a connection that is alone in its pool."""
    sink, pool = BodySink(), UpstreamPool(parse_endpoint("http://e"), UpstreamLimits())
    connection = UpstreamConnection(pool)
    connection.connection_made(Wire())
    asked = asyncio.ensure_future(connection.ask(b"", b"", 60.0))
    await asyncio.sleep(0)
    pumped = False
    for read in reads:
        connection.data_received(read)
        await asyncio.sleep(0)
        if asked.done() and not pumped:
            pumped = True
            (await asked).pump(sink, sink.chunk)
    pool.close()
    connection.connection_lost(None)
    return sink, pool


def framed(bodies: list[bytes], size: bytes = b"%x") -> list[bytes]:
    return [b"%b\r\n%b\r\n" % (size % len(body), body) for body in bodies]


@given(st.lists(BODIES, max_size=6), st.data())
def test_body_is_the_same_however_it_is_cut_and_framed(bodies: list[bytes], data: st.DataObject) -> None:
    """Bodies that look like frames themselves; sizes in digits of all kinds; reads that end anywhere, mostly
    with a chunk. All of the body comes, once and in order, then its end."""
    chunks = [framed([body], data.draw(SIZES))[0] for body in bodies]
    reads = [HEAD]
    for chunk in [*chunks, b"0\r\n\r\n"]:
        cut = data.draw(st.just(0) | st.integers(0, len(chunk) - 1))
        joins = data.draw(st.sampled_from([False, False, True]))
        begin, rest = chunk[:cut], chunk[cut:]
        reads[-1] += begin if joins or cut else b""
        if joins and not cut:
            reads[-1] += rest
        else:
            reads.append(rest)
    sink, _ = asyncio.run(carried(reads))
    assert sink.data == b"".join(bodies)
    assert sink.num_ends == 1


def test_whole_chunks_come_in_their_frames() -> None:
    """A head, a first chunk that is read by the parser, then one chunk with each read."""
    bodies = [b"x" * (size - 1) + b"\n" for size in (4, 16, 255, 256, 4095, 4096, 15, 30)]
    chunks = framed(bodies)
    sink, _ = asyncio.run(carried([HEAD, *chunks, b"0\r\n\r\n"]))
    assert sink.data == b"".join(bodies)
    assert sink.framed == [
        chunk for chunk, body in zip(chunks, bodies, strict=True) if 16 <= len(body) <= 4095
    ]


def test_line_of_a_size_is_not_taken_for_the_end_of_a_chunk() -> None:
    """A read ends with the line that announces the next chunk, and with what the one before would end with;
    that next chunk looks like a frame of its own."""
    inner = framed([b"y" * 16])[0]
    whole = framed([b"x" * 19 + b"\n", b"4\r\n4", inner, b"z" * 30])
    size, _, rest = whole[2].partition(b"\r\n")
    reads = [HEAD, whole[0], whole[1] + size + b"\r\n", rest, whole[3], b"0\r\n\r\n"]
    sink, _ = asyncio.run(carried(reads))
    assert sink.data == b"x" * 19 + b"\n" + b"4\r\n4" + inner + b"z" * 30
    assert sink.framed == [whole[3]]


@pytest.mark.parametrize("begin", [b"", b"a", b"\n", b"a\n", b"\n\r\n", b"a\r\n", b"\n\r\n\n\r\n"])
def test_end_of_a_chunk_is_told_from_its_middle(begin: bytes) -> None:
    """A chunk is cut at every place; what comes then looks like a chunk in its frame. It is one only if the
    first one had ended."""
    body = begin + b"10\r\n" + b"y" * 16 + b"\r\n" + b"10\r\n" + b"z" * 16 + b"\r\n" + b"b\n"
    first, last = framed([body, b"v" * 16])
    for cut in range(len(first) + 1):
        reads = [HEAD, first[:cut], first[cut:], last, b"0\r\n\r\n"]
        sink, _ = asyncio.run(carried([read for read in reads if read]))
        assert sink.data == body + b"v" * 16
        assert sink.num_ends == 1
