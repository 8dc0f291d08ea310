"""The pooled client against scripted engines: reuse, stale connections, timeouts, backpressure."""

import asyncio
import shutil
import ssl
import subprocess

import pytest
from loopback import UPSTREAM_LIMITS, PoolOf, WatchedPool, engine, ok, read_request
from manual_timers import ManualTimers
from tests.ports import free_port
from tests.waiting import PATIENCE_S, settled, until, within

from anbar.adapters.http.fetch import fetch
from anbar.adapters.http.upstream import ConnectFailed, Reply, UpstreamConnection, parse_endpoint
from anbar.core.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable

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


async def whole(reply: Reply) -> bytes:
    sink = Sink()
    reply.pump(sink)
    assert await within(sink.end)
    return sink.data


@pytest.mark.parametrize(
    "answer",
    [
        ok(b"hello world"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + ok(b"hello world"),
    ],
)
async def test_connection_is_reused_after_a_whole_answer(pool_of: PoolOf, answer: bytes) -> None:
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


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        ok(b"ok") + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ok(b"ok") + b"garbage",
    ],
)
async def test_connection_is_not_reused_when_it_may_not_be(pool_of: PoolOf, answer: bytes) -> None:
    """`Connection: close`, HTTP/1.0 and bytes behind the answer: the answer is right, the connection ends."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port)
        assert await whole(await pool.ask(REQUEST, b"ab")) == b"ok"
        assert pool.num_idle == 0


async def test_body_without_length_ends_with_the_connection(pool_of: PoolOf) -> None:
    """An answer framed by the connection's end is complete when the engine closes."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await more.wait()
        writer.write(b"def")
        writer.close()

    more = asyncio.Event()
    async with engine(script) as port:
        sink = Sink()
        (await pool_of(port).ask(REQUEST, b"ab")).pump(sink)
        assert sink.data == b"abc"
        more.set()
        assert await within(sink.end)
        assert sink.data == b"abcdef"


async def test_stale_connection_is_replaced_once_and_the_request_runs_once(pool_of: PoolOf) -> None:
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


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"])
async def test_no_second_execution_once_an_answer_began(pool_of: PoolOf, begun: bytes) -> None:
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


async def test_fresh_connection_that_closes_is_not_tried_again(pool_of: PoolOf) -> None:
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


async def test_refused_connection(pool_of: PoolOf) -> None:
    """Nobody listens: ConnectFailed, which says that the engine never had the request."""
    with pytest.raises(ConnectFailed):
        await pool_of(free_port()).ask(REQUEST, b"ab")


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"])
async def test_first_byte_timeout_counts_to_the_body(pool_of: PoolOf, beginning: bytes) -> None:
    """An engine that sends nothing, or only a head: UpstreamTimeout, and its connection is closed."""
    closed = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await read_request(reader)
            writer.write(beginning)
            await reader.read()
        finally:
            closed.set()

    async with engine(script) as port:
        with pytest.raises(UpstreamTimeout):
            await within(pool_of(port).ask(REQUEST, b"ab", first_byte_timeout_s=0.1))
        await within(closed.wait())


async def test_silence_in_the_middle_breaks_the_answer(pool_of: PoolOf) -> None:
    """A stream that stops for idle_timeout_s is broken."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await reader.read()

    async with engine(script) as port:
        timers = ManualTimers()
        sink = Sink()
        (await pool_of(port, timers=timers).ask(REQUEST, b"ab")).pump(sink)
        timers.advance(UPSTREAM_LIMITS.idle_timeout_s - 0.1)
        assert not sink.end.done()
        timers.advance(0.2)
        assert not await within(sink.end)
        assert sink.data == b"a"


async def test_paused_answer_is_not_taken_for_a_silent_one(pool_of: PoolOf) -> None:
    """While this side does not want to read, the engine's silence is no fault; afterwards it is."""
    more = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\na")
        await more.wait()
        writer.write(b"b")
        await reader.read()

    async with engine(script) as port:
        timers = ManualTimers()
        sink = Sink()
        reply = await pool_of(port, timers=timers).ask(REQUEST, b"ab")
        reply.pump(sink)
        reply.pause()
        more.set()
        timers.advance(10 * UPSTREAM_LIMITS.idle_timeout_s)
        assert not sink.end.done()
        assert await settled(lambda: sink.data) == b"a"
        reply.resume()
        await until(lambda: sink.data == b"ab")
        reply.pause()
        reply.resume()
        timers.advance(UPSTREAM_LIMITS.idle_timeout_s + 0.1)
        assert not await within(sink.end)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\ncontent-length: 1\r\n\r\na",
    ],
)
async def test_what_is_no_http_is_unreachable(pool_of: PoolOf, answer: bytes) -> None:
    """An engine that does not speak HTTP, or sends endless headers, counts as one that cannot be reached."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await reader.read()

    async with engine(script) as port:
        with pytest.raises(UpstreamUnreachable):
            await pool_of(port).ask(REQUEST, b"ab")


async def test_break_in_the_middle_is_told_to_the_sink(pool_of: PoolOf) -> None:
    """The engine dies after a part of the body: `broke`, after all that had come."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
        await writer.drain()
        writer.close()

    async with engine(script) as port:
        sink = Sink()
        (await pool_of(port).ask(REQUEST, b"ab")).pump(sink)
        assert not await within(sink.end)
        assert sink.data == b"abc"


