"""The fleet of the routing benchmarks: eight-billion-parameter engines, and a public chat trace.

Arrivals are open loop. Blocks are of 512 tokens, as the trace has them. The rest is the simulator's own
(`anbar.apps.simulate.fleet`).
"""

import gzip
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.router.engine import KvFollowing
from anbar.apps.simulate import fleet
from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.fleet import Chooser, InFlight, Worker
from anbar.apps.simulate.kv_events import kv_events
from anbar.apps.simulate.traces import spread
from anbar.core.events import KvEvent
from anbar.route import Policy
from anbar.sim.engine.engine import Engine as EngineModel
from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.shape import EngineShape

__all__ = ["Ask", "Chooser", "InFlight", "Worker"]

BLOCK = 512
CONTEXT = 131_072
TRACE = Path(__file__).parent / "data" / "mooncake_conversation_4000.jsonl.gz"


@cache
def _rows() -> list[dict[str, Any]]:
    with gzip.open(TRACE, "rt") as lines:
        return [json.loads(line) for line in lines]


def trace(first: int, count: int, speed: float, *, shared: bool = True) -> list[Ask]:
    """`count` requests from the `first` on, `speed` times as fast. Not `shared`: no block is in two."""
    rows = _rows()[first : first + count]
    start_ms = rows[0]["timestamp"]
    asks = []
    for number, row in enumerate(rows):
        blocks = tuple(row["hash_ids"][: row["input_length"] // BLOCK])
        if not shared:
            blocks = tuple(number << 10 | place for place in range(len(blocks)))
        at_s = (row["timestamp"] - start_ms) / 1e3 / speed
        asks.append(Ask(number, at_s, row["input_length"], max(1, row["output_length"]), blocks))
    return spread(asks)


def working_set(asks: Sequence[Ask]) -> int:
    """Distinct blocks."""
    return len({block for ask in asks for block in ask.blocks})


def pooled_hit_rate(asks: Sequence[Ask], capacity: int) -> float:
    """Share of prompt tokens that one LRU cache of `capacity` blocks for the whole fleet would hold."""
    return sum(pooled_hits(asks, capacity)) / sum(ask.num_prompt for ask in asks)


def pooled_hits(asks: Sequence[Ask], capacity: int) -> list[int]:
    """Tokens of each prompt that it would hold."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for ask in asks:
        usable = ask.blocks[: (ask.num_prompt - 1) // BLOCK]
        hits.append(BLOCK * leading(usable, held))
        for block in reversed(ask.blocks):  # as vLLM frees them: the beginning is used last
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


class Holds(Protocol):
    def __contains__(self, block: object, /) -> bool: ...


def leading(blocks: Sequence[int], held: Holds) -> int:
    """How many of the first blocks are held."""
    return next((place for place, block in enumerate(blocks) if block not in held), len(blocks))


class FleetSim(fleet.FleetSim):
    """`num_engines` engines of `num_blocks` usable blocks behind `chosen`. `run` once."""

    def __init__(self, num_engines: int, num_blocks: int, chosen: Policy | Chooser) -> None:
        shape = EngineShape(
            block_size=BLOCK,
            num_blocks=num_blocks + 1,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            max_model_len=CONTEXT,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        )
        super().__init__([EngineModel(shape, StepCost(H100_8B)) for _ in range(num_engines)], chosen)
        for worker in self._workers:
            # As all results so far have it: streams of events that never say they are complete, so that the
            # router's own placements count beside the index.
            worker.engine.kv = KvFollowing("sim")


def events_of(events: Sequence[EngineEvent]) -> Iterator[KvEvent]:
    """As the router gets them."""
    return kv_events(events, BLOCK)
