"""The HTTP server comes to its end: what runs is finished, nothing new is taken."""

import asyncio
import socket

import pytest
from loopback import connected, serving, unsent
from tests.ports import free_port
from tests.waiting import PATIENCE_S, settled, until

from anbar.adapters.http.message import Answer, json_answer
from anbar.adapters.http.server import Exchange

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


async def test_drain_finishes_what_runs_and_closes() -> None:
    """Drain with one answer in progress: no new connections; the answer completes, and closes."""
    held: list[Exchange] = []
    async with serving(held.append, port=free_port()) as (server, port), connected(port) as client:
        await client.send(GET)
        await until(lambda: held)
        draining = asyncio.create_task(server.drain(PATIENCE_S))
        await until(lambda: server.draining)
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
    held: list[Exchange] = []
    async with serving(held.append) as (server, port), connected(port) as client:
        await client.send(GET)
        await until(lambda: held)
        assert await server.drain(0.05) == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100001\r\n\r\nx", 413),
        (b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 200, 431),
    ],
)
async def test_drain_does_not_wait_for_a_client_that_was_refused(request_: bytes, status: int) -> None:
    """It has its answer and may send on for a while, so that it gets to read it: nothing that a drain
    finishes."""
    async with serving(lambda exchange: None) as (server, port), connected(port) as client:
        await client.send(request_)
        assert (await client.rest()).startswith(b"HTTP/1.1 %d " % status)
        assert server.connections
        assert await server.drain(0.0) == 0


async def test_drain_waits_for_what_is_written_but_not_sent() -> None:
    """An answer of 20 MB is complete for its handler while most of it waits for a slow client: a drain lets
    it arrive whole."""
    size = 20_000_000
    num_unsent: list[int] = []

    def large(exchange: Exchange) -> None:
        exchange.answer(Answer(200, b"x" * size, ()))
        num_unsent.append(unsent(exchange))

    async with serving(large) as (server, port), connected(port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await until(lambda: num_unsent)
        assert num_unsent[0] > size // 2
        draining = asyncio.create_task(server.drain(PATIENCE_S))
        await until(lambda: server.draining)
        await settled(draining.done)
        assert not draining.done()
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        text = await client.rest()
        assert await draining == 0
    assert len(text.partition(b"\r\n\r\n")[2]) == size


@pytest.mark.parametrize("turns", [0, 1, 3])  # after two, asyncio's loop itself has lost the socket
async def test_a_stop_meets_who_is_just_being_accepted(turns: int) -> None:
    """A connection that is made while a server stops is broken like those that were there, however far the
    loop has come with it."""
    async with serving(lambda exchange: exchange.answer(json_answer(200, "served"))) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(PATIENCE_S)
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            assert await asyncio.to_thread(_answer, client) == b""


def _answer(client: socket.socket) -> bytes:
    """The first byte of it; none when the connection is broken."""
    try:
        client.sendall(GET)
        return client.recv(1)
    except (BrokenPipeError, ConnectionResetError):
        return b""
