"""The pooled client against scripted engines: reuse, stale connections, timeouts, backpressure."""

import asyncio
import shutil
import ssl
import subprocess
from dataclasses import replace

import pytest
from loopback import engine, ok, read_request

from anbar.adapters.http.fetch import fetch
from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.upstream import (
    ConnectFailed,
    Endpoint,
    Reply,
    UpstreamConnection,
    UpstreamPool,
    parse_endpoint,
)
from anbar.core.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable

LIMITS = UpstreamLimits(connect_timeout_s=5.0, first_byte_timeout_s=5.0, idle_timeout_s=5.0, keep_idle_s=30.0)
"""Wide enough for a machine that is busy with other tests."""
SHORT = replace(LIMITS, first_byte_timeout_s=0.3, idle_timeout_s=0.3)
"""For the tests in which an engine says nothing."""
REQUEST = b"POST /x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n"


class Sink:
    """Collects a body."""

    def __init__(self) -> None:
        self.data = b""
        self.end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.error: UpstreamBroken | None = None

    def body(self, data: bytes) -> None:
        self.data += data

    def ended(self) -> None:
        self.end.set_result(True)

    def broke(self, error: UpstreamBroken) -> None:
        self.error = error
        self.end.set_result(False)


def pool_of(port: int, limits: UpstreamLimits = LIMITS) -> UpstreamPool:
    return UpstreamPool(Endpoint("127.0.0.1", port), limits)


async def whole(reply: Reply) -> bytes:
    sink = Sink()
    reply.pump(sink)
    assert await asyncio.wait_for(sink.end, 3)
    return sink.data


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"hello world"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"hello world"),
    ],
)
async def test_connection_is_reused_after_a_whole_answer(answer: bytes) -> None:
    """Two requests, one connection, whatever the framing; the engine gets what was sent."""
    connections = 0
    bodies: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            bodies.append((await read_request(reader))[1])
            writer.write(answer)

    async with engine(script) as port:
        pool = pool_of(port)
        for _ in range(2):
            reply = await pool.ask(REQUEST, b"ab")
            assert (reply.status, await whole(reply)) == (200, b"hello world")
            reply.close()
        assert (connections, bodies, pool.num_idle) == (1, [b"ab", b"ab"], 1)
        pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        ok(b"ok") + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ok(b"ok") + b"garbage",
    ],
)
async def test_connection_is_not_reused_when_it_may_not_be(answer: bytes) -> None:
    """`Connection: close`, HTTP/1.0 and bytes behind the answer: the answer is right, the connection ends."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port)
        assert await whole(await pool.ask(REQUEST, b"ab")) == b"ok"
        assert pool.num_idle == 0


async def test_body_without_length_ends_with_the_connection() -> None:
    """An answer framed by the connection's end is complete when the engine closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await asyncio.sleep(0.02)
        writer.write(b"def")
        writer.close()

    async with engine(script) as port:
        assert await whole(await pool_of(port).ask(REQUEST, b"ab")) == b"abcdef"


async def test_stale_connection_is_replaced_once_and_the_request_runs_once() -> None:
    """The engine closes a kept connection as the next request arrives: it is sent again on a fresh one."""
    connections = executed = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, executed
        connections += 1
        await read_request(reader)
        executed += 1
        writer.write(ok(b"one"))
        if connections == 1:
            await reader.readexactly(1)
            writer.transport.abort()
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port)
        assert await whole(await pool.ask(REQUEST, b"ab")) == b"one"
        assert await whole(await pool.ask(REQUEST, b"ab")) == b"one"
        assert (connections, executed, pool.num_stale) == (2, 2, 1)
        pool.close()


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"])
async def test_no_second_execution_once_an_answer_began(begun: bytes) -> None:
    """A kept connection breaks after the first byte of an answer's head: an error, not a second try."""
    executed = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal executed
        for answer in (ok(b"one"), begun):
            await read_request(reader)
            executed += 1
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with engine(script) as port:
        pool = pool_of(port)
        await whole(await pool.ask(REQUEST, b"ab"))
        with pytest.raises(UpstreamUnreachable):
            await pool.ask(REQUEST, b"ab")
        assert (executed, pool.num_stale) == (2, 0)


