"""What is asked of a server about one entry, and what its reply means."""

from dataclasses import dataclass
from typing import Protocol

from anbar.adapters.store.buffers import as_bytes
from anbar.adapters.store.record import HEADER_BYTES, RecordFormat
from anbar.adapters.store.valkey.names import damaged_name
from anbar.adapters.store.valkey.replies import OtherLength, ProtocolError, ServerError
from anbar.adapters.store.valkey.wire import Request, Wire
from anbar.tier.store import Outcome, Scope

Result = Outcome | ServerError

_PIECE_BYTES = 256 * 1024
"""A value is checked in pieces that are still in the processor's cache when they have come."""


class Command(Protocol):
    """Sent to the node that has the entry; it may be sent again, to another one."""

    @property
    def name(self) -> bytes:
        """The entry's name in the server."""
        ...

    def request(self) -> Request:
        """What to send."""
        ...

    def receive(self, wire: Wire, deadline_s: float) -> Result:
        """Read the reply."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A command that is answered by 1 when the entry was there, and by 0 when not."""

    name: bytes
    verb: bytes
    arguments: tuple[bytes, ...] = ()

    def request(self) -> Request:
        return (self.verb, self.name, *self.arguments)

    def receive(self, wire: Wire, deadline_s: float) -> Result:
        reply = wire.reply(deadline_s)
        if isinstance(reply, ServerError):
            return reply
        if not isinstance(reply, int):
            raise ProtocolError(f"not a count but {reply!r:.50}")
        return Outcome.HIT if reply else Outcome.MISS


def exists(name: bytes) -> Ask:
    """Whether an entry is there."""
    return Ask(name, b"EXISTS")


def renew(name: bytes, ttl_s: int | None) -> Ask:
    """Whether an entry is there; if so, its life begins anew."""
    return exists(name) if ttl_s is None else Ask(name, b"EXPIRE", (b"%d" % ttl_s,))


def remove(name: bytes) -> Ask:
    """Whether an entry was there, which is none afterwards."""
    return Ask(name, b"UNLINK")


class KeepAside:
    """Gives a damaged entry another name. MISS when that was not done: one of the same entry is there
    already, the entry is gone, or this user may not."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def request(self) -> Request:
        return (b"RENAMENX", self.name, damaged_name(self.name))

    def receive(self, wire: Wire, deadline_s: float) -> Result:
        reply = wire.reply(deadline_s)
        if isinstance(reply, ServerError):
            # No such key; the right is missing; half of a moving slot's names are elsewhere.
            is_refusal = reply.code in ("ERR", "NOPERM", "TRYAGAIN")
            return Outcome.MISS if is_refusal else reply
        return Outcome.HIT if reply == 1 else Outcome.MISS


class Read:
    """Reads an entry into the caller's memory; its life begins anew."""

    def __init__(
        self,
        name: bytes,
        key: bytes,
        scope: Scope,
        buffer: memoryview,
        checks: RecordFormat,
        ttl_s: int | None,
    ) -> None:
        self.name = name
        self._key = key
        self._scope = scope
        self._payload = as_bytes(buffer)
        self._checks = checks
        self._ttl_s = ttl_s
        self.num_bytes = HEADER_BYTES + len(self._payload)
        """Of the value; what it was to have, until another length has come."""

    def request(self) -> Request:
        if self._ttl_s is None:
            return (b"GET", self.name)
        return (b"GETEX", self.name, b"EX", b"%d" % self._ttl_s)

    def receive(self, wire: Wire, deadline_s: float) -> Result:
        header = memoryview(bytearray(HEADER_BYTES))
        payload = self._payload.data
        pieces = [payload[at : at + _PIECE_BYTES] for at in range(0, len(payload), _PIECE_BYTES)]
        running = self._checks.begin(self._key, self._scope, len(payload))

        def check(piece: memoryview) -> None:
            if piece is not header:
                running.add(piece)

        reply = wire.value([header, *pieces], check, deadline_s)
        if isinstance(reply, ServerError):
            return reply
        if reply is None:
            return Outcome.MISS
        if isinstance(reply, OtherLength):
            self.num_bytes = reply.num_bytes
            return Outcome.CORRUPT
        return Outcome.HIT if running.header() == header else Outcome.CORRUPT


@dataclass(frozen=True, slots=True)
class Write:
    """Stores an entry, whole or not at all."""

    name: bytes
    key: bytes
    scope: Scope
    data: memoryview
    checks: RecordFormat
    ttl_s: int | None

    def request(self) -> Request:
        payload = as_bytes(self.data)
        header = self.checks.header(self.key, self.scope, payload)
        life: Request = () if self.ttl_s is None else (b"EX", b"%d" % self.ttl_s)
        return (b"SET", self.name, (header, payload.data), *life)

    def receive(self, wire: Wire, deadline_s: float) -> Result:
        reply = wire.reply(deadline_s)
        if isinstance(reply, ServerError):
            return reply
        if reply != b"OK":
            raise ProtocolError(f"the reply to a SET is {reply!r:.50}")
        return Outcome.HIT
