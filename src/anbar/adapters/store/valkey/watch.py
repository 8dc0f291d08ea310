"""Looks after the servers beside the calls: their settings, their memory, what they evict, a cluster's order.

One thread, so that no call ever waits for any of this.
"""

import selectors
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from anbar.adapters.store.valkey.names import Names
from anbar.adapters.store.valkey.nodes import FAILURES, Nodes
from anbar.adapters.store.valkey.replies import ProtocolError, Reply, ServerError
from anbar.adapters.store.valkey.settings import Info, errors, number, read_info, silence, warnings
from anbar.adapters.store.valkey.wire import Node, Refused, Wire
from anbar.core.errors import StoreError
from anbar.tier.store import StoreStats

_ENDS = (b"expired", b"evicted", b"del", b"rename_from")
"""Keyspace events after which an entry is not there any more. The last: it was damaged, and is kept aside."""
_MAX_EVICTED = 100_000
_PATIENCE_S = 2.0
"""Longest wait for one answer."""
_TURN_S = 1.0
"""Between two looks at what there is to do."""
_LOOK_S = 10.0
"""Between two looks at a server."""
_UNKNOWN = StoreStats(num_entries=None, used_bytes=None, capacity_bytes=None)


class Watch:
    """`take_evicted` and `stats` never wait."""

    def __init__(self, nodes: Nodes, names: Names, db: int, *, has_ttl: bool) -> None:
        self._nodes = nodes
        self._names = names
        self._channels = [b"__keyevent@%d__:%s" % (db, event) for event in _ENDS]
        self._has_ttl = has_ttl
        self._ears: dict[Node, Wire] = {}
        """Connections that have subscribed."""
        self._evicted: deque[bytes] = deque(maxlen=_MAX_EVICTED)
        self._stats = _UNKNOWN
        self._closed = threading.Event()

    def look(self) -> None:
        """Look at each server once. Raises StoreError when one is unfit; one that cannot be reached, or does
        not answer, is told of."""
        if self._nodes.is_cluster:
            self._nodes.refresh(time.monotonic() + _PATIENCE_S)
        for node in self._nodes.primaries() or self._nodes.seeds:
            try:
                self._look_at(node)
            except Refused as error:
                raise StoreError(f"the store at {node} cannot be used: {error}") from error
            except ProtocolError as error:
                what = "does not speak the protocol of Valkey and Redis"
                raise StoreError(
                    f"the store at {node} cannot be used: what answers there {what}: {error}"
                ) from error
            except FAILURES as error:
                self._nodes.failed(node, error)
                self._nodes.advise(node, "not usable now; until it is, its entries count as missing")

    def start(self) -> None:
        """Start the thread; a daemon, since it may wait for an answer when the process ends."""
        threading.Thread(target=self._run, name="anbar-valkey-watch", daemon=True).start()

    def take_evicted(self) -> list[bytes]:
        """Keys of this namespace that are not there any more, heard of since the last call."""
        evicted: list[bytes] = []
        with suppress(IndexError):
            while True:
                evicted.append(self._evicted.popleft())
        return evicted

    def stats(self) -> StoreStats:
        """As of the last look; unknown while a server does not tell."""
        return self._stats

    def close(self) -> None:
        """Let the thread end, within seconds."""
        self._closed.set()

    def _run(self) -> None:
        look_s = 0.0
        while not self._closed.is_set():
            is_lost = self._nodes.suspected.is_set() or not self._nodes.primaries()
            if self._nodes.is_cluster and is_lost:
                self._nodes.refresh(time.monotonic() + _PATIENCE_S)
            now_s = time.monotonic()
            if now_s >= look_s:
                look_s = now_s + _LOOK_S
                self._measure()
                self._ping()
            self._subscribe()
            self._listen(_TURN_S)
        for wire in self._ears.values():
            self._nodes.drop(wire)

    def _measure(self) -> None:
        infos = list(self._infos())
        used = [number(info, "used_memory") for info in infos]
        bounds = [number(info, "maxmemory") for info in infos]
        self._stats = StoreStats(
            num_entries=None,
            used_bytes=None if not used or None in used else sum(filter(None, used)),
            capacity_bytes=sum(filter(None, bounds)) if bounds and all(bounds) else None,
        )

    def _infos(self) -> Iterator[Info]:
        for node in self._nodes.primaries():
            info: Info = {}
            try:
                info = self._look_at(node)
            except FAILURES as error:
                self._nodes.failed(node, error)
            yield info

    def _look_at(self, node: Node) -> Info:
        """Raises one of FAILURES, of which Refused says that the server is unfit."""
        reply = self._call(node, b"INFO")
        if isinstance(reply, ServerError) and reply.code in ("NOAUTH", "WRONGPASS"):
            raise Refused(reply.text)
        info = read_info(reply)
        for error in errors(info, is_cluster=self._nodes.is_cluster, has_ttl=self._has_ttl):
            raise Refused(error)
        for text in warnings(info):
            self._nodes.advise(node, text)
        return info

    def _call(self, node: Node, *request: bytes) -> Reply:
        deadline_s = time.monotonic() + _PATIENCE_S
        wire = self._nodes.take(node, deadline_s)
        try:
            reply = wire.call(*request, deadline_s=deadline_s)
        except FAILURES:
            self._nodes.drop(wire)
            raise
        self._nodes.give(node, wire)
        return reply

    def _subscribe(self) -> None:
        """Listen to every primary that is not listened to yet."""
        primaries = self._nodes.primaries()
        for node in [node for node in self._ears if node not in primaries]:
            self._deaf(node)
        deadline_s = time.monotonic() + _PATIENCE_S
        for node in [node for node in primaries if node not in self._ears]:
            try:
                self._ears[node] = self._nodes.take(node, deadline_s)
                self._ears[node].send([(b"SUBSCRIBE", *self._channels)], deadline_s)
                if text := silence(self._call(node, b"CONFIG", b"GET", b"notify-keyspace-events")):
                    self._nodes.advise(node, text)
            except FAILURES:
                self._deaf(node)

    def _ping(self) -> None:
        """Find out whether connections that are silent still stand."""
        for node, wire in list(self._ears.items()):
            deadline_s = time.monotonic() + _PATIENCE_S
            try:
                wire.send([(b"PING",)], deadline_s)
                while not self._hear(wire, deadline_s):
                    pass
            except FAILURES:
                self._deaf(node)

    def _listen(self, seconds: float) -> None:
        """Wait for news at most so long, and take them in."""
        with selectors.DefaultSelector() as selector:
            for node, wire in self._ears.items():
                selector.register(wire, selectors.EVENT_READ, node)
            if not self._ears:
                self._closed.wait(seconds)
                return
            ready = [key.data for key, _ in selector.select(seconds)]
        for node in ready:
            wire = self._ears[node]
            try:
                while True:
                    self._hear(wire, time.monotonic() + _PATIENCE_S)
                    if not wire.has_more:
                        break
            except FAILURES:
                self._deaf(node)

    def _hear(self, wire: Wire, deadline_s: float) -> bool:
        """Take in one piece of news; whether it is the answer to a PING."""
        match wire.reply(deadline_s):
            case [b"message", _, bytes(name)]:
                key = self._names.key_of(name)
                if key is not None:
                    self._evicted.append(key)
                return False
            case [b"pong", *_] | b"PONG":
                return True
            case [b"subscribe", *_]:
                return False
            case ServerError(text):
                raise Refused(text)
        raise ProtocolError("unexpected news")

    def _deaf(self, node: Node) -> None:
        wire = self._ears.pop(node, None)
        if wire is not None:
            self._nodes.drop(wire)
