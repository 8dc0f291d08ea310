"""The shape of what is compared, and the memory that bytes come from and go to."""

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from anbar.adapters.vllm.store_calls import StoreCalls, Timeouts
from anbar.apps.clock import SystemClock
from anbar.tier.breaker import Breaker
from anbar.tier.store import Outcome, Store
from anbar.tier.transfers import CALL_BYTES, Call, Direction

PATIENCE_S = 600.0
ENGINE_THREADS = 2
"""Threads for loads, and as many for stores: the default of the shared tier (`SharedTierOptions`)."""
MIB = 1024 * 1024


def nothing() -> None:
    """Before a loop that needs no preparation."""


@dataclass(frozen=True)
class Loop:
    """`run` is timed, `prepare` is not. A `run` that returns a number has measured its seconds itself."""

    run: Callable[[], object]
    prepare: Callable[[], object] = nothing


@dataclass(frozen=True)
class Pair:
    """Ours and the bare loop beside it, which moves as many bytes the same way."""

    name: str
    ours: Loop
    bare: Loop


class Rows:
    """`count` rows of host RAM, of `num_bytes` each, as an engine has them: one mapping that is shared, no
    page of which is new. `keys` are as long as an engine's."""

    def __init__(self, num_bytes: int, count: int) -> None:
        self.num_bytes = num_bytes
        self.keys = [b"%036d" % number for number in range(count)]
        memory = memoryview(mmap.mmap(-1, num_bytes * count))
        pattern = bytes((7 * number + number // 256) % 256 for number in range(64 * 1024))
        for start in range(0, len(memory), len(pattern)):
            memory[start : start + len(pattern)] = pattern
        self.rows = [memory[number * num_bytes : (number + 1) * num_bytes] for number in range(count)]

    @property
    def total_bytes(self) -> int:
        """Of all rows."""
        return self.num_bytes * len(self.rows)


class EngineCalls:
    """Moves all rows to a store and back by the calls, and on the threads, of a shared tier."""

    def __init__(self, store: Store, rows: Rows) -> None:
        self._store = store
        self._rows = rows
        self._per_call = max(1, CALL_BYTES // rows.num_bytes)
        patient = Timeouts(PATIENCE_S, PATIENCE_S, PATIENCE_S)
        self._calls = StoreCalls(store, Breaker(SystemClock()), lambda index: rows.rows[index], patient)
        self._calls.start(ENGINE_THREADS)

    @property
    def num_calls(self) -> int:
        """Calls that move all rows."""
        return -(-len(self._rows.keys) // self._per_call)

    def store(self) -> None:
        """Rows to the store."""
        self._move(Direction.STORE)

    def load(self) -> None:
        """Values into the rows."""
        self._move(Direction.LOAD)

    def forget(self) -> None:
        """Empty the store of them."""
        self._store.delete(self._rows.keys, scope="", timeout_s=PATIENCE_S)

    def close(self) -> None:
        """The store with it."""
        self._calls.close()

    def _move(self, direction: Direction) -> None:
        keys = self._rows.keys
        for start in range(0, len(keys), self._per_call):
            picked = range(start, min(start + self._per_call, len(keys)))
            named = tuple(keys[index] for index in picked)
            self._calls.submit(Call(start, direction, "", named, tuple(picked)))
        for result in self._calls.collect_all():
            assert result.outcomes is not None
            assert set(result.outcomes) == {Outcome.HIT}, set(result.outcomes)


def on_threads(num_threads: int, work: Callable[[int], object], count: int) -> Callable[[], None]:
    """Does `work` for 0..count-1 on so many threads, each of which takes the next number when it is done with
    one: as bare as Python has it."""
    pool = ThreadPoolExecutor(num_threads)

    def take(numbers: Iterator[int]) -> None:
        for number in numbers:
            work(number)

    def run() -> None:
        list(pool.map(take, [iter(range(count))] * num_threads))

    return run