async def test_fresh_connection_that_closes_is_not_tried_again() -> None:
    """An engine that closes every connection unanswered: one connection, one error."""
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)

    async with engine(script) as port:
        with pytest.raises(UpstreamUnreachable):
            await pool_of(port).ask(REQUEST, b"ab")
        assert connections == 1


async def test_refused_connection() -> None:
    """Nobody listens: ConnectFailed, which says that the engine never had the request."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Never runs."""

    async with engine(script) as port:
        pass
    with pytest.raises(ConnectFailed):
        await pool_of(port).ask(REQUEST, b"ab")


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"])
async def test_first_byte_timeout_counts_to_the_body(beginning: bytes) -> None:
    """An engine that sends nothing, or only a head: UpstreamTimeout, and its connection is closed."""
    closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(beginning)
        try:
            await reader.read()
        finally:
            closed.set()

    async with engine(script) as port:
        with pytest.raises(UpstreamTimeout):
            await pool_of(port, SHORT).ask(REQUEST, b"ab")
        await asyncio.wait_for(closed.wait(), 1)


async def test_silence_in_the_middle_breaks_the_answer() -> None:
    """A stream that stops for idle_timeout_s is broken."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await reader.read()

    async with engine(script) as port:
        sink = Sink()
        (await pool_of(port, SHORT).ask(REQUEST, b"ab")).pump(sink)
        assert not await asyncio.wait_for(sink.end, 2)
        assert sink.data == b"a"


async def test_paused_answer_is_not_taken_for_a_silent_one() -> None:
    """While this side does not want to read, the engine's silence is no fault."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
        await asyncio.sleep(0.05)
        writer.write(b"b")
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port, SHORT)
        sink = Sink()
        reply = await pool.ask(REQUEST, b"ab")
        reply.pump(sink)
        reply.pause()
        await asyncio.sleep(2 * SHORT.idle_timeout_s)
        assert sink.data == b"a"
        reply.resume()
        assert await asyncio.wait_for(sink.end, 2)
        assert sink.data == b"ab"
        pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\ncontent-length: 1\r\n\r\na",
    ],
)
async def test_what_is_no_http_is_unreachable(answer: bytes) -> None:
    """An engine that does not speak HTTP, or sends endless headers, counts as one that cannot be reached."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await reader.read()

    async with engine(script) as port:
        with pytest.raises(UpstreamUnreachable):
            await pool_of(port).ask(REQUEST, b"ab")


async def test_break_in_the_middle_is_told_to_the_sink() -> None:
    """The engine dies after a part of the body: `broke`, after all that had come."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
        await writer.drain()
        writer.close()

    async with engine(script) as port:
        sink = Sink()
        (await pool_of(port).ask(REQUEST, b"ab")).pump(sink)
        assert not await asyncio.wait_for(sink.end, 2)
        assert sink.data == b"abc"


@pytest.mark.parametrize("answered", [False, True])
async def test_giving_up_closes_the_connection(answered: bool) -> None:
    """Cancelled before the first byte, or closed after it: the engine sees its connection end at once."""
    seen = asyncio.Event()
    ended = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if answered:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
        seen.set()
        try:
            await reader.read()
        finally:
            ended.set()

    async with engine(script) as port:
        task = asyncio.create_task(pool_of(port).ask(REQUEST, b"ab"))
        await seen.wait()
        if answered:
            (await task).close()
        else:
            task.cancel()
        await asyncio.wait_for(ended.wait(), 1)


async def test_cancelled_request_does_not_kill_the_next_one_on_its_connection() -> None:
    """A whole answer arrives; its connection is given to another request before the first one's task runs
    again, and that task is cancelled: the other request is not harmed."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(ok(b"ok"))

    class Handing(UpstreamPool):
        """Hands a connection on the moment it is free, by taking the next request's first step itself."""

        def keep(self, connection: UpstreamConnection) -> None:
            super().keep(connection)
            if not first.cancelling():
                first.cancel()
                waiting.append(second.send(None))

    async with engine(script) as port:
        pool = Handing(Endpoint("127.0.0.1", port), LIMITS)
        waiting: list[asyncio.Future[Reply]] = []
        second = pool.ask(REQUEST, b"ab")
        first = asyncio.create_task(pool.ask(REQUEST, b"ab"))
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if waiting[0].done():
                break
        with pytest.raises(StopIteration) as stopped:
            second.send(None)
        assert await whole(stopped.value.value) == b"ok"
        pool.close()


