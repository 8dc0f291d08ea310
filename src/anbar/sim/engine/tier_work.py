"""What the tiers below the device did in a step, for whoever measures them as vLLM does.

Source: vLLM 0.32 `offloading/metrics.py`, `v1/kv_offload/{cpu/manager,tiering/metrics}.py`.
"""

from dataclasses import dataclass, field

from anbar.sim.engine.request import BlockKey
from anbar.tier.transfers import Direction

Asked = dict[BlockKey, float | None]
"""Chunks that a request asked a tier for, and when that first had to think; None: it has answered."""


@dataclass(slots=True)
class Answers:
    """Chunks that a tier found or did not find, each counted once for a request that has not run yet."""

    num_queries: int = 0
    num_hits: int = 0
    delays_s: list[float] = field(default_factory=list)
    """Of those that it did not know at once: time from the first question to the answer."""

    def note(self, asked: Asked, key: BlockKey, *, hit: bool, now_s: float) -> None:
        """The tier answered."""
        since_s = asked.get(key, now_s)
        if since_s is None:
            return
        if key in asked:
            self.delays_s.append(now_s - since_s)
        asked[key] = None
        self.num_queries += 1
        self.num_hits += hit


@dataclass(frozen=True, slots=True)
class Move:
    """Chunks that went between host RAM and the shared tier; as vLLM counts them, those of a store that wrote
    less than it was given, too."""

    direction: Direction
    ok: bool
    num_chunks: int
    seconds: float


@dataclass(slots=True)
class TierWork:
    """One step's."""

    loads: list[int] = field(default_factory=list)
    """Tokens of each copy to the device."""
    stores: list[int] = field(default_factory=list)
    """Tokens of each copy from the device."""
    num_lookups: int = 0
    """Of whole prompts."""
    delays_s: list[float] = field(default_factory=list)
    """Of prompts whose first lookup gave no answer: time from there to the answer, or to their end."""
    allocations: list[int] = field(default_factory=list)
    """Chunks that places in host RAM were wanted for, each time."""
    num_refused: int = 0
    """Stores that host RAM had no places for."""
    num_unplaced: int = 0
    """Chunks of the shared tier that host RAM had no places for."""
    host: Answers = field(default_factory=Answers)
    shared: Answers = field(default_factory=Answers)
    moves: list[Move] = field(default_factory=list)
