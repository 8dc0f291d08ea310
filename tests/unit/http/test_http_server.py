"""The HTTP server over real loopback sockets: framing, limits, slow and rude clients, backpressure."""

import asyncio
import http.client
from contextlib import suppress
from dataclasses import replace

import pytest
from loopback import LIMITS, connected, only, serving, unsent
from manual_timers import ManualTimers
from tests.waiting import PATIENCE_S, settled, until, within

from anbar.adapters.http.message import Answer, json_answer
from anbar.adapters.http.reader import Incoming, Phase
from anbar.adapters.http.server import Connection, Exchange, HttpServer

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


def echo(exchange: Exchange) -> None:
    request = exchange.request
    exchange.answer(Answer(200, b"%b %b %b" % (request.method, request.target, request.body), ()))


def manual(server: HttpServer) -> ManualTimers:
    """Timers of the connections to come expire when the test says so."""
    timers = ManualTimers()
    server.loop = timers  # type: ignore[assignment]
    return timers


async def incoming(connection: Connection) -> Incoming:
    """What the connection is receiving, once there is some of it."""
    await until(lambda: connection._reader.current)
    assert connection._reader.current is not None
    return connection._reader.current


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
        await until(lambda: held)
        assert [e.request.target for e in held] == [b"/"]
        held[0].answer(json_answer(200, 1))
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
            connection = await only(server)
            await client.send(GET * 500_000)
            assert len(connection._reader.ready) < 20_000
        await within(gone.wait())


async def test_what_is_pipelined_beyond_the_limit_is_refused_in_its_turn() -> None:
    """Three requests, the third larger than may wait behind an answer: two answers, then 413 and the end."""
    held: list[Exchange] = []
    large = b"POST /3 HTTP/1.1\r\nhost: a\r\ncontent-length: 50000\r\n\r\n" + b"x" * 5000
    limits = replace(LIMITS, pipelined_bytes=4000)
    async with serving(held.append, limits) as (server, port), connected(port) as client:
        await client.send(GET)
        await until(lambda: held)
        await client.send(GET + large)
        connection = await only(server)
        await until(lambda: connection._reader.refusal)
        for each in (0, 1):
            held[each].answer(json_answer(200, each))
        text = await client.rest()
    assert text.count(b"HTTP/1.1 200 ") == len(held) == 2
    assert text.count(b"HTTP/1.1 413 ") == 1


async def test_chunked_request_body_is_put_together() -> None:
    """A chunked body, cut in the middle of a chunk header, arrives whole."""
    async with serving(echo) as (server, port), connected(port) as client:
        await client.send(
            b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n1"
        )
        await incoming(await only(server))
        await client.send(b"0\r\n0123456789abcdef\r\n2\r\nxy\r\n0\r\n\r\n")
        assert (await client.rest()).endswith(b"POST / 0123456789abcdefxy")


async def test_expect_continue() -> None:
    """A client that asks before sending its body is told to go on, and only once."""
    async with serving(echo) as (server, port), connected(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        received = await incoming(await only(server))
        await client.send(b"o")
        await until(lambda: received.num_body_bytes == 1)
        await client.send(b"k")
        text = await client.until(b"POST / ok")
        assert text.startswith(b"HTTP/1.1 200 ")


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
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1_0\r\n\r\n0123456789", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\nx\n0\n\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nhost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\nx: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\rx: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100001\r\n\r\n", 413),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\nexpect: coffee\r\n\r\n", 417),
    ],
    ids=lambda value: repr(value[:80]) if isinstance(value, bytes) else str(value),
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
    async with serving(echo) as (_, port), connected(port) as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nx: ")
        for _ in range(20):
            client.writer.write(b"y" * 10_000)
            await asyncio.sleep(0)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


async def test_body_without_declared_length_is_refused_as_soon_as_it_is_too_long() -> None:
    """A chunked body of 100 MB: 413 after the limit; what the server reads of it is bounded."""
    async with serving(echo, replace(LIMITS, linger_bytes=1_000_000)) as (_, port), connected(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        sent = 0
        with suppress(ConnectionError):
            while sent < 100_000_000:
                await within(client.send(chunk))
                sent += len(chunk)
        assert sent < 50_000_000


async def test_declared_50_mb_body_gets_413_which_the_client_can_read() -> None:
    """Python's own HTTP client, which reads nothing before it has sent all of its 50 MB, gets its 413."""

    def ask(port: int) -> int:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            client.request("POST", "/", b"x" * 52_428_800)
            return client.getresponse().status
        finally:
            client.close()

    async with serving(echo) as (_, port):
        assert await asyncio.to_thread(ask, port) == 413


@pytest.mark.parametrize(
    ("beginning", "phase"),
    [
        (b"GET / HT", Phase.HEAD),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx", Phase.HEAD),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nx", Phase.BODY),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", Phase.BODY),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;a", Phase.BODY),
    ],
)
async def test_slow_request_is_given_up(beginning: bytes, phase: Phase) -> None:
    """A request that stops in its line, its headers or its body, also one of chunks without end, gets 408 and
    the end."""
    limits = replace(LIMITS, header_timeout_s=10.0, body_timeout_s=20.0)
    async with serving(echo, limits) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            await client.send(beginning)
            connection = await only(server)
            await until(lambda: connection._reader.phase is phase)
            timers.advance(9.9 if phase is Phase.HEAD else 19.9)
            assert not connection._lingering
            timers.advance(0.2)
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_connection_without_a_request_is_closed_silently() -> None:
    """A client that connects and says nothing: closed without a word after header_timeout_s."""
    async with serving(echo) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            await only(server)
            timers.advance(LIMITS.header_timeout_s + 0.1)
            assert await client.rest() == b""


