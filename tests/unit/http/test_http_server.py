"""The HTTP server over real loopback sockets: framing, limits, slow and rude clients, backpressure, drain."""

import asyncio
import http.client
from contextlib import suppress
from dataclasses import replace

import pytest
from loopback import LIMITS, connected, serving

from anbar.adapters.http.message import Answer, json_answer
from anbar.adapters.http.server import Exchange

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


def echo(exchange: Exchange) -> None:
    request = exchange.request
    exchange.answer(Answer(200, b"%b %b %b" % (request.method, request.target, request.body), ()))


async def test_keep_alive_and_pipelining_answer_in_order() -> None:
    """Three requests in one packet, the second with a body: three answers, in order, on one connection."""
    body = b"POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nxyz"
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(
            b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n"
            + body
            + b"GET /c HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        )
        text = await client.rest()
    assert text.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert text.index(b"GET /a") < text.index(b"POST /b xyz") < text.index(b"GET /c")


async def test_pipelined_request_waits_for_the_answer_before_it() -> None:
    """The first of two pipelined requests is answered late: the second is not begun before."""
    held: list[Exchange] = []
    async with serving(held.append) as (_, port), connected(port) as client:
        await client.send(GET + b"GET /2 HTTP/1.1\r\nhost: a\r\n\r\n")
        await asyncio.sleep(0.05)
        assert [e.request.target for e in held] == [b"/"]
        held[0].answer(json_answer(200, 1))
        await asyncio.sleep(0.05)
        assert [e.request.target for e in held] == [b"/", b"/2"]


async def test_pipelined_flood_is_neither_buffered_nor_blinding() -> None:
    """A client pipelines 14 MB behind a request that is not answered, and leaves: the server holds little of
    it, and sees it leave."""
    gone = asyncio.Event()

    def hold(exchange: Exchange) -> None:
        exchange.on_gone = gone.set

    async with serving(hold) as (server, port):
        async with connected(port) as client:
            await client.send(GET)
            await client.send(GET * 500_000)
            (connection,) = server.connections
            assert len(connection._reader.ready) < 20_000
        await asyncio.wait_for(gone.wait(), 1)


async def test_what_is_pipelined_beyond_the_limit_is_refused_in_its_turn() -> None:
    """Three requests, the third larger than may wait behind an answer: two answers, then 413 and the end."""
    held: list[Exchange] = []
    large = b"POST /3 HTTP/1.1\r\nhost: a\r\ncontent-length: 50000\r\n\r\n" + b"x" * 5000
    limits = replace(LIMITS, pipelined_bytes=4000)
    async with serving(held.append, limits) as (_, port), connected(port) as client:
        await client.send(GET)
        await asyncio.sleep(0.02)
        await client.send(GET + large)
        await asyncio.sleep(0.02)
        for each in (0, 1):
            held[each].answer(json_answer(200, each))
        text = await client.rest()
    assert text.count(b"HTTP/1.1 200 ") == len(held) == 2
    assert text.count(b"HTTP/1.1 413 ") == 1


async def test_chunked_request_body_is_put_together() -> None:
    """A chunked body, cut in the middle of a chunk header, arrives whole."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(
            b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n1"
        )
        await asyncio.sleep(0.02)
        await client.send(b"0\r\n0123456789abcdef\r\n2\r\nxy\r\n0\r\n\r\n")
        assert (await client.rest()).endswith(b"POST / 0123456789abcdefxy")


async def test_expect_continue() -> None:
    """A client that asks before sending its body is told to go on, and only once."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"o")
        await asyncio.sleep(0.02)
        await client.send(b"k")
        assert b"POST / ok" in await client.until(b"ok")


async def test_expect_continue_with_a_body_too_long_is_refused_before_it_is_sent() -> None:
    """`Expect: 100-continue` with a declared length over the limit: 413, no 100."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100001\r\nexpect: 100-continue\r\n\r\n"
        )
        assert (await client.rest()).startswith(b"HTTP/1.1 413 ")


async def test_head_has_a_length_and_no_body() -> None:
    """HEAD gets the head of the GET, and the connection stays in step."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n")
        head = await client.until(b"\r\n\r\n")
        assert b"content-length: 7\r\n" in head
        await client.send(GET)
        assert (await client.until(b"GET / ")).startswith(b"HTTP/1.1 200")


