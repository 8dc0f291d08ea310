"""The plugin's shared tier over a store that is a table, with calls that end by the clock of the test.

Runs in the engine's interpreter."""

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from anbar.adapters.vllm.shared_tier import SharedTier, SharedTierOptions
from anbar.adapters.vllm.store_calls import AnyCall, Result, Timeouts
from anbar.sim.engine.shared import SetClock
from anbar.sim.engine.store import SharedCost
from anbar.testing.memory_store import MemoryStore
from anbar.tier.lookups import Question
from anbar.tier.store import Outcome, Scope
from anbar.tier.transfers import Direction

CLOCK = SetClock()
"""The time of the engine that runs, from zero for each: vLLM makes its tiers itself, and would not take a
clock."""


class ClockedCalls:
    """Stands for `StoreCalls`: calls queue for the threads of a lane, and take effect when they end."""

    def __init__(self, num_chunks: int, cost: SharedCost, chunk_bytes: int) -> None:
        self._num_chunks = num_chunks
        self._cost = cost
        self._chunk_bytes = chunk_bytes
        self._store: OrderedDict[tuple[Scope, bytes], None] = OrderedDict()
        self._free_s: dict[str, list[float]] = {}
        self._calls: list[tuple[float, int, AnyCall, float]] = []
        self._num_calls = 0

    def submit(self, call: AnyCall) -> None:
        lane, seconds = "lookup", self._cost.lookup_s
        if not isinstance(call, Question):
            lane = call.direction.value
            cost = self._cost.load if call.direction is Direction.LOAD else self._cost.store
            seconds = cost.seconds(len(call.keys) * self._chunk_bytes)
        threads = sorted(self._free_s.get(lane, [0.0] * self._cost.threads))
        ends_s = max(CLOCK.now_s(), threads[0]) + seconds
        self._free_s[lane] = [ends_s, *threads[1:]]
        self._num_calls += 1
        self._calls.append((ends_s, self._num_calls, call, seconds))

    def collect(self) -> Iterator[Result]:
        return self._end(CLOCK.now_s())

    def wait(self, timeout_s: float) -> Result | None:
        """Nothing comes within a step: the model's steps do not wait."""
        return None

    def collect_all(self) -> Iterator[Result]:
        return self._end(math.inf)

    def close(self) -> None:
        """Nothing runs."""

    def _end(self, now_s: float) -> Iterator[Result]:
        due = sorted(call for call in self._calls if call[0] <= now_s)
        self._calls = [call for call in self._calls if call[0] > now_s]
        for _, _, call, seconds in due:
            evicted: list[bytes] = []
            outcomes = [self._operate(call, key, evicted) for key in call.keys]
            yield Result(call, outcomes, seconds, evicted)

    def _operate(self, call: AnyCall, key: bytes, evicted: list[bytes]) -> Outcome:
        entry = (call.scope, key)
        if entry in self._store:
            self._store.move_to_end(entry)
            return Outcome.HIT
        if isinstance(call, Question) or call.direction is Direction.LOAD:
            return Outcome.MISS
        if len(self._store) == self._num_chunks:
            evicted.append(self._store.popitem(last=False)[0][1])
        self._store[entry] = None
        return Outcome.HIT


class ClockedTier(SharedTier):
    """`num_chunks`, `cost` and `chunk_bytes` are from its entry in `secondary_tiers`."""

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        num_chunks: int,
        cost: SharedCost,
        chunk_bytes: int,
    ) -> None:
        super().__init__(
            offloading_spec,
            primary_kv_view,
            tier_type,
            backpressure_detector,
            store=MemoryStore("dry"),
            clock=CLOCK,
            options=SharedTierOptions(Timeouts(lookup_s=cost.timeout_s)),
        )
        self._calls.close()
        self._calls = ClockedCalls(num_chunks, cost, chunk_bytes)  # type: ignore[assignment]