async def test_empty_lines_do_not_extend_the_time_of_a_connection() -> None:
    """Line ends in place of a request, one after the other, keep a connection no longer than silence does."""
    async with serving(echo) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            connection = await only(server)
            for _ in range(6):
                connection.data_received(b"\r\n")
                timers.advance(LIMITS.keep_alive_s / 6 + 0.001)
            assert await client.rest() == b""


async def test_trickling_header_does_not_extend_its_time() -> None:
    """One byte every 10 s: still given up after header_timeout_s."""
    async with serving(echo) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nx: ")
            connection = await only(server)
            received = await incoming(connection)
            for count in range(1, 7):
                assert not connection._lingering
                await client.send(b"y")
                await until(lambda count=count: received.head_bytes == count)
                timers.advance(LIMITS.header_timeout_s / 6 + 0.001)
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("at_the_rate", [False, True])
async def test_trickling_body_is_held_to_a_rate(at_the_rate: bool) -> None:
    """A body of half the least rate is given up, though never idle for long; one at the rate is not."""
    limits = replace(LIMITS, body_timeout_s=1.0, min_body_bytes_per_s=100.0)
    piece = b"x" * (50 if at_the_rate else 25)
    async with serving(echo, limits) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            await client.send(
                b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 500\r\nconnection: close\r\n\r\n"
            )
            connection = await only(server)
            received = await incoming(connection)
            for count in range(1, 500 // len(piece) + 1):
                await client.send(piece)
                await until(lambda count=count: received.num_body_bytes == count * len(piece))
                timers.advance(0.5)
                if connection._lingering:
                    break
            assert (await client.rest()).startswith(b"HTTP/1.1 200 " if at_the_rate else b"HTTP/1.1 408 ")
            assert count == (10 if at_the_rate else 4)


async def test_idle_connection_is_closed_silently() -> None:
    """Nothing after an answer for keep_alive_s, on the loop's own clock: closed without a word."""
    async with serving(echo, replace(LIMITS, keep_alive_s=0.05)) as (_, port), connected(port) as client:
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
            await until(lambda: held)
        await until(lambda: gone)
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
        await until(lambda: gone)
        assert gone == [1]


async def test_upgrade_offer_is_ignored_and_the_body_kept() -> None:
    """An HTTP/2 upgrade offer on a POST (Java's client does this): answered in HTTP/1.1, body complete."""
    async with serving(echo) as (server, port), connected(port) as client:
        await client.send(
            b"POST /u HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
            b"http2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\ncontent-length: 4\r\n\r\nbo"
        )
        received = await incoming(await only(server))
        await until(lambda: received.num_body_bytes == 2)
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
                largest = max(largest, unsent(exchange))
            if state["sent"] >= total:
                exchange.end()

        exchange.on_resume = pump
        pump()

    async with serving(stream) as (server, port), connected(port) as client:
        await client.send(GET)
        connection = await only(server)
        await until(lambda: connection.paused)
        await client.until(b"\r\n\r\n")
        received = 0
        while data := await within(client.reader.read(1_000_000)):
            received += len(data)
            if received == total:
                break
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

    async with serving(stream) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(GET)
            connection = await only(server)
            await until(lambda: connection.paused)
            timers.advance(LIMITS.write_stall_s - 0.1)
            await settled(lambda: len(server.connections))
            assert not gone.is_set()
            timers.advance(0.2)
            await within(gone.wait())


async def test_closing_connection_of_a_client_that_never_reads_ends() -> None:
    """The last answer waits for a client that reads nothing: write_stall_s later the connection is gone."""
    num_unsent: list[int] = []

    def large(exchange: Exchange) -> None:
        exchange.answer(Answer(200, b"x" * 20_000_000, ()))
        num_unsent.append(unsent(exchange))

    async with serving(large, replace(LIMITS, high_water_bytes=100_000_000)) as (server, port):
        timers = manual(server)
        async with connected(port) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            await until(lambda: num_unsent)
            timers.advance(LIMITS.write_stall_s - 0.1)
            assert await settled(lambda: len(server.connections)) == 1
            timers.advance(0.2)
            await until(lambda: not server.connections)