async def test_unknown_length_is_chunked_for_1_1_and_closed_for_1_0() -> None:
    """An answer of unknown length: chunks for HTTP/1.1, the connection's end for HTTP/1.0."""

    def stream(exchange: Exchange) -> None:
        exchange.begin(200, b"", None)
        exchange.write(b"hello ")
        exchange.write(b"world")
        exchange.end()

    async with serving(stream) as (_, port):
        async with connected(port) as client:
            await client.send(GET)
            text = await client.until(b"0\r\n\r\n")
            assert text.endswith(b"\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n")
        async with connected(port) as client:
            await client.send(b"GET / HTTP/1.0\r\n\r\n")
            text = await client.rest()
            assert text.endswith(b"\r\n\r\nhello world")
            assert b"chunked" not in text


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nhost: a\r\n\r\n", 400),
        (b"BREW / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100001\r\n\r\n", 413),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\nexpect: coffee\r\n\r\n", 417),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else str(value),
)
async def test_what_is_wrong_is_refused_and_closed(data: bytes, status: int) -> None:
    """Broken or oversized HTTP: one answer in OpenAI's error shape with its status, then the end."""
    seen: list[Exchange] = []
    async with serving(seen.append) as (_, port), connected(port) as client:
        await client.send(data)
        text = await client.rest()
    assert text.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close\r\n" in text
    assert b'{"error":{"message":' in text
    assert not seen


async def test_header_without_end_is_limited_while_it_arrives() -> None:
    """A header line that never ends is refused once it is over the limit, not held for ever."""
    async with serving(echo) as (server, port), connected(port) as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nx: ")
        for _ in range(20):
            client.writer.write(b"y" * 10_000)
            await asyncio.sleep(0.002)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
        del server


async def test_body_without_declared_length_is_refused_as_soon_as_it_is_too_long() -> None:
    """A chunked body of 50 MB: 413 after the limit; what the server reads of it is bounded."""
    async with serving(echo, replace(LIMITS, linger_bytes=1_000_000)) as (_, port), connected(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(2):
                while sent < 50_000_000:
                    await client.send(chunk)
                    sent += len(chunk)
        assert sent < 20_000_000


async def test_declared_50_mb_body_gets_413_which_the_client_can_read() -> None:
    """Python's own HTTP client, which reads nothing before it has sent all of its 50 MB, gets its 413."""

    def ask(port: int) -> int:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            client.request("POST", "/", b"x" * 52_428_800)
            return client.getresponse().status
        finally:
            client.close()

    async with serving(echo, replace(LIMITS, linger_s=1.0)) as (_, port):
        assert await asyncio.to_thread(ask, port) == 413


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: a\r\nx",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nx",
    ],
)
async def test_slow_request_is_given_up(beginning: bytes) -> None:
    """A request that stops in its line, its headers or its body gets 408 and the end."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(beginning)
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_trickling_header_does_not_extend_its_time() -> None:
    """One byte every 30 ms: still given up after header_timeout_s."""
    async with serving(echo) as (_, port), connected(port) as client:
        started = asyncio.get_running_loop().time()
        await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nx: ")
        while not client.reader.at_eof() and asyncio.get_running_loop().time() - started < 2:
            client.writer.write(b"y")
            await asyncio.sleep(0.03)
            if client.reader._buffer:  # type: ignore[attr-defined]
                break
        assert asyncio.get_running_loop().time() - started < 1
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_trickling_body_is_held_to_a_rate() -> None:
    """A body of 30 bytes a second is given up, though never idle for long; one at the rate is not."""
    limits = replace(LIMITS, min_body_bytes_per_s=1000.0)
    async with serving(echo, limits) as (_, port):
        async with connected(port) as client:
            await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\n\r\n")
            while not client.reader._buffer:  # type: ignore[attr-defined]
                client.writer.write(b"x")
                await asyncio.sleep(0.03)
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        async with connected(port) as client:
            await client.send(
                b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\nconnection: close\r\n\r\n"
            )
            for _ in range(10):
                client.writer.write(b"x" * 50)
                await asyncio.sleep(0.02)
            assert (await client.rest()).startswith(b"HTTP/1.1 200 ")


async def test_idle_connection_is_closed_silently() -> None:
    """Nothing after an answer for keep_alive_s: closed without a word."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(GET)
        await client.until(b"GET / ")
        assert await client.rest() == b""


async def test_disconnect_tells_the_handler_at_once() -> None:
    """The client goes away while its answer is awaited: `on_gone` once, and writes do nothing."""
    gone: list[int] = []
    held: list[Exchange] = []

    def hold(exchange: Exchange) -> None:
        exchange.on_gone = lambda: gone.append(1)
        held.append(exchange)

    async with serving(hold) as (_, port):
        async with connected(port) as client:
            await client.send(GET)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        assert gone == [1]
        held[0].answer(json_answer(200, 1))
        held[0].cut()
    assert gone == [1]


