"""Requests that a client repeats under the same `Idempotency-Key` get the first one's answer.

Kept are whole answers of 2xx to requests that do not stream, for `window_s` seconds and in `max_bytes` of
memory, the oldest going first. A repetition that comes while the first runs waits for it; if that one fails
or is given up, the one that has waited longest runs in its place. The same key with another body is refused.
A key belongs to whoever sends the same `authorization`, and is of the same tenant.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from anbar.adapters.http.message import Answer, Header, Request
from anbar.adapters.peers.channel import Channel
from anbar.apps.router.headers import CLIENT_SECRETS
from anbar.core.clock import Clock
from anbar.core.errors import RequestError

HEADER = b"idempotency-key"
REPLAYED: Header = (b"idempotent-replayed", b"true")
_MAX_KEY_BYTES = 255
_ENTRY_BYTES = 1024
"""What an entry takes beside its body, roughly."""


@dataclass(frozen=True, slots=True)
class IdempotencyConfig:
    """How long and how much is kept; a window of 0 keeps nothing, and the header has no effect."""

    window_s: float = 600.0
    max_bytes: int = 64 * 1024**2


@dataclass(slots=True)
class Entry:
    fingerprint: bytes
    answer: Answer | None = None
    """None while the first request runs."""
    kept_s: float = 0.0
    waiting: list["asyncio.Future[None]"] = field(default_factory=list)


class Claim:
    """The right to run a request; use it in a `with`. Without `keep`, the next one that waits gets it."""

    def __init__(self, store: "Idempotency", name: bytes, entry: Entry, max_bytes: int) -> None:
        self._store = store
        self._name = name
        self._entry = entry
        self._parts: list[bytes] = []
        self._room = max_bytes

    def __enter__(self) -> "Claim":
        return self

    def body(self, data: bytes) -> None:
        """A part of the answer's body has passed."""
        self._room -= len(data)
        if self._room >= 0:
            self._parts.append(data)

    def keep(self, status: int, headers: tuple[Header, ...]) -> None:
        """The answer is whole and good: it is what repetitions get, unless it is longer than all may be."""
        if self._room >= 0:
            self.keep_answer(Answer(status, b"".join(self._parts), headers))

    def keep_answer(self, answer: Answer) -> None:
        """As `keep`, of an answer that somebody else has put together."""
        self._entry.answer = answer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.settle(self._name, self._entry)


class Idempotency:
    """Within one event loop."""

    def __init__(self, config: IdempotencyConfig, clock: Clock) -> None:
        self.config = config
        """May be replaced at any time."""
        self._clock = clock
        self._running: dict[bytes, Entry] = {}
        self._kept: OrderedDict[bytes, Entry] = OrderedDict()
        """In the order in which they were kept, which is that in which they expire."""
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._kept)

    async def claim(self, request: Request, owner: bytes = b"") -> Claim | Answer | None:
        """The right to run `request` of the tenant `owner`, or the answer that it had; None when it carries
        no key. Raises RequestError: 400 for a key that is none, 422 for the key of another request."""
        identity = self.identity(request, owner)
        return None if identity is None else await self.claim_here(*identity)

    def identity(self, request: Request, owner: bytes) -> tuple[bytes, bytes] | None:
        """The name of a request among those of all clients and tenants, and what tells it from another one
        under its key; None when it carries no key. Raises RequestError for a key that is none."""
        key = request.header(HEADER)
        if key is None or not self.config.window_s:
            return None
        if not 0 < len(key) <= _MAX_KEY_BYTES:
            raise RequestError(f"An Idempotency-Key has 1 to {_MAX_KEY_BYTES} bytes.", code="invalid_value")
        secrets = (request.header(header) or b"" for header in CLIENT_SECRETS)
        return _digest(owner, *secrets, request.target, key), _digest(request.body)

    async def claim_here(self, name: bytes, fingerprint: bytes) -> Claim | Answer:
        """As `claim`, by what `identity` says."""
        while True:
            self._expire()
            entry = self._kept.get(name) or self._running.get(name)
            if entry is None:
                entry = self._running[name] = Entry(fingerprint)
                return Claim(self, name, entry, self.max_answer_bytes)
            if entry.fingerprint != fingerprint:
                raise reused()
            if entry.answer is not None:
                return entry.answer
            await _turn(entry)

    @property
    def max_answer_bytes(self) -> int:
        """Longest answer that is kept."""
        return self.config.max_bytes - _ENTRY_BYTES

    def answers(self) -> Mapping[str, Callable[[Channel, bytes], Awaitable[None]]]:
        """What other routers may ask of it: nothing."""
        return {}

    async def stop(self) -> None:
        """Give up what runs by itself: nothing does."""

    def settle(self, name: bytes, entry: Entry) -> None:
        """A claim is over: what it kept is kept for all, or the next one may run."""
        del self._running[name]
        if entry.answer is not None:
            entry.kept_s = self._clock.now_s()
            self._kept[name] = entry
            self.num_bytes += _size(entry)
            while self.num_bytes > self.config.max_bytes:
                self._forget_oldest()
        for waiter in entry.waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _expire(self) -> None:
        limit_s = self._clock.now_s() - self.config.window_s
        while self._kept and next(iter(self._kept.values())).kept_s <= limit_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, entry = self._kept.popitem(last=False)
        self.num_bytes -= _size(entry)


async def _turn(entry: Entry) -> None:
    """Wait for the request that runs. All that wait look again, in their order."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    entry.waiting.append(waiter)
    await waiter


def reused() -> RequestError:
    """A key comes with another request than before."""
    return RequestError(
        "This Idempotency-Key was used with another body.", status=422, code="idempotency_key_reused"
    )


def kept_headers(headers: Sequence[Header]) -> tuple[Header, ...]:
    """What a repetition gets of the first answer's headers: those that its body needs."""
    return tuple(header for header in headers if header[0] in (b"content-type", b"content-encoding"))


def _size(entry: Entry) -> int:
    return _ENTRY_BYTES + (len(entry.answer.body) if entry.answer is not None else 0)


def _digest(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.digest()
