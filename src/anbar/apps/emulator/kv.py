"""From the engine model's events, which name requests and keys, to vLLM's, which name tokens and hashes.

Source: vLLM 0.32 `v1/core/block_pool.py`, `v1/core/kv_cache_manager.py` (`take_events`) for the device, and
`distributed/kv_transfer/kv_connector/v1/offloading/events.py` for the tiers below it, whose events carry
neither tokens nor parents.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from anbar.adapters.vllm.kv_publish import (
    MEDIUM_DEVICE,
    MEDIUM_HOST,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    WireEvent,
    WireHash,
    event_hash,
)
from anbar.apps.emulator.sequence import TokenKeys
from anbar.core.events import Tier
from anbar.sim.engine.events import Cleared, EngineEvent, Removed, Stored, TierRemoved, TierStored
from anbar.sim.engine.request import BlockKey

_GROUP = 0
_KIND = "full_attention"


Shown = Callable[[BlockKey], WireHash]


class WireEvents:
    """Translates batches; `owner` is what the shared tier calls its store."""

    def __init__(self, owner: str, *, int_hashes: bool) -> None:
        self._owner = owner
        self._shown: Shown = _as_int if int_hashes else _as_bytes

    def batch(self, events: Iterable[EngineEvent]) -> list[WireEvent]:
        """One batch as vLLM publishes it."""
        batch: list[WireEvent] = []
        for event in events:
            match event:
                case Stored():
                    batch.append(self._stored(event))
                case Removed():
                    batch.append(BlockRemoved(self._hashes(event.keys), MEDIUM_DEVICE, _GROUP))
                case TierStored():
                    batch += (self._placeholder(key, event.tier) for key in event.keys)
                case TierRemoved():
                    medium, locality, owner = self._place(event.tier)
                    batch.append(BlockRemoved(self._hashes(event.keys), medium, _GROUP, locality, owner))
                case Cleared():
                    batch.append(AllBlocksCleared())
        return batch

    def _stored(self, event: Stored) -> BlockStored:
        keys = cast(TokenKeys, event.request.keys)
        identity, first, num = keys.identity, event.first_block, len(event.keys)
        return BlockStored(
            block_hashes=self._hashes(event.keys),
            parent_block_hash=None if event.parent is None else self._shown(event.parent),
            token_ids=keys.tokens(first, num),
            block_size=keys.block_size,
            lora_id=keys.lora_id,
            medium=MEDIUM_DEVICE,
            lora_name=identity.lora,
            extra_keys=[identity.published(index) for index in range(first, first + num)],
            group_idx=_GROUP,
            kv_cache_spec_kind=_KIND,
            session_id=keys.session,
        )

    def _placeholder(self, key: BlockKey, tier: Tier) -> BlockStored:
        medium, locality, owner = self._place(tier)
        return BlockStored(
            block_hashes=[self._shown(key)],
            parent_block_hash=None,
            token_ids=[],
            block_size=0,
            lora_id=None,
            medium=medium,
            lora_name=None,
            group_idx=_GROUP,
            locality=locality,
            ownership=owner,
        )

    def _place(self, tier: Tier) -> tuple[str, str | None, str | None]:
        """Medium, locality and ownership as events name a tier below the device."""
        if tier is Tier.HOST:
            return MEDIUM_HOST, None, None
        return MEDIUM_STORAGE, "REMOTE", self._owner or None

    def _hashes(self, keys: Sequence[BlockKey]) -> list[WireHash]:
        return [self._shown(key) for key in keys]


def _as_int(key: BlockKey) -> int:
    return event_hash(cast(bytes, key))


def _as_bytes(key: BlockKey) -> bytes:
    return cast(bytes, key)
