"""Lists what servers hold of scopes, without haste and without a trace, and evicts some of it.

A step asks one server for a thousand names, and for the size and age of those that are wanted. After it is a
pause of nineteen times as long: neither a server nor this process gives more than a twentieth of its time.
A server that knows `CLIENT NO-TOUCH` does not take what is looked at for used; another one is asked for what
entries take of its memory instead of their size, which is up to a quarter more, since that leaves no trace.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from threading import Event

from anbar.adapters.store.ledger import Seen
from anbar.adapters.store.valkey.commands import remove
from anbar.adapters.store.valkey.exchange import Exchange
from anbar.adapters.store.valkey.names import ALL_ENTRIES, dir_of, dir_pattern
from anbar.adapters.store.valkey.nodes import FAILURES, Nodes
from anbar.adapters.store.valkey.replies import ProtocolError, Reply, ServerError
from anbar.adapters.store.valkey.wire import Node, Request, Wire
from anbar.core.errors import StoreError
from anbar.tier.store import Outcome

_NAMES_PER_STEP = 1000
"""As a purge's: well below a millisecond of the server's."""
_REST = 19.0
_LONGEST_REST_S = 2.0
_PATIENCE_S = 5.0
"""Longest wait for one answer."""
_REMOVALS_DEPTH = 256


class Census:
    """See `ledger.Listing`. `has_ttl` tells whether entries of a scope end by time: what is left of that is
    as good as the time since they were used, and every server tells it. `close` ends a look."""

    def __init__(self, nodes: Nodes, exchange: Exchange, has_ttl: Callable[[str], bool]) -> None:
        self._nodes = nodes
        self._exchange = exchange
        self._has_ttl = has_ttl
        self._closed = Event()

    def entries(self, scopes: Collection[str] | None) -> Iterator[Seen[bytes]]:
        for node in self._primaries():
            yield from self._on(node, lambda wire: self._walk(wire, scopes))

    def try_out(self) -> None:
        """Ask every server once what a look asks, of no entry. Raises StoreError when one refuses."""
        for node in self._primaries():
            for _ in self._on(node, self._try):
                pass

    def remove(self, names: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
        for start in range(0, len(names), _NAMES_PER_STEP):
            some, started_s = names[start : start + _NAMES_PER_STEP], time.monotonic()
            found = self._exchange.run([remove(name) for name in some], _deadline_s(), _REMOVALS_DEPTH)
            for name, outcome in zip(some, found, strict=True):
                if outcome in (Outcome.HIT, Outcome.MISS):
                    yield name, outcome is Outcome.HIT
            if not {Outcome.HIT, Outcome.MISS}.issuperset(found):
                raise StoreError("not all entries could be evicted")
            if start + _NAMES_PER_STEP < len(names):
                self._rest(started_s)

    def close(self) -> None:
        """End what runs, within one answer."""
        self._closed.set()

    def _primaries(self) -> Sequence[Node]:
        primaries = self._exchange.know_nodes(_deadline_s())
        if not primaries:
            raise StoreError("no node of the cluster tells who has entries")
        return primaries

    def _on(self, node: Node, ask: Callable[[Wire], Iterator[Seen[bytes]]]) -> Iterator[Seen[bytes]]:
        try:
            wire = self._nodes.take(node, _deadline_s())
            try:
                yield from ask(wire)
            finally:  # it is in a mode that no call must find it in
                self._nodes.drop(wire)
        except FAILURES as error:
            raise StoreError(f"{node}: {error or type(error).__name__}") from error

    def _walk(self, wire: Wire, scopes: Collection[str] | None) -> Iterator[Seen[bytes]]:
        size = _quietly(wire)
        pattern = dir_pattern(*scopes) if scopes is not None and len(scopes) == 1 else ALL_ENTRIES
        cursor = b"0"
        while True:
            started_s = time.monotonic()
            cursor, names = _scan(wire, cursor, pattern)
            dirs = [(name, dir_of(name)) for name in names]
            wanted = [(name, scope) for name, scope in dirs if scope and (scopes is None or scope in scopes)]
            yield from self._measured(wire, wanted, size)
            if cursor == b"0":
                return
            self._rest(started_s)

    def _try(self, wire: Wire) -> Iterator[Seen[bytes]]:
        size = _quietly(wire)
        _scan(wire, b"0", ALL_ENTRIES)
        yield from self._measured(wire, [(ALL_ENTRIES, "")], size)

    def _measured(
        self, wire: Wire, names: Sequence[tuple[bytes, str]], size: Request
    ) -> Iterator[Seen[bytes]]:
        requests: list[Request] = []
        for name, scope in names:
            age: Request = (b"PTTL",) if self._has_ttl(scope) else (b"OBJECT", b"IDLETIME")
            requests += [(*size, name), (*age, name)]
        deadline_s = _deadline_s()
        wire.send(requests, deadline_s)
        replies = [wire.reply(deadline_s) for _ in requests]
        for (name, scope), num_bytes, age_said in zip(names, replies[::2], replies[1::2], strict=True):
            for reply in (num_bytes, age_said):
                if isinstance(reply, ServerError) and reply.code == "NOPERM":
                    raise StoreError(reply.text)
            if isinstance(num_bytes, int) and num_bytes > 0:  # else it is gone, or on its way to another node
                yield Seen(name, scope, num_bytes, self._age(scope, age_said))

    def _age(self, scope: str, said: Reply) -> float:
        """A server that evicts by frequency knows no idle time: then any is as good as another."""
        if not isinstance(said, int):
            return 0.0
        if not self._has_ttl(scope):
            return float(said)
        return -float(said) if said >= 0 else float("inf")  # stored when the scope's had no end

    def _rest(self, started_s: float) -> None:
        if self._closed.wait(min(_REST * (time.monotonic() - started_s), _LONGEST_REST_S)):
            raise StoreError("closed")


def _quietly(wire: Wire) -> Request:
    """Have the server take no look for a use; by what to ask for sizes."""
    told = wire.call(b"CLIENT", b"NO-TOUCH", b"ON", deadline_s=_deadline_s())
    return (b"MEMORY", b"USAGE") if isinstance(told, ServerError) else (b"STRLEN",)


def _scan(wire: Wire, cursor: bytes, pattern: bytes) -> tuple[bytes, list[bytes]]:
    reply = wire.call(
        *(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _NAMES_PER_STEP), deadline_s=_deadline_s()
    )
    match reply:
        case [bytes(after), list(names)]:
            return after, [name for name in names if isinstance(name, bytes)]
        case ServerError(text):
            raise StoreError(text)
    raise ProtocolError(f"the reply to a SCAN is {reply!r:.50}")


def _deadline_s() -> float:
    return time.monotonic() + _PATIENCE_S
