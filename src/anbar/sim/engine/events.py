"""What an engine announces of its blocks, in the order in which vLLM publishes it.

They name requests and block positions rather than tokens, so that the simulator need not have any;
the emulator turns them into vLLM's wire form.
"""

from dataclasses import dataclass

from anbar.core.events import Tier
from anbar.sim.engine.request import BlockKey, EngineRequest


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks `first_block`..`first_block + len(keys)` of `request` are on the device, under `keys`."""

    request: EngineRequest
    first_block: int
    keys: tuple[BlockKey, ...]
    parent: BlockKey | None
    """Key of the block before the first; None at the start of a prompt."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks left the device; one event per block, as vLLM has it."""

    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class TierStored:
    """Chunks, each named by the key of its last block, are on a tier below the device."""

    keys: tuple[BlockKey, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class TierRemoved:
    """Chunks left a tier below the device."""

    keys: tuple[BlockKey, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class Cleared:
    """The device cache was dropped."""


EngineEvent = Stored | Removed | TierStored | TierRemoved | Cleared
