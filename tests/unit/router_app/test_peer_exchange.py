"""Between routers: what a slow reader gets, what a stranger gets, and which configurations are refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from scripted import engine_at
from tests.ports import free_port
from tests.waiting import until, within

from anbar.adapters.peers.channel import LARGE_BYTES, Channel
from anbar.adapters.peers.connect import LOST, Address, Listener, Local, Remote, dialled
from anbar.apps.router.changes import Anew, Drains, Held, Placed, decode, encode
from anbar.apps.router.engine import Fleet
from anbar.apps.router.exchange import (
    FIRST_PAUSE_S,
    LEASE_S,
    Answers,
    ExchangeParts,
    Hello,
    PeerExchange,
    Welcome,
)
from anbar.apps.router.exchange_setup import Addresses, is_shared, listens_at, ports_of, secret_of
from anbar.apps.router.sharing import PeerShare, Told, packed
from anbar.apps.router.worker import Worker
from anbar.config.models import RouterConfig
from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillWork
from anbar.core.errors import ConfigError
from anbar.core.ids import ChainHash, EngineId
from anbar.route.placements import Placements
from anbar.route.waiting import QueuedPrompt

A = EngineId("a")
PROMPT = QueuedPrompt(PrefillWork(1, 1), 0.1, True)


def exchange_at(at: Path | Remote, told: Told, answers: Mapping[str, Answers] | None = None) -> PeerExchange:
    async def nobody() -> Sequence[Address]:
        return ()

    def no_share() -> PeerShare:
        raise AssertionError("nobody is followed")

    parts = ExchangeParts(
        told=told,
        share=no_share,
        listen=(at if isinstance(at, Remote) else Local(at),),
        resolve=nobody,
        drained=lambda: [Drains("a", True, 1.0)],
        on_drains=lambda word: None,
        emit=lambda event: None,
    )
    return PeerExchange(parts, answers or {})


def following(
    resolve: Callable[[], Awaitable[Sequence[Address]]],
    on_failure: Callable[[str, str], None] = lambda name, failure: None,
    lease_s: float = LEASE_S,
    kind: type[PeerShare] = PeerShare,
) -> PeerExchange:
    engine = engine_at(1, "a")

    def share() -> PeerShare:
        return kind(Fleet([engine]), Placements(), ManualClock())

    parts = ExchangeParts(
        *(Told(), share, (), resolve, tuple, lambda word: None, lambda event: None),
        on_failure=on_failure,
        lease_s=lease_s,
    )
    return PeerExchange(parts, {})


async def follow(channel: Channel, version: int = 1) -> Welcome:
    channel.send(msgspec.msgpack.encode(Hello(version, "me", "follow")))
    welcome = msgspec.msgpack.decode(await within(channel.receive()), type=Welcome)
    channel.send(b"")
    return welcome


async def all_of(channel: Channel) -> None:
    while True:
        await within(channel.receive())


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory(prefix="anbar-", dir="/tmp") as directory:  # a socket's path is a short one
        yield Path(directory, "s")


async def test_a_slow_reader_gets_nothing_and_then_everything_anew(path: Path) -> None:
    """One that does not read is passed over once 4 MiB wait for it, and no more than that is kept for it;
    when it reads again it is told all that is in flight, and what came since."""
    told = Told()
    own = exchange_at(path, told)
    await own.start()
    chain = packed([ChainHash(number) for number in range(50_000)])
    async with dialled(Local(path)) as channel:
        await follow(channel)
        assert decode(await within(channel.receive())) == [Anew(), Drains("a", True, 1.0)]
        numbers = []

        def tell_much() -> bool:
            numbers.append(told.placed(A, [ChainHash(number) for number in range(50_000)]))
            return own.num_dropped > 0

        await until(tell_much)
        for number in numbers[1:]:
            told.left(number)
        last = told.held(A, PROMPT)
        changes = []
        while not any(getattr(change, "number", None) == last for change in changes):
            changes += decode(await within(channel.receive(LARGE_BYTES)))
        anew = max(place for place, change in enumerate(changes) if change == Anew())
        assert Placed(numbers[0], "a", chain) in changes[anew:]
        assert {change.number for change in changes[anew:] if isinstance(change, Placed)} == {numbers[0]}
    await own.stop()


async def test_strangers_are_cut_off(path: Path) -> None:
    """Another version, an unknown question, and bytes that are no greeting end the connection, and nothing
    else."""
    own = exchange_at(path, Told())
    await own.start()
    for hello in (Hello(99, "me", "follow"), Hello(1, "me", "secrets")):
        async with dialled(Local(path)) as channel:
            channel.send(msgspec.msgpack.encode(hello))
            with pytest.raises(LOST):
                await all_of(channel)
    async with dialled(Local(path)) as channel:
        channel.send(b"GET / HTTP/1.1")
        with pytest.raises(LOST):
            await within(channel.receive())
    async with dialled(Local(path)) as channel:
        assert (await follow(channel)).router == own.router
    await own.stop()


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def router_of(**settings: object) -> RouterConfig:
    return RouterConfig.model_validate(settings)


def test_a_secret_is_needed_on_the_network(tmp_path: Path) -> None:
    """None, one that all may read, one that is too short and a missing file are named; without peers none is
    read."""
    listen = {"listen": "127.0.0.1:7000"}
    for exchange, words in (
        (listen, "needed with"),
        ({**listen, "secret_file": write(tmp_path / "open", "s" * 32, 0o604)}, "everybody"),
        ({**listen, "secret_file": write(tmp_path / "short", "s" * 31)}, "31 bytes"),
        ({**listen, "secret_file": tmp_path / "none"}, "No such file"),
    ):
        with pytest.raises(ConfigError, match=words):
            secret_of(router_of(exchange=exchange))
    good = {"secret_file": write(tmp_path / "good", "s" * 32 + "\n")}
    assert secret_of(router_of(exchange={**listen, **good})) == b"s" * 32
    assert secret_of(router_of(peers=["a:1"], exchange=good)) == b"s" * 32
    assert secret_of(router_of(exchange={"secret_file": tmp_path / "none"})) == b""


async def test_addresses(tmp_path: Path) -> None:
    """A worker knows its siblings by their places; names stand for their addresses, one that is not known
    for nobody. Each worker listens on a port of its own."""
    router = router_of(
        workers=3, peers=["127.0.0.1:7000", "nobody.invalid:7000"], exchange={"listen": "[::1]:7000"}
    )
    worker = Worker(1, 3, tmp_path)
    assert is_shared(router, worker)
    assert not is_shared(router_of(), None)
    assert listens_at(router, worker, b"s") == [Local(tmp_path / "1.sock"), Remote("::1", 7001, b"s")]
    assert ports_of(router) == (7000, 3)
    assert await Addresses(router, worker, b"s")() == [
        Local(tmp_path / "0.sock"),
        Local(tmp_path / "2.sock"),
        Remote("127.0.0.1", 7000, b"s"),
    ]


async def test_addresses_that_nobody_has_any_more_are_forgotten(path: Path) -> None:
    """Names stand for other addresses with every look: only those that they stand for now, and one where a
    router is followed, are dialled."""
    told, looks = Told(), 0
    other = exchange_at(path, told)
    await other.start()

    async def resolve() -> Sequence[Address]:
        nonlocal looks
        looks += 1
        gone = Local(path.with_suffix(f".gone{looks}"))
        return (gone, Local(path)) if looks == 1 else (gone,)

    own = following(resolve)
    for count in range(1, 4):
        await own.look()
        await until(lambda: len(own.followed) == 1)
        dialled_now = {Local(path), Local(path.with_suffix(f".gone{count}"))}
        assert set(own.dialling) == dialled_now
    await other.stop()
    await until(lambda: not own.followed)
    await own.look()
    assert set(own.dialling) == {Local(path.with_suffix(".gone4"))}
    await own.stop()


async def test_what_a_silent_router_had_in_flight_ends(path: Path) -> None:
    """It tells of a request and then nothing more, on a connection that stays: when its lease is over its
    request is no load any more. It is dialled again, and tells that it has the request still."""
    ended = list[int]()

    class Watched(PeerShare):
        def lost(self) -> None:
            before = self.num_in_flight
            super().lost()
            if before:
                ended.append(before - self.num_in_flight)

    async def serve(channel: Channel) -> None:
        await channel.receive()
        channel.send(msgspec.msgpack.encode(Welcome(1, "other", 0, 0)))
        await channel.receive()
        channel.send(encode([Anew(), Held(1, A, 100, 10_000, 1.0, True, False)]))
        await asyncio.Event().wait()

    async def resolve() -> Sequence[Address]:
        return (Local(path),)

    listener = Listener(serve)
    await listener.listen(Local(path))
    own = following(resolve, lease_s=0.05, kind=Watched)
    await own.start()
    await until(lambda: ended[:2] == [1, 1])
    await own.stop()
    await listener.stop()


async def test_why_a_router_is_not_followed_is_told_once(path: Path) -> None:
    """An address where nobody listens, then one that has another secret, then one that is right: each reason
    is told once, however often it is tried, and once it is followed it is tried at short pauses again."""
    port, told = free_port(), list[str]()
    own_secret, other_secret = b"s" * 32, b"t" * 32
    address = Remote("127.0.0.1", port, own_secret)

    async def resolve() -> Sequence[Address]:
        return (address,)

    own = following(resolve, lambda name, failure: told.append(failure))
    await own.look()
    await until(lambda: own.peers[address].pause_s > 2 * FIRST_PAUSE_S)
    assert len(told) == 1
    wrong = exchange_at(Remote("127.0.0.1", port, other_secret), Told())
    await wrong.start()
    await until(lambda: len(told) > 1)
    assert told[1:] == ["a peer ends the connection: it has another secret"]
    await wrong.stop()
    right = exchange_at(Remote("127.0.0.1", port, own_secret), Told())
    await right.start()
    await until(lambda: bool(own.followed))
    await until(lambda: own.peers[address].pause_s == FIRST_PAUSE_S)
    assert not own.peers[address].failure
    await right.stop()
    await own.stop()