async def test_unused_connection_is_closed_after_keep_idle() -> None:
    """A kept connection does not wait for the engine to close it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ok(b"ok"))
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port, UpstreamLimits(keep_idle_s=0.05))
        await whole(await pool.ask(REQUEST, b"ab"))
        assert pool.num_idle == 1
        await asyncio.sleep(0.12)
        assert pool.num_idle == 0


async def test_60_mb_through_a_paused_reply_stay_with_the_engine() -> None:
    """The reader of a 60 MB answer pauses: the engine cannot send on, and nothing is lost afterwards."""
    sent = 0
    total = 60_000_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000
        await reader.read()

    async with engine(script) as port:
        reply = await pool_of(port).ask(REQUEST, b"ab")
        received = 0
        end = asyncio.Event()

        class Counter:
            def body(self, data: bytes) -> None:
                nonlocal received
                received += len(data)

            def ended(self) -> None:
                end.set()

            def broke(self, error: UpstreamBroken) -> None:
                raise AssertionError(error)

        reply.pause()
        reply.pump(Counter())
        await asyncio.sleep(0.2)
        assert received < 1_000_000
        assert sent < 20_000_000
        reply.resume()
        await asyncio.wait_for(end.wait(), 10)
        assert received == total


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a certificate for localhost and of its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    directory = tmp_path_factory.mktemp("tls")
    key, cert = str(directory / "key.pem"), str(directory / "cert.pem")
    make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    subprocess.run([openssl, *make, *names], check=True, capture_output=True)
    return cert, key


async def test_https(certificate: tuple[str, str]) -> None:
    """An engine behind TLS: its certificate is checked, and connections are kept."""
    cert, key = certificate
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(cert, key)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await read_request(reader)
                writer.write(ok(b"secret"))
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()

    server = await asyncio.start_server(script, "127.0.0.1", 0, ssl=server_side)
    port = server.sockets[0].getsockname()[1]
    trusting = ssl.create_default_context(cafile=cert)
    pool = UpstreamPool(Endpoint("localhost", port, tls=trusting), LIMITS)
    for _ in range(2):
        assert await whole(await pool.ask(REQUEST, b"ab")) == b"secret"
    assert pool.num_idle == 1
    pool.close()
    stranger = UpstreamPool(Endpoint("localhost", port, tls=ssl.create_default_context()), LIMITS)
    with pytest.raises(ConnectFailed):
        await stranger.ask(REQUEST, b"ab")
    server.close()
    await asyncio.sleep(0.05)


async def test_fetch_reads_a_whole_answer_within_its_time() -> None:
    """`fetch` returns status and body; a body that does not end in time is UpstreamTimeout with the path."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/slow" in head:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
        else:
            writer.write(ok(b"[]"))
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port)
        got = await fetch(pool, "/quick", timeout_s=1)
        assert (got.status, got.body) == (200, b"[]")
        with pytest.raises(UpstreamTimeout, match="/slow"):
            await fetch(pool, "/slow", timeout_s=0.1)
        pool.close()


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "tls"),
    [
        ("http://10.0.0.5:8000", "10.0.0.5", 8000, b"", False),
        ("http://engine/", "engine", 80, b"", False),
        ("https://engine.example/gpu/a/", "engine.example", 443, b"/gpu/a", True),
        ("http://[::1]:8100", "::1", 8100, b"", False),
    ],
)
def test_endpoint_of_an_url(url: str, host: str, port: int, prefix: bytes, tls: bool) -> None:
    """Host, port, path prefix and TLS come from the URL."""
    end = parse_endpoint(url)
    assert (end.host, end.port, end.prefix, end.tls is not None) == (host, port, prefix, tls)


@pytest.mark.parametrize("url", ["ftp://a", "a:80", "http://", ""])
def test_what_is_no_url_is_refused(url: str) -> None:
    """Neither http nor https, or no host."""
    with pytest.raises(ValueError, match="http"):
        parse_endpoint(url)