@pytest.mark.parametrize("answered", [False, True])
async def test_giving_up_closes_the_connection(pool_of: PoolOf, answered: bool) -> None:
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
        await within(ended.wait())


async def test_cancelled_request_does_not_kill_the_next_one_on_its_connection() -> None:
    """A whole answer arrives; its connection is given to another request before the first one's task runs
    again, and that task is cancelled: the other request is not harmed."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(ok(b"ok"))

    class Handing(WatchedPool):
        """Hands a connection on the moment it is free, by taking the next request's first step itself."""

        def keep(self, connection: UpstreamConnection) -> None:
            super().keep(connection)
            if not first.cancelling():
                first.cancel()
                waiting.append(second.send(None))

    async with engine(script) as port:
        pool = Handing(port)
        waiting: list[asyncio.Future[Reply]] = []
        second = pool.ask(REQUEST, b"ab")
        first = asyncio.create_task(pool.ask(REQUEST, b"ab"))
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        await until(waiting[0].done)
        with pytest.raises(StopIteration) as stopped:
            second.send(None)
        assert await whole(stopped.value.value) == b"ok"
        pool.close()
        await until(lambda: not pool.open)


async def test_unused_connection_is_closed_after_keep_idle(pool_of: PoolOf) -> None:
    """A kept connection does not wait for the engine to close it."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ok(b"ok"))
        await reader.read()

    async with engine(script) as port:
        timers = ManualTimers()
        pool = pool_of(port, timers=timers)
        await whole(await pool.ask(REQUEST, b"ab"))
        timers.advance(UPSTREAM_LIMITS.keep_idle_s - 0.1)
        assert pool.num_idle == 1
        timers.advance(0.2)
        await until(lambda: pool.num_idle == 0)


async def test_60_mb_through_a_paused_reply_stay_with_the_engine(pool_of: PoolOf) -> None:
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
        assert await settled(lambda: sent) < 20_000_000
        assert received < 1_000_000
        reply.resume()
        await within(end.wait())
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


async def test_https(pool_of: PoolOf, certificate: tuple[str, str]) -> None:
    """An engine behind TLS: its certificate is checked, and connections are kept."""
    cert, key = certificate
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(cert, key)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(ok(b"secret"))

    async with engine(script, tls=server_side) as port:
        pool = pool_of(port, tls=ssl.create_default_context(cafile=cert))
        for _ in range(2):
            assert await whole(await pool.ask(REQUEST, b"ab")) == b"secret"
        assert pool.num_idle == 1
        stranger = pool_of(port, tls=ssl.create_default_context())
        with pytest.raises(ConnectFailed):
            await stranger.ask(REQUEST, b"ab")


async def test_fetch_reads_a_whole_answer_within_its_time(pool_of: PoolOf) -> None:
    """`fetch` returns status and body; a body that does not end in time is UpstreamTimeout with the path."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"/slow" not in await reader.readuntil(b"\r\n\r\n"):
            writer.write(ok(b"[]"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na")
        await reader.read()

    async with engine(script) as port:
        pool = pool_of(port)
        got = await fetch(pool, "/quick", timeout_s=PATIENCE_S)
        assert (got.status, got.body) == (200, b"[]")
        with pytest.raises(UpstreamTimeout, match="/slow"):
            await fetch(pool, "/slow", timeout_s=0.1)


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
