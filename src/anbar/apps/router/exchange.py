"""The exchange between routers: everybody tells everybody, and nobody is in the middle.

Each router dials all others and reads what they tell, first all that they have in flight, then each change.
A router whose connection ends, or that says nothing for `LEASE_S`, has nothing in flight any more; it is
dialled again. Two routers that find each other under several addresses keep one connection each way.

No request waits for any of this. Changes are gathered for `GATHER_S` and written to each connection without
waiting; whoever reads too slowly gets nothing more until it has read what it has, and then everything anew.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec

from anbar.adapters.peers.channel import LARGE_BYTES, Channel
from anbar.adapters.peers.connect import LOST, Address, Listener, Local, Remote, dialled
from anbar.apps.router.changes import Change, Drains, decode, encode, read_message
from anbar.apps.router.sharing import PeerShare, Told
from anbar.core.errors import WireError
from anbar.core.outcome import Emit, SupervisorCaught

VERSION = 1
GATHER_S = 0.002
"""Changes of this long go into one message; the first after a pause goes at once."""
BEAT_S = 1.0
"""Something is said at least so often."""
LEASE_S = 10.0
"""Who has said nothing for so long has nothing in flight: a busy machine may stall a process for seconds."""
BEHIND_BYTES = 4 * 1024 * 1024
"""What may wait for a reader before it gets nothing more."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
"""Between two tries of an address."""
ASK_S = 5.0
"""How long a question may take before its answer is no longer waited for."""

