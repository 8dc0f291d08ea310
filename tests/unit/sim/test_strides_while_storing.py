"""Strides during which chunks go to the shared tier come to the same as single steps."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from anbar.core.cost import EngineCost, TierCost, TokenCurve
from anbar.core.ids import RequestId
from anbar.sim.engine.counters import Counters
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.events import EngineEvent, TierStored
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import SharedCost
from anbar.sim.engine.tier_work import Move

BLOCK = 32
SHAPE = EngineShape(
    block_size=BLOCK, num_blocks=50, max_num_batched_tokens=256, max_model_len=600, kv_bytes_per_token=1 << 20
)
"""Chunks of 32 MiB: each is stored by a call of its own."""
STEPS = StepCost(EngineCost(TokenCurve(((1, 0.01), (256, 0.05))), decode_s_per_kv_byte=1e-13))
CALLS = SharedCost(lookup_s=0.004, load=TierCost(0.02, math.inf), store=TierCost(0.035, math.inf))


class Keys:
    """Of a prompt that begins as its family's, and goes on by itself."""

    def __init__(self, number: int, num_common: int) -> None:
        self._number, self._num_common = number, num_common

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        common = self._num_common
        return [(-(self._number % 3) if i < common else self._number + 1, i) for i in range(num_blocks)]


@dataclass
class Served:
    """What came of a load on two engines with one store."""

    times_s: dict[RequestId, list[float]] = field(default_factory=dict)
    hits: dict[RequestId, tuple[int, int, int]] = field(default_factory=dict)
    events: list[list[EngineEvent]] = field(default_factory=lambda: [[], []])
    moves: list[list[Move]] = field(default_factory=lambda: [[], []])
    counters: list[Counters] = field(default_factory=list)
    host: list[list[BlockKey]] = field(default_factory=list)
    num_steps: int = 0


def served(*, unseen: bool, store: SharedTier | None = None) -> Served:
    """Thirty requests, by turns to either engine."""
    rng = Random(4)
    tier = store or SharedTier(100_000, CALLS)
    engines = [Engine(SHAPE, STEPS, Tiers(HostShape(60), tier)) for _ in range(2)]
    found = Served(counters=[engine.counters for engine in engines])
    arrivals = []
    at_s = 0.0
    for number in range(30):
        keys = Keys(number, rng.randint(0, 8))
        arrivals.append(
            (at_s, EngineRequest(RequestId(f"{number}"), rng.randint(100, 400), rng.randint(20, 90), keys))
        )
        at_s += rng.expovariate(2.0)
    ends: list[tuple[float, int]] = []
    number = 0

    def start(index: int, now_s: float) -> None:
        until_s = arrivals[number][0] if number < len(arrivals) else math.inf
        running = engines[index].start_step(now_s, until_s, until_s if unseen else -math.inf)
        if running is not None:
            found.num_steps += 1
            heapq.heappush(ends, (running.ends_s, index))
            assert running.step.tier_work is not None
            found.moves[index] += running.step.tier_work.moves

    while ends or number < len(arrivals):
        if number == len(arrivals) or (ends and ends[0][0] < arrivals[number][0]):
            now_s, index = heapq.heappop(ends)
            result = engines[index].finish_step()
            engines[index].check_integrity()
            found.events[index] += result.events
            for output in result.outputs:
                found.times_s.setdefault(output.request.id, []).extend([now_s] * output.num_tokens)
                request = output.request
                found.hits[request.id] = (
                    request.num_device_hit,
                    request.num_external_hit,
                    request.num_shared_hit,
                )
            start(index, now_s)
        else:
            now_s, request = arrivals[number]
            index, number = number % 2, number + 1
            engines[index].add(request)
            if index not in {busy for _, busy in ends}:
                start(index, now_s)
    for engine in engines:
        assert engine.connector is not None
        found.host.append(engine.connector.host.keys())
    return found


def test_a_stride_over_stores_comes_to_the_same_as_its_steps() -> None:
    """Two engines that store for each other: requests have their first and last tokens at the same times and
    find the same, tiers announce the same in the same order, stores take as long. Only there are fewer
    steps."""
    steps, strides = served(unseen=False), served(unseen=True)
    assert strides.num_steps < 0.8 * steps.num_steps
    assert sum(hits[2] for hits in steps.hits.values()) > 0
    assert any(isinstance(event, TierStored) for event in steps.events[0])
    for name, times_s in steps.times_s.items():
        ends_s = times_s[0], times_s[-1]
        assert (strides.times_s[name][0], strides.times_s[name][-1]) == pytest.approx(ends_s, abs=1e-9)
    assert strides.hits == steps.hits
    assert strides.counters == steps.counters
    assert strides.host == steps.host
    assert list(map(_names, strides.events)) == list(map(_names, steps.events))
    for some, others in zip(strides.moves, steps.moves, strict=True):
        assert [(move.direction, move.ok, move.num_chunks) for move in some] == [
            (move.direction, move.ok, move.num_chunks) for move in others
        ]
        assert [move.seconds for move in some] == pytest.approx([move.seconds for move in others], abs=1e-9)


def test_no_stride_over_stores_where_room_is_made_for_them() -> None:
    """A store that was told its capacity makes room for new chunks, and who announces that first matters: as
    many steps as without strides."""

    def bounded() -> SharedTier:
        return SharedTier(100_000, CALLS, 1 << 50)

    steps = served(unseen=False, store=bounded()).num_steps
    assert served(unseen=True, store=bounded()).num_steps == steps


def _names(events: Sequence[EngineEvent]) -> list[str]:
    """Without the requests, which are other objects."""
    return [
        f"{type(event).__name__} {getattr(event, 'keys', ())} {getattr(event, 'tier', '')}"
        for event in events
    ]
