"""What engines say about their KV blocks, as frozen values (the wire is `adapters.vllm.kv_wire`)."""

from dataclasses import dataclass
from enum import Enum

from anbar.core.ids import EngineHash


class Tier(Enum):
    """Where a block's KV lives, in the order in which an engine looks for it."""

    DEVICE = "device"
    HOST = "host"
    SHARED = "shared"


ExtraKeys = tuple[object, ...]
"""What makes two equal token runs different KV, as the engine publishes it for one block: LoRA name,
(multimodal id, offset), cache salt, prompt-embedding digests; empty when there is nothing."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks became available on a tier of the publishing engine.

    `token_ids` holds the tokens of all `hashes` one after the other and is empty in placeholder events of
    the offload tiers, which name blocks only by hash. `extra_keys` is None when the event says nothing of
    them (offload tiers), else one entry per block. `owner` names the store of a SHARED block, else "".
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    token_ids: tuple[int, ...]
    block_size: int
    tier: Tier
    group: int = 0
    lora: str | None = None
    extra_keys: tuple[ExtraKeys, ...] | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks left a tier."""

    hashes: tuple[EngineHash, ...]
    tier: Tier
    group: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The engine dropped its device cache."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of a kind or medium this version does not know: counted, never acted on."""

    what: str


KvEvent = BlocksStored | BlocksRemoved | AllCleared | Unknown


@dataclass(frozen=True, slots=True)
class KvBatch:
    """One published batch: `seq` counts from 0 for each life of an engine's publisher."""

    seq: int
    events: tuple[KvEvent, ...]
    timestamp_s: float = 0.0
    dp_rank: int = 0
