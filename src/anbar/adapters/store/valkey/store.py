"""A store in Valkey, or in Redis from 6.2 on: one server, or a cluster.

- A value is written by one SET with its time to live: a reader sees all of it or nothing.
- Sockets carry each wait's deadline: whoever is late shuts its socket down before the call returns, so
  nothing touches the caller's memory afterwards, into which values are read directly.
- The server evicts by its own rules (`maxmemory`, `maxmemory-policy`), which are looked at when the store is
  opened. Reading or storing an entry again begins its time to live anew.
- Quotas of scopes are kept by looks at what is there (`census`, `ledger`).
- Replicas and failover are the cluster's own. Entries are read from primaries alone.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from anbar.adapters.store.deadline import DeadlineRunner
from anbar.adapters.store.layout import scope_dir
from anbar.adapters.store.ledger import Pace, ledger_of
from anbar.adapters.store.record import RecordFormat, record_bytes
from anbar.adapters.store.valkey.census import Census
from anbar.adapters.store.valkey.commands import Command, Read, Write, exists, remove, renew
from anbar.adapters.store.valkey.damaged import Damaged
from anbar.adapters.store.valkey.exchange import Exchange
from anbar.adapters.store.valkey.names import Names, scope_pattern
from anbar.adapters.store.valkey.nodes import Nodes
from anbar.adapters.store.valkey.purge import purge
from anbar.adapters.store.valkey.watch import Watch
from anbar.adapters.store.valkey.wire import Login, Node, Refused, dial
from anbar.core.clock import Clock
from anbar.core.errors import StoreError
from anbar.tier.scopes import Scopes
from anbar.tier.store import Outcome, PutItem, Scope, StoreStats

_DIAL_THREADS = 8
_QUESTIONS_DEPTH = 256
_AHEAD_BYTES = 512 * 1024
"""Values that a server has prepared for a call while others are on their way: enough to keep both ends busy,
and no more than fits between two sockets. What does not fit waits for timers of TCP: with four times as much,
values of 64 KiB on loopback took 500 us each instead of 60."""
_MOST_AHEAD = 64
_PACE = Pace(period_s=60.0, shortest_s=1.0)
"""Of looks at what scopes hold; within a look, `census` spares the servers."""


@dataclass(frozen=True, slots=True)
class ValkeyConfig:
    """Servers, and how to use them."""

    nodes: tuple[Node, ...]
    """The server; of a cluster some nodes, which know the others."""
    id: str
    """Name of the store in KV events; equal for all that share it."""
    is_cluster: bool = False
    ttl_s: int | None = 86_400
    """Seconds until an entry that nobody uses ends. None: never."""
    login: Login = field(default_factory=Login)
    scopes: Scopes = field(default_factory=Scopes)
    """What scopes have a quota, or a time to live of their own."""
    pace: Pace = _PACE

    def scope_ttl_of(self, scope: Scope) -> int | None:
        """What a scope has of its own, in whole seconds, at least one. None: it has none."""
        ttl_s = self.scopes.of(scope).ttl_s
        return None if ttl_s is None else max(1, math.ceil(ttl_s))

    def ttl_of(self, scope: Scope) -> int | None:
        """In whole seconds, as servers count it; at least one."""
        ttl_s = self.scope_ttl_of(scope)
        return self.ttl_s if ttl_s is None else ttl_s

    def dirs_have_ttl(self) -> Callable[[str], bool]:
        """As `ttl_of` is not None, by what directories of scopes are called."""
        named = {scope_dir(scope): self.ttl_of(scope) is not None for scope in self.scopes.named}
        default = self.ttl_s is not None or self.scopes.default.ttl_s is not None
        return lambda directory: named.get(directory, default)

    @property
    def has_ttl(self) -> bool:
        """Whether every entry ends some time."""
        return self.ttl_s is not None or all(rules.ttl_s is not None for rules in self.scopes.every)


class ValkeyStore:
    """See `anbar.tier.store.Store`. Call `open` before anything else; until then every outcome is ERROR."""

    def __init__(self, config: ValkeyConfig, namespace: bytes, clock: Clock) -> None:
        self._config = config
        self._names = Names(namespace)
        self._checks = RecordFormat(namespace)
        self._runner = DeadlineRunner(_DIAL_THREADS, "anbar-valkey-dial")
        self._nodes = Nodes(
            config.nodes,
            is_cluster=config.is_cluster,
            dial=partial(dial, login=config.login),
            runner=self._runner,
            clock=clock,
        )
        self._exchange = Exchange(self._nodes)
        self._damaged = Damaged(self._exchange, clock)
        self._watch = Watch(self._nodes, self._names, config.login.db, has_ttl=config.has_ttl)
        self._census = Census(self._nodes, self._exchange, config.dirs_have_ttl())
        where = f"Valkey at {', '.join(config.nodes)}"
        self._ledger = ledger_of(config.scopes, self._census, config.pace, where)
        self._is_open = False

    def open(self) -> None:
        """Look at the server's settings and start the threads.

        Raises StoreError for settings that do not go together: the password, TLS, cluster or not, the
        version, a server that would fill up and never evict. A server that cannot be reached now is a
        warning: calls are ERROR until it can be.
        """
        if self._config.login.tls is not None:
            try:
                self._config.login.tls.check()
            except Refused as error:
                raise StoreError(str(error)) from error
        self._runner.start()
        self._is_open = True
        try:
            self._watch.look()
        except BaseException:
            self.close()
            raise
        self._watch.start()
        if self._ledger is not None:
            self._ledger.start()

    @property
    def id(self) -> str:
        return self._config.id

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        commands = [exists(self._names.name(key, scope)) for key in keys]
        return self._run(commands, _deadline_s(timeout_s), _QUESTIONS_DEPTH)

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        deadline_s = _deadline_s(timeout_s)
        names = [self._names.name(key, scope) for key in keys]
        ttl_s = self._config.ttl_of(scope)
        reads = [
            Read(name, key, scope, buffer, self._checks, ttl_s)
            for name, key, buffer in zip(names, keys, buffers, strict=True)
        ]
        outcomes = self._run(reads, deadline_s, _values_depth(buffers))
        damaged = [read for read, found in zip(reads, outcomes, strict=True) if found is Outcome.CORRUPT]
        self._damaged.take(damaged, self._config.scope_ttl_of(scope), deadline_s)
        return outcomes

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        """What is there already is not sent again, its time to live begins anew."""
        deadline_s = _deadline_s(timeout_s)
        names = [self._names.name(item.key, scope) for item in items]
        ttl_s = self._config.ttl_of(scope)
        outcomes = self._run([renew(name, ttl_s) for name in names], deadline_s, _QUESTIONS_DEPTH)
        missing = []
        for index, outcome in enumerate(outcomes):
            if outcome is Outcome.MISS:
                if self._admits(scope, names[index], items[index]):
                    missing.append(index)
                else:
                    outcomes[index] = Outcome.OVER_QUOTA
        writes = [
            Write(names[index], items[index].key, scope, items[index].data, self._checks, ttl_s)
            for index in missing
        ]
        depth = _values_depth([item.data for item in items])
        for index, outcome in zip(missing, self._run(writes, deadline_s, depth), strict=True):
            outcomes[index] = outcome
            if self._ledger is not None and outcome in (Outcome.ERROR, Outcome.FULL):
                self._ledger.withdrew(scope, record_bytes(items[index].data))
        return outcomes

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        commands = [remove(self._names.name(key, scope)) for key in keys]
        return self._run(commands, _deadline_s(timeout_s), _QUESTIONS_DEPTH)

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        """Walks the names of every node, so it takes the longer the more the servers hold. TIMEOUT: not
        through; what was found until then is gone."""
        if not self._is_open:
            return Outcome.ERROR
        outcome = purge(self._nodes, self._exchange, scope_pattern(scope), _deadline_s(timeout_s))
        if self._ledger is not None and outcome is Outcome.HIT:
            self._ledger.emptied(scope)
        return outcome

    def take_evicted(self) -> list[bytes]:
        """What the server told to have expired, been evicted or been removed by anybody; nothing where its
        `notify-keyspace-events` lacks `E` with `x`, `e` and `g`."""
        return self._watch.take_evicted()

    def stats(self) -> StoreStats:
        """Memory of the servers, whatever is in it, as of some seconds ago."""
        stats = self._watch.stats()
        return stats if self._ledger is None else replace(stats, scopes=self._ledger.stats())

    def try_quotas(self) -> None:
        """Ask the servers what keeping quotas asks. Raises StoreError when one refuses."""
        self._census.try_out()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._watch.close()
            self._census.close()
            if self._ledger is not None:
                self._ledger.close()
            self._nodes.close()
            self._exchange.close()
            self._runner.close()

    def _admits(self, scope: Scope, name: bytes, item: PutItem) -> bool:
        return self._ledger is None or self._ledger.admits(scope, name, record_bytes(item.data))

    def _run(self, commands: Sequence[Command], deadline_s: float, depth: int) -> list[Outcome]:
        if not self._is_open:
            return [Outcome.ERROR] * len(commands)
        return self._exchange.run(commands, deadline_s, depth) if commands else []


def _values_depth(buffers: Sequence[memoryview]) -> int:
    """At least two: one that is on its way, and one that is prepared meanwhile."""
    largest = max((buffer.nbytes for buffer in buffers), default=0)
    return min(max(2, _AHEAD_BYTES // max(1, largest)), _MOST_AHEAD)


def _deadline_s(timeout_s: float) -> float:
    return time.monotonic() + timeout_s
