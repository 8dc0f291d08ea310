"""What one engine step does, as plain numbers: input of the step cost, output of the engine."""

from dataclasses import dataclass, field

from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.tier_work import TierWork


@dataclass(slots=True)  # not frozen: a step makes hundreds, and freezing triples what that takes
class Piece:
    """Tokens of one request computed in a step: `num_new` after `num_before` that are there already."""

    request: EngineRequest
    num_before: int
    num_new: int


@dataclass(slots=True)
class Step:
    """A scheduled step (`SchedulerOutput`), or a stride of `num_repeats` equal decode steps."""

    pieces: list[Piece] = field(default_factory=list)
    """In vLLM's order: running requests, then admitted ones."""
    num_admitted: int = 0
    """So many of the last pieces are of requests admitted in this step."""
    preempted: list[EngineRequest] = field(default_factory=list)
    num_loaded_tokens: int = 0
    """Tokens whose KV is copied to the device during this step."""
    num_load_copies: int = 0
    """Contiguous pieces of those copies: bandwidth depends on their size."""
    num_stored_tokens: int = 0
    """Tokens whose KV is copied from the device during this step."""
    num_store_copies: int = 0
    num_repeats: int = 1
    tier_work: TierWork | None = None
    """None: there are no tiers below the device."""


@dataclass(slots=True)  # see Piece
class Output:
    """Tokens that a request got in a step."""

    request: EngineRequest
    num_tokens: int
    finished: bool


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became visible when a step ended."""

    outputs: tuple[Output, ...]
    events: tuple[EngineEvent, ...]
    """One published batch; empty: nothing is published."""
