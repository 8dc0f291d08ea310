"""The servers of a store: which of them has which entries, and the connections to each."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from anbar.adapters.store.deadline import DeadlineRunner
from anbar.adapters.store.valkey.names import NUM_SLOTS, slot
from anbar.adapters.store.valkey.replies import ProtocolError, Reply
from anbar.adapters.store.valkey.wire import Node, Refused, Wire, make_node, parse_node
from anbar.core.clock import Clock
from anbar.tier.breaker import Breaker, BreakerConfig

logger = logging.getLogger("anbar.store.valkey")

Dial = Callable[[Node], Wire]

FAILURES = (OSError, ProtocolError, Refused)
"""What using a server may end in."""

_MAX_PAUSE_S = 5.0
"""Longest that a node of a cluster is passed over. Short: the tier's own breaker guards the store."""


_TELL_AGAIN_S = 60.0
_MAX_TEXT = 300


class _Server:
    """One node: idle connections, its breaker, and what was last said of it."""

    def __init__(self, clock: Clock) -> None:
        self.idle: list[Wire] = []
        self.breaker = Breaker(clock, BreakerConfig(max_pause_s=_MAX_PAUSE_S))
        self.complaint = ""
        self.told_s = float("-inf")
        self.advice: set[str] = set()


class Nodes:
    """Thread-safe. `suspected` is set when the cluster's order may have changed; who sees to that calls
    `refresh`."""

    def __init__(
        self, seeds: Sequence[Node], *, is_cluster: bool, dial: Dial, runner: DeadlineRunner, clock: Clock
    ) -> None:
        self.suspected = threading.Event()
        self.is_cluster = is_cluster
        self.seeds = tuple(seeds)
        self._dial = dial
        self._runner = runner
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: list[Node | None] = [None if is_cluster else seeds[0]] * NUM_SLOTS
        self._servers: dict[Node, _Server] = {}
        self._in_use: set[Wire] = set()
        self._closed = False

    def of(self, name: bytes) -> Node | None:
        """The node that has, or would have, an entry; None while that is not known."""
        return self._slots[slot(name)]

    def primaries(self) -> list[Node]:
        """Every node that has entries."""
        return [node for node in dict.fromkeys(self._slots) if node is not None]

    def breaker(self, node: Node) -> Breaker:
        """Of one node."""
        return self._server(node).breaker

    def take(self, node: Node, deadline_s: float) -> Wire:
        """A connection, to be given back or dropped. Raises one of FAILURES."""
        while True:
            with self._lock:
                idle = self._server(node, locked=True).idle
                wire = idle.pop() if idle else None
                if wire is not None:
                    self._in_use.add(wire)
            if wire is not None and wire.is_quiet:
                return wire
            if wire is not None:
                self.drop(wire)
                continue
            failures = [one for _, one in self._runner.run([lambda: self._connect(node)], deadline_s)]
            if not failures:
                raise TimeoutError("no connection by the deadline")
            if failures[0] is not None:
                raise failures[0]

    def give(self, node: Node, wire: Wire) -> None:
        """Back, with no reply outstanding."""
        with self._lock:
            self._in_use.discard(wire)
            if not self._closed:
                self._server(node, locked=True).idle.append(wire)
                return
        wire.close()

    def drop(self, wire: Wire) -> None:
        """Close a connection that is of no more use."""
        with self._lock:
            self._in_use.discard(wire)
        wire.close()

    def failed(self, node: Node, failure: Exception | str) -> None:
        """Note that a node cannot be used, and tell why."""
        self.suspected.set()
        self.complain(node, str(failure) or type(failure).__name__)

    def complain(self, node: Node, text: str) -> None:
        """Tell what is wrong with a node, the same at most once a minute."""
        server, now_s = self._server(node), self._clock.now_s()
        if server.complaint != text or now_s - server.told_s >= _TELL_AGAIN_S:
            server.complaint, server.told_s = text, now_s
            logger.warning("Shared tier: Valkey at %s: %s", node, text[:_MAX_TEXT])

    def advise(self, node: Node, text: str) -> None:
        """Tell once what is not well with a node that works."""
        advice = self._server(node).advice
        if text not in advice:
            advice.add(text)
            logger.warning("Shared tier: Valkey at %s: %s", node, text)

    def redirected(self, name: bytes, text: str, by: Node) -> Node | None:
        """Who has an entry, from `MOVED 3999 10.0.0.5:6379` or `ASK ...` that node `by` answered; None when
        it does not tell."""
        match text.split():
            case [kind, _, address] if ":" in address:
                host, port = parse_node(Node(address))
                node = make_node(host or parse_node(by)[0], port)
                if kind == "MOVED":
                    self._slots[slot(name)] = node
                    self.suspected.set()
                return node
        return None

    def refresh(self, deadline_s: float) -> bool:
        """Ask the nodes, one after the other, which of them has which slots; whether one told."""
        self.suspected.clear()
        for node in dict.fromkeys((*self.primaries(), *self.seeds)):
            left_s = max(0.0, deadline_s - time.monotonic())
            with suppress(*FAILURES):
                slots = self._ask(node, time.monotonic() + left_s / 2)
                if slots is not None:
                    self._slots = slots
                    self._forget_others()
                    return True
        return False

    def close(self) -> None:
        """End every connection, also those in use."""
        with self._lock:
            self._closed = True
            wires = [wire for server in self._servers.values() for wire in server.idle]
            for server in self._servers.values():
                server.idle.clear()
            for wire in self._in_use:
                wire.abort()
        for wire in wires:
            wire.close()

    def _server(self, node: Node, *, locked: bool = False) -> _Server:
        server = self._servers.get(node)
        if server is not None:
            return server
        if locked:
            return self._servers.setdefault(node, _Server(self._clock))
        with self._lock:
            return self._servers.setdefault(node, _Server(self._clock))

    def _connect(self, node: Node) -> Exception | None:
        """Add an idle connection. On a thread that may be late, so what comes of it is there for the next."""
        if self._closed:
            return ConnectionError("closed")
        try:
            wire = self._dial(node)
        except FAILURES as error:
            return error
        self.give(node, wire)
        return None

    def _ask(self, node: Node, deadline_s: float) -> list[Node | None] | None:
        wire = self.take(node, deadline_s)
        try:
            reply = wire.call(b"CLUSTER", b"SLOTS", deadline_s=deadline_s)
        except FAILURES:
            self.drop(wire)
            raise
        self.give(node, wire)
        return read_slots(reply, node)

    def _forget_others(self) -> None:
        """Close connections to nodes that have no slots any more."""
        with self._lock:
            gone = [node for node in self._servers if node not in self._slots]
            wires = [wire for node in gone for wire in self._servers.pop(node).idle]
        for wire in wires:
            wire.close()


def read_slots(reply: Reply, asked: Node) -> list[Node | None] | None:
    """The primary of each slot, from the reply to CLUSTER SLOTS; None when it tells nothing. A node without
    an address is the one that was asked: it does not know its own."""
    if not isinstance(reply, list) or not reply:
        return None
    slots: list[Node | None] = [None] * NUM_SLOTS
    for entry in reply:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_]:
                named = host.decode() if isinstance(host, bytes) and host not in (b"", b"?") else None
                node = make_node(named or parse_node(asked)[0], port)
                slots[first : last + 1] = [node] * (last + 1 - first)
            case _:
                return None
    return slots