async def test_half_closed_client_counts_as_gone() -> None:
    """A client that shuts down its sending side is not waited for."""
    gone: list[int] = []

    def hold(exchange: Exchange) -> None:
        exchange.on_gone = lambda: gone.append(1)

    async with serving(hold) as (_, port), connected(port) as client:
        await client.send(GET)
        client.writer.write_eof()
        assert await client.rest() == b""
        assert gone == [1]


async def test_upgrade_offer_is_ignored_and_the_body_kept() -> None:
    """An HTTP/2 upgrade offer on a POST (Java's client does this): answered in HTTP/1.1, body complete."""
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(
            b"POST /u HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
            b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\ncontent-length: 4\r\n\r\nbo"
        )
        await asyncio.sleep(0.02)
        await client.send(b"dy")
        assert (await client.until(b"POST /u body")).startswith(b"HTTP/1.1 200")


async def test_slow_reader_pauses_the_source_and_bounds_the_buffer() -> None:
    """60 MB for a client that does not read, then reads: the source is paused, unsent bytes stay bounded,
    and every byte arrives."""
    total, chunk = 60_000_000, b"x" * 60_000
    largest = 0

    def stream(exchange: Exchange) -> None:
        exchange.begin(200, b"", total)
        state = {"sent": 0, "paused": False}

        def pump() -> None:
            nonlocal largest
            while state["sent"] < total and not exchange.paused:
                exchange.write(chunk)
                state["sent"] += len(chunk)
                transport = exchange._connection._transport
                assert transport is not None
                largest = max(largest, transport.get_write_buffer_size())
            if state["sent"] >= total:
                exchange.end()

        exchange.on_resume = pump
        pump()

    async with serving(stream) as (_, port), connected(port) as client:
        await client.send(GET)
        await asyncio.sleep(0.1)
        await client.until(b"\r\n\r\n")
        received = 0
        while received < total:
            received += len(await client.reader.read(1_000_000))
    assert received == total
    assert largest <= LIMITS.high_water_bytes + len(chunk)


async def test_reader_that_never_reads_is_given_up() -> None:
    """A client that reads nothing for write_stall_s loses its connection, and the handler hears of it."""
    gone = asyncio.Event()

    def stream(exchange: Exchange) -> None:
        exchange.on_gone = gone.set
        exchange.begin(200, b"", None)
        while not exchange.paused:
            exchange.write(b"x" * 100_000)

    async with serving(stream, replace(LIMITS, write_stall_s=0.1)) as (_, port), connected(port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(GET)
        await asyncio.wait_for(gone.wait(), 2)


async def test_drain_finishes_what_runs_and_closes() -> None:
    """Drain with one answer in progress: no new connections; the answer completes, and closes."""
    held: list[Exchange] = []
    async with serving(held.append) as (server, port), connected(port) as client:
        await client.send(GET)
        await asyncio.sleep(0.02)
        draining = asyncio.create_task(server.drain(5))
        await asyncio.sleep(0.02)
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", port)
        assert not draining.done()
        held[0].answer(json_answer(200, "late"))
        text = await client.rest()
        assert b"connection: close\r\n" in text
        assert text.endswith(b'"late"')
        assert await draining == 0


async def test_drain_gives_up_after_its_time() -> None:
    """An exchange that never ends does not hold a drain beyond its timeout, which reports it."""
    async with serving(lambda exchange: None) as (server, port), connected(port) as client:
        await client.send(GET)
        await asyncio.sleep(0.02)
        assert await server.drain(0.05) == 1


async def test_drain_waits_for_what_is_written_but_not_sent() -> None:
    """An answer of 20 MB is complete for its handler while most of it waits for a slow client: a drain lets
    it arrive whole."""
    size = 20_000_000

    def large(exchange: Exchange) -> None:
        exchange.answer(Answer(200, b"x" * size, ()))

    async with serving(large) as (server, port), connected(port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(server.drain(5))
        await asyncio.sleep(0.05)
        assert not draining.done()
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        text = await client.rest()
        assert await draining == 0
    assert len(text.partition(b"\r\n\r\n")[2]) == size


async def test_closing_connection_of_a_client_that_never_reads_ends() -> None:
    """The last answer waits for a client that reads nothing: write_stall_s later the connection is gone."""

    def large(exchange: Exchange) -> None:
        exchange.answer(Answer(200, b"x" * 20_000_000, ()))

    limits = replace(LIMITS, write_stall_s=0.1, high_water_bytes=100_000_000)
    async with serving(large, limits) as (server, port), connected(port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await asyncio.sleep(0.05)
        assert len(server.connections) == 1
        await asyncio.sleep(0.3)
        assert not server.connections
