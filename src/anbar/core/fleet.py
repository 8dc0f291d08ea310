"""The fleet as a frozen value: what the router knows of each engine at the moment it decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from anbar.core.cost import PrefillCost, TierCost
from anbar.core.events import Tier
from anbar.core.ids import EngineId


class EngineState(Enum):
    """Whether an engine may be given requests."""

    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine: `models` are the names it serves, `queued_prefill_tokens` prompt tokens sent to it that
    it must still compute, `num_decoding` requests that stream from it, `kv_bytes_per_token` the size of one
    token's KV over all its ranks."""

    id: EngineId
    state: EngineState
    models: frozenset[str]
    block_size: int
    max_model_len: int
    prefill: PrefillCost
    queued_prefill_tokens: int = 0
    num_decoding: int = 0
    num_in_flight: int = 0
    kv_bytes_per_token: int = 0
    tier_costs: Mapping[Tier, TierCost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Tokens of a prompt's prefix that one engine would not compute, cumulatively by tier:
    `device` <= `host` <= `shared` (a tier continues where the one before ends)."""

    device: int = 0
    host: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        """Tokens served from any tier: what the engine will report as `cached_tokens`."""
        return self.shared


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the router expects of its choice, to be compared with what the engine reports."""

    match: PrefixMatch = PrefixMatch()
    wait_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.load_s + self.prefill_s


@dataclass(frozen=True, slots=True)
class Route:
    """A decision: `fallbacks` are tried in order if `target` fails before its first byte."""

    target: EngineId
    fallbacks: tuple[EngineId, ...]
    predictions: Mapping[EngineId, Prediction]
    policy: str
    reason: str
