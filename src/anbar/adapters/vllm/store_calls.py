"""The threads that call the store, so that the engine's scheduler never does.

Three lanes, each with its own threads: lookups, loads, stores. A store that hangs on writes cannot delay
reads. Every call asks the circuit breaker first and tells it how it went. The scheduler's thread submits
calls and collects results; it waits in `wait`, for as long as it says itself, and in `collect_all`."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from anbar.tier.breaker import Breaker, judge
from anbar.tier.lookups import Question
from anbar.tier.store import Outcome, PutItem, Store, StoreStats
from anbar.tier.transfers import Call, Direction

AnyCall = Question | Call


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines of single calls, in seconds."""

    lookup_s: float = 0.5
    load_s: float = 5.0
    store_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """A call and what became of it: one outcome per key, or None when the breaker refused it.

    `evicted` are keys that the store dropped by itself, `stats` its occupancy, as seen after the call.
    `is_defect` says that the store raised or answered nonsense, against its contract.
    """

    call: AnyCall
    outcomes: Sequence[Outcome] | None
    seconds: float = 0.0
    evicted: Sequence[bytes] = ()
    stats: StoreStats | None = None
    is_defect: bool = False


class StoreCalls:
    """Calls on `store`; `row` gives the memory of a row of host RAM."""

    def __init__(
        self, store: Store, breaker: Breaker, row: Callable[[int], memoryview], timeouts: Timeouts
    ) -> None:
        self._store = store
        self._breaker = breaker
        self._row = row
        self._timeouts = timeouts
        self._lookups: queue.SimpleQueue[AnyCall | None] = queue.SimpleQueue()
        self._loads: queue.SimpleQueue[AnyCall | None] = queue.SimpleQueue()
        self._stores: queue.SimpleQueue[AnyCall | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_open = 0
        self._closing = False

    def start(self, threads_per_lane: int = 2) -> None:
        """Start the threads."""
        for name, lane in (("lookup", self._lookups), ("load", self._loads), ("store", self._stores)):
            for index in range(threads_per_lane):
                thread = threading.Thread(
                    target=self._work, args=(lane,), name=f"anbar-{name}-{index}", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def submit(self, call: AnyCall) -> None:
        """Queue a call; its result will be collected. Refused at once when nobody is there to make it."""
        self._num_open += 1
        if self._closing:
            self._results.put(Result(call, None))
            return
        if isinstance(call, Question):
            self._lookups.put(call)
        elif call.direction is Direction.LOAD:
            self._loads.put(call)
        else:
            self._stores.put(call)

    def collect(self) -> Iterator[Result]:
        """Results that are there; does not wait."""
        while not self._results.empty():
            self._num_open -= 1
            yield self._results.get()

    def wait(self, timeout_s: float) -> Result | None:
        """The next result, waited for at most so long; None: there was none."""
        try:
            result = self._results.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._num_open -= 1
        return result

    def collect_all(self) -> Iterator[Result]:
        """Results of everything submitted; waits for them, at most the calls' deadlines."""
        while self._num_open:
            self._num_open -= 1
            yield self._results.get()

    def close(self) -> None:
        """Refuse what is queued, wait for the calls that run (their deadlines bound it), end the threads and
        close the store."""
        self._closing = True
        for lane in (self._lookups, self._loads, self._stores):
            for _ in self._threads:
                lane.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._store.close()

    def _work(self, lane: "queue.SimpleQueue[AnyCall | None]") -> None:
        while (call := lane.get()) is not None:
            ticket = None if self._closing else self._breaker.admit()
            if ticket is None:
                self._results.put(Result(call, None))
                continue
            result = self._perform(call)
            self._breaker.record(ticket, judge(result.outcomes or [Outcome.ERROR]))
            self._results.put(result)

    def _perform(self, call: AnyCall) -> Result:
        started_s = time.monotonic()
        try:
            outcomes = self._operate(call)
            evicted, stats = self._store.take_evicted(), self._store.stats()
            is_defect = len(outcomes) != len(call.keys)
        except Exception:  # noqa: BLE001  # a supervisor: a defective store must not take the engine down
            outcomes, evicted, stats, is_defect = [], [], None, True
        seconds = time.monotonic() - started_s
        if is_defect:
            return Result(call, [Outcome.ERROR] * len(call.keys), seconds, is_defect=True)
        return Result(call, outcomes, seconds, evicted, stats)

    def _operate(self, call: AnyCall) -> list[Outcome]:
        if isinstance(call, Question):
            return self._store.exists(call.keys, scope=call.scope, timeout_s=self._timeouts.lookup_s)
        rows = [self._row(index) for index in call.rows]
        if call.direction is Direction.LOAD:
            timeout_s = self._timeouts.load_s
            return self._store.get_into(
                call.keys, rows, scope=call.scope, timeout_s=timeout_s, saves_s=call.saves_s
            )
        saves_s = call.saves_s or (0.0,) * len(rows)
        items = [PutItem(*item) for item in zip(call.keys, rows, saves_s, strict=True)]
        return self._store.put(items, scope=call.scope, timeout_s=self._timeouts.store_s)
