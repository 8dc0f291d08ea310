"""A store as a part of another one: behind a circuit breaker of its own, with counts."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum

from anbar.core.clock import Clock
from anbar.tier.breaker import Breaker, Ticket, judge
from anbar.tier.store import Outcome, PartStats, Store, StoreStats

REFUSED = "refused"
DROPPED = "dropped"


class Operation(Enum):
    """What is done to keys of a part; `value` is the metric's label."""

    LOOKUP = "lookup"
    LOAD = "load"
    STORE = "store"
    REPAIR = "repair"
    """A copy written afterwards: in place of a missing or damaged one, into a nearer layer, or late."""
    DELETE = "delete"


class Part:
    """Thread-safe. `timeout_s` bounds each call, whatever time the whole has."""

    def __init__(self, store: Store, clock: Clock, timeout_s: float = math.inf) -> None:
        self.store = store
        self.breaker = Breaker(clock)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._keys: Counter[tuple[str, str]] = Counter()
        self._num_evicted = 0

    def call(
        self,
        ticket: Ticket | None,
        operation: Operation,
        num_keys: int,
        work: Callable[[Store, float], list[Outcome]],
        timeout_s: float,
    ) -> list[Outcome]:
        """One outcome per key. Without a ticket the breaker is not told."""
        try:
            outcomes = work(self.store, min(self._timeout_s, timeout_s))
            is_defect = len(outcomes) != num_keys
        except Exception:  # noqa: BLE001  # a supervisor: one defective store must not take the others down
            is_defect = True
        if is_defect:
            outcomes = [Outcome.ERROR] * num_keys
        if ticket is not None:
            self.breaker.record(ticket, judge(outcomes))
        self.count(operation, (outcome.value for outcome in outcomes))
        return outcomes

    def count(self, operation: Operation, results: Iterable[str]) -> None:
        """Add one key for each result."""
        added = Counter(results)
        with self._lock:
            for result, num_keys in added.items():
                self._keys[operation.value, result] += num_keys

    def take_evicted(self) -> list[bytes]:
        """See `anbar.tier.store.Store`."""
        evicted = self.store.take_evicted()
        with self._lock:
            self._num_evicted += len(evicted)
        return evicted

    def stats(self, of_store: StoreStats) -> PartStats:
        """As of now. `of_store`: what its store says of itself."""
        with self._lock:
            keys, num_evicted = dict(self._keys), self._num_evicted
        return PartStats(
            self.store.id,
            self.breaker.state().value,
            keys,
            of_store.used_bytes,
            of_store.capacity_bytes,
            num_evicted,
        )
