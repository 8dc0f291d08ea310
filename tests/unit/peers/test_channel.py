"""Connections between routers: who may speak, and what passes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.ports import free_port
from tests.waiting import within

from anbar.adapters.peers.channel import SMALL_BYTES, Channel, Seal
from anbar.adapters.peers.connect import LOST, Address, Listener, Local, Remote, dialled
from anbar.core.errors import WireError

SECRET = b"s" * 32


async def echo(channel: Channel) -> None:
    while True:
        channel.send(await channel.receive())


@asynccontextmanager
async def echoing(address: Address) -> AsyncIterator[None]:
    listener = Listener(echo)
    await listener.listen(address)
    try:
        yield
    finally:
        await listener.stop()


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest) -> Iterator[Address]:
    with TemporaryDirectory(prefix="anbar-", dir="/tmp") as directory:  # a socket's path is a short one
        unix = request.param == "unix"
        yield Local(Path(directory, "s")) if unix else Remote("127.0.0.1", free_port(), SECRET)


async def test_messages_pass_whole_and_in_order(address: Address) -> None:
    """Empty ones, small ones and one of the greatest length."""
    messages = [b"", b"a", b"b" * 70_000, b"c" * SMALL_BYTES]
    async with echoing(address), dialled(address) as channel:
        for message in messages:
            channel.send(message)
        assert [await within(channel.receive()) for _ in messages] == messages


async def test_too_long_a_message_ends_the_connection(address: Address) -> None:
    """The other side does not take it in."""
    async with echoing(address), dialled(address) as channel:
        channel.send(b"x" * (SMALL_BYTES + 1))
        with pytest.raises(LOST):
            await within(channel.receive())


async def test_another_secret_is_refused() -> None:
    """Neither side takes a message from one who does not know the secret, and the one who has dialled learns
    nothing to guess it by: it has nothing but a random number."""
    address = Remote("127.0.0.1", free_port(), SECRET)
    async with echoing(address):
        with pytest.raises(LOST):
            await dialled(Remote(address.host, address.port, b"t" * 32)).__aenter__()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"n" * 32 + b"p" * 32)
        assert len(await within(reader.read())) == 32
        writer.close()


async def test_a_server_without_the_secret_is_not_believed() -> None:
    """It cannot answer the client's random number."""
    port = free_port()

    async def pretends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"n" * 32)
        await reader.readexactly(64)
        writer.write(b"p" * 32)
        writer.close()

    server = await asyncio.start_server(pretends, "127.0.0.1", port)
    with pytest.raises(WireError):
        await dialled(Remote("127.0.0.1", port, SECRET)).__aenter__()
    server.close()


def test_codes_are_of_a_message_a_place_and_a_direction() -> None:
    """A frame that is repeated, moved or sent back does not have the code that is expected."""
    seal = Seal(b"k" * 32)
    first, second = seal.code(b"m"), seal.code(b"m")
    assert first != second
    assert Seal(b"k" * 32).code(b"m") == first
    assert Seal(b"j" * 32).code(b"m") != first
    assert Seal(b"k" * 32).code(b"n") != first
