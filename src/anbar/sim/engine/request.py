"""One request as the engine model sees it: lengths and block keys, never text."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from anbar.core.ids import RequestId
from anbar.tier.wish import DEFAULT, Wish

BlockKey = Hashable
"""Identity of a full block and everything before it. The emulator uses vLLM's own hash, a trace its hash ids:
the model only compares them."""


class BlockKeys(Protocol):
    """The keys of a request's blocks, prompt and answer.

    `first(n)` gives the keys of its first n full blocks, always the same ones. It is asked only for blocks
    whose tokens are known: those of the prompt, and of the answer as far as it has been generated.
    """

    def first(self, num_blocks: int) -> Sequence[BlockKey]: ...


class Status(Enum):
    """Where a request stands (vLLM's `RequestStatus`)."""

    WAITING = "waiting"
    LOADING = "loading"
    """Its blocks are being loaded from a tier (WAITING_FOR_REMOTE_KVS)."""
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


@dataclass(eq=False, slots=True)
class EngineRequest:
    """State of one request in one engine. The first fields are the caller's, the rest the engine's."""

    id: RequestId
    num_prompt_tokens: int
    num_answer_tokens: int
    """It finishes when it has generated that many (at least 1)."""
    keys: BlockKeys
    reads_cache: bool = True
    """False: prompt log-probabilities are wanted, so nothing is looked up (`skip_reading_prefix_cache`)."""
    max_load_tokens: int | None = None
    """Most tokens to load from the tiers below the device; None: no limit (`kv_transfer_params`)."""
    max_offload_tokens: int | None = None
    loads_shared: bool = True
    """False: nothing is loaded from the shared tier (`kv_load_tiers` names only the host's)."""
    wish: Wish = DEFAULT
    """What it asks of the shared tier (`kv_transfer_params.anbar`)."""
    num_remote_tokens: int = 0
    """Leading prompt tokens that another engine has computed, and that are here at once."""

    status: Status = Status.WAITING
    num_generated: int = 0
    num_computed: int = 0
    """Tokens whose KV is on the device, or will be when the current step ends."""
    blocks: list[int] = field(default_factory=list)
    num_keyed: int = 0
    """Leading blocks that can be hit by others (`num_cached_block`)."""
    num_preemptions: int = 0
    num_device_hit: int = 0
    """Prompt tokens that the first admission found on the device."""
    num_external_hit: int = 0
    """Prompt tokens that the first admission loads from a tier below."""
    num_shared_hit: int = 0
    """Those of them that the shared tier was asked for on behalf of this request."""

    @property
    def num_tokens(self) -> int:
        """Prompt and answer so far."""
        return self.num_prompt_tokens + self.num_generated

    @property
    def num_cached_tokens(self) -> int:
        """What usage reports as `cached_tokens`."""
        return self.num_device_hit + self.num_external_hit
