"""What a server needs to imitate the failures of others: heads at once, bytes as they are, rude ends."""

import pytest
from loopback import LIMITS, connected, serving
from tests.waiting import until

from anbar.adapters.http.message import Answer
from anbar.adapters.http.server import Exchange, HttpServer

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


async def test_a_head_can_leave_before_the_body() -> None:
    """`flush` sends the head of a stream of which nothing is known yet; the body follows in chunks."""
    held: list[Exchange] = []

    def begin(exchange: Exchange) -> None:
        exchange.begin(200, b"", None)
        exchange.flush()
        held.append(exchange)

    async with serving(begin) as (_, port), connected(port) as client:
        await client.send(GET)
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        held[0].write(b"late")
        held[0].end()
        assert await client.until(b"0\r\n\r\n") == b"4\r\nlate\r\n0\r\n\r\n"


async def test_raw_bytes_and_an_orderly_end_in_the_middle() -> None:
    """Bytes pass as they are, and `hang_up` closes after them, although the answer is not complete."""

    def break_off(exchange: Exchange) -> None:
        exchange.write_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal")
        exchange.hang_up()
        exchange.write_raw(b"never")

    async with serving(break_off) as (_, port), connected(port) as client:
        await client.send(GET)
        assert await client.rest() == b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal"


async def test_an_exchange_of_raw_bytes_can_end_well() -> None:
    """After a whole answer of raw bytes the connection serves its next request."""

    def answer(exchange: Exchange) -> None:
        exchange.write_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n")
        exchange.write_raw(b"x")
        exchange.end()

    async with serving(answer) as (_, port), connected(port) as client:
        await client.send(GET * 2)
        first = await client.until(b"x")
        assert await client.until(b"x") == first


async def test_reset() -> None:
    """`reset` makes the client's next read fail rather than end."""

    def reset(exchange: Exchange) -> None:
        exchange.reset()

    async with serving(reset) as (server, port), connected(port) as client:
        await client.send(GET)
        with pytest.raises(ConnectionResetError):
            await client.rest()
        await until(lambda: not server.connections)


async def test_refusals_can_be_worded() -> None:
    """What is refused before it is a request gets the answer that `refusal_answer` makes."""
    said: list[int] = []

    def word(refusal, headers):
        said.append(refusal.status)
        return Answer(400, b"No.", ())

    server = HttpServer(lambda exchange: None, LIMITS, refusal_answer=word)
    port = await server.start("127.0.0.1", 0)
    try:
        async with connected(port) as client:
            await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            text = await client.rest()
    finally:
        await server.stop()
    assert text.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert text.endswith(b"\r\n\r\nNo.")
    assert said == [505]