_FOLLOW = "follow"


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Who dials, and for what: to follow, or one question."""

    version: int
    router: str
    wants: str


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """Who answers. Its siblings listen on the same host, on `num_ports` ports from `port` on; 0: nowhere."""

    version: int
    router: str
    port: int
    num_ports: int


Answers = Callable[[Channel, bytes], Awaitable[None]]
"""Answers one question, whose body it gets, by sending on the channel."""


@dataclass(eq=False)
class Follower:
    """Another router that hears this one."""

    channel: Channel
    is_behind: bool = False


@dataclass(eq=False)
class Peer:
    """An address that is dialled."""

    pause_s: float = FIRST_PAUSE_S
    """Before the next try."""
    failure: str = ""
    """Why the last try was in vain."""
    siblings: tuple[Address, ...] = ()
    """Those that it has named."""


def _nowhere(address: str, failure: str) -> None:
    """Nobody reads it."""


@dataclass(frozen=True, slots=True)
class ExchangeParts:
    """What an exchange works with. `resolve` gives the addresses that are to be dialled now; `port` and
    `num_ports` are where this router and its siblings listen, for others; `drains` hears of drained
    engines, `on_failure` of an address of the network that cannot be followed for a reason that is new."""

    told: Told
    share: Callable[[], PeerShare]
    listen: Sequence[Address]
    resolve: Callable[[], Awaitable[Sequence[Address]]]
    drained: Callable[[], Sequence[Drains]]
    on_drains: Callable[[Drains], None]
    emit: Emit
    port: int = 0
    num_ports: int = 0
    on_failure: Callable[[str, str], None] = _nowhere
    lease_s: float = LEASE_S


class PeerExchange:
    """See the module's text."""

    def __init__(self, parts: ExchangeParts, answers: Mapping[str, Answers]) -> None:
        self._parts = parts
        self._answers = answers
        self.router = secrets.token_hex(8)
        """Of this life of this router."""
        self.followed: dict[str, tuple[Address, PeerShare]] = {}
        """Those whose changes are here, by their names."""
        self.num_dropped = 0
        """Changes that a reader did not get because it was behind."""
        self._followers: set[Follower] = set()
        self.dialling: dict[Address, asyncio.Task[None]] = {}
        self.peers: dict[Address, Peer] = {}
        """What became of dialling them."""
        self._not_tried: set[Address] = set()
        self._has_looked = asyncio.Event()
        self._listener = Listener(self._serve)
        self._outbox: list[Change] = []
        self._is_gathering = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen and dial. Raises OSError when it cannot listen."""
        for address in self._parts.listen:
            await self._listener.listen(address)
        self._parts.told.tell = self.tell
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._beat()), loop.create_task(self._find())]

    async def introduced(self, limit_s: float) -> None:
        """Wait until each of those who were found first is followed or was not to be reached."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._has_looked.wait()
                while self._not_tried:  # noqa: ASYNC110 - once in a life
                    await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End all connections."""
        tasks = [*self._tasks, *self.dialling.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.stop()

    # What this router tells

    def tell(self, change: Change) -> None:
        """Pass a change on to all who follow, soon."""
        if not self._followers:
            return
        self._outbox.append(change)
        if not self._is_gathering:
            self._is_gathering = True
            asyncio.get_running_loop().call_soon(self._flush, True)

    def _flush(self, gather: bool) -> None:
        changes, self._outbox = self._outbox, []
        if changes:
            message = encode(changes)
            for follower in self._followers:
                self._send(follower, message, len(changes))
        self._is_gathering = bool(changes) and gather
        if self._is_gathering:
            asyncio.get_running_loop().call_later(GATHER_S, self._flush, True)

    def _send(self, follower: Follower, message: bytes, num_changes: int) -> None:
        waiting = follower.channel.num_waiting_bytes
        if follower.is_behind and not waiting:
            follower.is_behind = False
            follower.channel.send(self._everything())  # with this message's changes in it
        elif follower.is_behind or waiting > BEHIND_BYTES:
            follower.is_behind = True
            self.num_dropped += num_changes
        else:
            follower.channel.send(message)

    def _everything(self) -> bytes:
        return encode([*self._parts.told.everything(), *self._parts.drained()])

    async def _beat(self) -> None:
        message = encode([])
        while True:
            await asyncio.sleep(BEAT_S)
            self._outbox_now()  # or who gets everything now would get this twice
            for follower in self._followers:
                self._send(follower, message, 0)

    # Who comes

    async def _serve(self, channel: Channel) -> None:
        hello, parts = read_message(await channel.receive(), Hello), self._parts
        channel.send(msgspec.msgpack.encode(Welcome(VERSION, self.router, parts.port, parts.num_ports)))
        if hello.version != VERSION:  # who has dialled sees ours
            raise WireError(f"a peer speaks version {hello.version}")
        if hello.wants != _FOLLOW:
            await self._answer(channel, hello.wants)
            return
        await channel.receive()  # who follows us already, under another address, goes without
        follower = Follower(channel)
        self._outbox_now()
        channel.send(self._everything())
        self._followers.add(follower)
        try:
            while True:
                await channel.receive()  # nothing comes; until the end
        finally:
            self._followers.discard(follower)

    def _outbox_now(self) -> None:
        """What waits is in everything that a new follower gets."""
        if self._outbox:
            self._flush(False)
            self._is_gathering = True  # the flush that was planned still comes

    async def _answer(self, channel: Channel, wants: str) -> None:
        answers = self._answers.get(wants)
        if answers is None:
            raise WireError(f"a peer asks for {wants[:40]!r}")
        await answers(channel, await channel.receive())

    # Whom this router follows

    async def _find(self) -> None:
        """Dial whoever there is, and look again for others now and then."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the supervisor of the search for peers
                self._parts.emit(SupervisorCaught.of("peers", error))
            self._has_looked.set()
            await asyncio.sleep(LONGEST_PAUSE_S)

    async def look(self) -> None:
        """Dial whom the names stand for now, and nobody else."""
        found = await self._parts.resolve()
        for address in found:
            self._dial(address)
        self._forget_all_but(found)

    def _dial(self, address: Address) -> None:
        if address not in self.dialling:
            peer = self.peers[address] = Peer()
            task = asyncio.get_running_loop().create_task(self._follow(address, peer))
            self.dialling[address] = task
            self._not_tried.add(address)

    def _forget_all_but(self, found: Sequence[Address]) -> None:
        """An address that names no longer stand for, where nobody is followed, and that nobody names who is
        found or followed: pods have new ones with every rollout."""
        kept = {*found, *self.addresses()}
        kept.update(*(peer.siblings for address, peer in self.peers.items() if address in kept))
        for address in self.dialling.keys() - kept:
            self.dialling.pop(address).cancel()
            self.peers.pop(address, None)
            self._not_tried.discard(address)

    async def _follow(self, address: Address, peer: Peer) -> None:
        while True:
            try:
                async with dialled(address) as channel:
                    await self._followed(address, peer, channel)
            except LOST as error:
                self._failed(address, peer, error)
            except Exception as error:  # noqa: BLE001 - the supervisor of one peer
                self._parts.emit(SupervisorCaught.of("peer", error))
            self._not_tried.discard(address)
            await asyncio.sleep(peer.pause_s)
            peer.pause_s = min(LONGEST_PAUSE_S, 2 * peer.pause_s)

    def _failed(self, address: Address, peer: Peer, error: Exception) -> None:
        failure = (
            (error.strerror if isinstance(error, OSError) else None) or str(error) or "no answer in time"
        )
        if failure != peer.failure and isinstance(address, Remote):
            self._parts.on_failure(f"{address.host}:{address.port}", failure)
        peer.failure = failure

    async def _followed(self, address: Address, peer: Peer, channel: Channel) -> None:
        """Follow until the connection ends, unless this is a router that is followed already, or this
        one."""
        welcome = await self._greet(channel, _FOLLOW)
        if isinstance(address, Remote):
            ports = range(welcome.port, welcome.port + welcome.num_ports)
            peer.siblings = tuple(Remote(address.host, port, address.secret) for port in ports)
            for sibling in peer.siblings:
                self._dial(sibling)
        if welcome.router == self.router or welcome.router in self.followed:
            return
        channel.send(b"")
        share = self._parts.share()
        self.followed[welcome.router] = address, share
        try:
            while True:
                self._not_tried.discard(address)
                async with asyncio.timeout(self._parts.lease_s):
                    message = await channel.receive(LARGE_BYTES)
                for change in decode(message):
                    if isinstance(change, Drains):
                        self._parts.on_drains(change)
                    else:
                        share.take(change)
                peer.pause_s, peer.failure = FIRST_PAUSE_S, ""
        finally:
            share.lost()
            del self.followed[welcome.router]

    async def _greet(self, channel: Channel, wants: str) -> Welcome:
        channel.send(msgspec.msgpack.encode(Hello(VERSION, self.router, wants)))
        async with asyncio.timeout(ASK_S):
            welcome = read_message(await channel.receive(), Welcome)
        if welcome.version != VERSION:
            raise WireError(f"a peer speaks version {welcome.version}")
        return welcome

    # Questions

    def addresses(self, *, local: bool = False) -> list[Address]:
        """Of the routers that are followed; `local`: of those on this machine."""
        return [address for address, _ in self.followed.values() if not local or isinstance(address, Local)]

    @asynccontextmanager
    async def asking(self, address: Address, wants: str) -> AsyncIterator[Channel]:
        """A connection on which another router answers a question. Raises one of `LOST`."""
        async with dialled(address) as channel:
            await self._greet(channel, wants)
            yield channel

    async def ask(self, address: Address, wants: str, body: bytes, timeout_s: float = ASK_S) -> bytes | None:
        """Another router's answer to a question; None if there is none in time."""
        with suppress(*LOST):
            async with asyncio.timeout(timeout_s), self.asking(address, wants) as channel:
                channel.send(body)
                return await channel.receive(LARGE_BYTES)
        return None

    async def ask_all(self, wants: str, body: bytes, *, local: bool = False) -> list[tuple[Address, bytes]]:
        """The answers of all routers that are followed and answer in time."""
        asked = self.addresses(local=local)
        found = await asyncio.gather(*(self.ask(address, wants, body) for address in asked))
        return [(address, answer) for address, answer in zip(asked, found, strict=True) if answer is not None]
