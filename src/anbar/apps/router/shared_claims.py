"""Idempotency keys that hold whichever worker a repetition comes to.

Of each key one worker is the keeper, by the key's name; the others ask it for the right to run a request and
give it the answer. A worker that runs a request and is gone has given the right back. When the keeper cannot
be asked, a worker decides by itself: then a repetition at another worker may run a second time.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum

import msgspec

from anbar.adapters.http.message import Answer, Header, Request
from anbar.adapters.peers.channel import LARGE_BYTES, Channel
from anbar.adapters.peers.connect import LOST, Local
from anbar.apps.router.changes import read_message
from anbar.apps.router.exchange import Answers, PeerExchange
from anbar.apps.router.idempotency import Claim, Entry, Idempotency, IdempotencyConfig, reused
from anbar.apps.router.worker import Worker
from anbar.apps.tasks import Tasks
from anbar.core.clock import Clock
from anbar.core.errors import RequestError

CLAIM = "claim"
_encode = msgspec.msgpack.encode


class Verdict(Enum):
    """What the keeper says."""

    RUN = "run"
    KEPT = "kept"
    REUSED = "reused"


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """What `Idempotency.identity` says of a request."""

    name: bytes
    fingerprint: bytes


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """An answer."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


class Said(msgspec.Struct, array_like=True, frozen=True):
    """The keeper's answer; `kept` with KEPT."""

    verdict: Verdict
    kept: Kept | None = None


class Settled(msgspec.Struct, array_like=True, frozen=True):
    """How the one that had the right to run ended; null: another one may."""

    kept: Kept | None


class SharedIdempotency(Idempotency):
    """A worker's part. `exchange` is called once there is a request."""

    def __init__(
        self, config: IdempotencyConfig, clock: Clock, worker: Worker, exchange: Callable[[], PeerExchange]
    ) -> None:
        super().__init__(config, clock)
        self._worker = worker
        self._exchange = exchange
        self._tasks = Tasks()

    async def claim(self, request: Request, owner: bytes = b"") -> Claim | Answer | None:
        identity = self.identity(request, owner)
        if identity is None:
            return None
        keeper = int.from_bytes(identity[0][:8], "little") % self._worker.count
        if keeper == self._worker.place:
            return await self.claim_here(*identity)
        return await self._claim_there(keeper, Asked(*identity))

    def answers(self) -> Mapping[str, Answers]:
        return {CLAIM: self._keep}

    async def stop(self) -> None:
        await self._tasks.give_up()

    async def _keep(self, channel: Channel, body: bytes) -> None:
        """Another worker asks; its right ends with the connection."""
        asked = read_message(body, Asked)
        try:
            claim = await self.claim_here(asked.name, asked.fingerprint)
        except RequestError:
            channel.send(_encode(Said(Verdict.REUSED)))
            return
        if isinstance(claim, Answer):
            kept = Kept(claim.status, claim.body, list(claim.headers))
            channel.send(_encode(Said(Verdict.KEPT, kept)))
            return
        with claim:
            channel.send(_encode(Said(Verdict.RUN)))
            found = read_message(await channel.receive(LARGE_BYTES), Settled).kept
            if found is not None:
                claim.keep_answer(_answer(found))
        channel.send(b"")

    async def _claim_there(self, keeper: int, asked: Asked) -> Claim | Answer:
        loop = asyncio.get_running_loop()
        said: asyncio.Future[Said] = loop.create_future()
        result: asyncio.Future[Kept | None] = loop.create_future()
        task = self._tasks.start(self._talk(keeper, asked, said, result))
        try:
            await asyncio.wait((task, said), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not said.done():
            return await self.claim_here(asked.name, asked.fingerprint)
        verdict = said.result()
        if verdict.verdict is Verdict.REUSED:
            raise reused()
        if verdict.kept is not None:
            return _answer(verdict.kept)
        return _ClaimThere(self, result, self.max_answer_bytes)

    async def _talk(
        self, keeper: int, asked: Asked, said: asyncio.Future[Said], result: asyncio.Future[Kept | None]
    ) -> None:
        """The connection on which a right is asked for, held and given back."""
        address = Local(Worker(keeper, self._worker.count, self._worker.directory).socket)
        try:
            async with self._exchange().asking(address, CLAIM) as channel:
                channel.send(_encode(asked))
                found = read_message(await channel.receive(LARGE_BYTES), Said)
                said.set_result(found)
                if found.verdict is Verdict.RUN:
                    channel.send(_encode(Settled(await result)))
                    await channel.receive()
        except LOST:
            return


class _ClaimThere(Claim):
    """The right to run a request, held at another worker."""

    def __init__(self, store: Idempotency, result: "asyncio.Future[Kept | None]", max_bytes: int) -> None:
        super().__init__(store, b"", Entry(b""), max_bytes)
        self._result = result

    def keep_answer(self, answer: Answer) -> None:
        if not self._result.done():
            self._result.set_result(Kept(answer.status, answer.body, list(answer.headers)))

    def __exit__(self, *failure: object) -> None:
        if not self._result.done():
            self._result.set_result(None)


def _answer(kept: Kept) -> Answer:
    headers: tuple[Header, ...] = tuple(kept.headers)
    return Answer(kept.status, kept.body, headers)
