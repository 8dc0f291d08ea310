"""The fleet as a frozen value: what the router knows of each engine at the moment it decides."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from anbar.core.cost import LoadCost, PrefillCost, PrefillWork
from anbar.core.events import Tier
from anbar.core.ids import EngineId


class EngineState(Enum):
    """Whether an engine may be given requests."""

    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """It serves, and gets nothing new: somebody drains it."""
    RESTING = "resting"
    """It serves, and gets nothing now: it asked for a pause, or failed too often."""


class EngineView(msgspec.Struct, frozen=True):
    """One engine: `models` are the names it serves; `queued_prefill_tokens` and `queued_prefill_pairs` the
    work of prompts that were sent to it and are not computed, of which `prefill_done_s` seconds are done;
    `num_decoding` requests that it is generating for; `loads` what tiers cost, as far as that is known;
    `adapters` the LoRA adapters in its slots, `adapters_full` whether running requests use every slot;
    `doubt` by which share what is learned of its speed may be off (a standard error); `kv_tokens` what its
    device cache has room for, 0 where it does not say; `kv_held_tokens` what requests in flight hold of that
    beyond what was cached; `answer_s` how long answers mostly run after their first token, 0 until known."""

    id: EngineId
    state: EngineState
    models: frozenset[str]
    block_size: int
    max_model_len: int
    prefill: PrefillCost
    queued_prefill_tokens: int = 0
    num_decoding: int = 0
    num_in_flight: int = 0
    queued_prefill_pairs: int = 0
    prefill_done_s: float = 0.0
    loads: Mapping[Tier, LoadCost] = msgspec.field(default_factory=dict)
    adapters: frozenset[str] = frozenset()
    adapters_full: bool = False
    doubt: float = 0.0
    kv_tokens: int = 0
    kv_held_tokens: int = 0
    answer_s: float = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until it has computed what it was sent before, and what running answers take from it."""
        queued = PrefillWork(self.queued_prefill_tokens, self.queued_prefill_pairs)
        left_s = max(0.0, self.prefill.work_seconds(queued) - self.prefill_done_s)
        return left_s + self.prefill.s_per_answer * self.num_decoding


class PrefixMatch(msgspec.Struct, frozen=True):
    """Tokens of a prompt's prefix that one engine would not compute, cumulatively by tier:
    `device` <= `host` <= `shared` (a tier continues where the one before ends).

    `unproven`: the last so many of the `device` tokens are believed in only because this router sent such a
    prompt there; no event of the engine has shown them. Should the engine report fewer cached tokens, by no
    more than these, the index is not to blame."""

    device: int = 0
    host: int = 0
    shared: int = 0
    unproven: int = 0

    @property
    def total(self) -> int:
        """Tokens served from any tier: what the engine will report as `cached_tokens`."""
        return self.shared


NO_MATCH = PrefixMatch()
"""Nothing would be reused."""


class Prediction(msgspec.Struct, frozen=True):
    """What the router expects of its choice, to be compared with what the engine reports."""

    match: PrefixMatch = NO_MATCH
    wait_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    later_s: float = 0.0
    """By how much its prefill delays prompts that come later, summed over them."""
    imposed_s: float = 0.0
    """By how much its prefill delays the answers that run there meanwhile, summed over them."""

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.load_s + self.prefill_s


NO_PREDICTION = Prediction()
"""Of an engine that nobody made one for."""


class Route(msgspec.Struct, frozen=True):
    """A decision: `fallbacks` are tried in order if `target` fails before its first byte."""

    target: EngineId
    fallbacks: tuple[EngineId, ...]
    predictions: Mapping[EngineId, Prediction]
    policy: str
    why: object
    """Says with `str` why; many a request asks for no words."""

    @property
    def reason(self) -> str:
        """One sentence for people."""
        return str(self.why)
