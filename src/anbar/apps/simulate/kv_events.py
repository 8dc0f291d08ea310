"""What the engine model announces, as the router would read it off the wire."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from anbar.core.events import BlocksRemoved, BlocksStored, KvEvent, Tier
from anbar.core.ids import EngineHash
from anbar.sim.engine.events import EngineEvent, Removed, Stored, TierRemoved, TierStored
from anbar.sim.engine.request import BlockKey

STORE = "anbar:simulated"
"""Owner of the shared store's entries."""


def kv_events(events: Sequence[EngineEvent], block_size: int) -> Iterator[KvEvent]:
    """As the router gets them; blocks of answers, which no prompt begins with, have no names and are left
    out."""
    for event in events:
        if isinstance(event, Stored):
            named = [key for key in event.keys if isinstance(key, int)]
            if named and not isinstance(event.parent, tuple):
                yield BlocksStored(
                    hashes=tuple(_hash(key) for key in named),
                    parent=None if event.parent is None else _hash(event.parent),
                    token_ids=tokens(named, block_size),
                    block_size=block_size,
                    tier=Tier.DEVICE,
                    extra_keys=((),) * len(named),
                )
        elif isinstance(event, Removed):
            if hashes := _hashes(event.keys):
                yield BlocksRemoved(hashes, Tier.DEVICE)
        elif isinstance(event, TierStored):
            if hashes := _hashes(event.keys):
                yield BlocksStored(hashes, None, (), 0, event.tier, owner=_owner(event.tier))
        elif isinstance(event, TierRemoved) and (hashes := _hashes(event.keys)):
            yield BlocksRemoved(hashes, event.tier, owner=_owner(event.tier))


def tokens(blocks: Sequence[int], block_size: int) -> tuple[int, ...]:
    """Each block is its name, again and again."""
    return tuple(chain.from_iterable(map(repeat, blocks, repeat(block_size))))


def _owner(tier: Tier) -> str:
    return STORE if tier is Tier.SHARED else ""


def _hashes(keys: Sequence[BlockKey]) -> tuple[EngineHash, ...]:
    return tuple(_hash(key) for key in keys if isinstance(key, int))


def _hash(key: BlockKey) -> EngineHash:
    assert isinstance(key, int), "a block that has a name"
    return EngineHash(key.to_bytes(8, "big"))
