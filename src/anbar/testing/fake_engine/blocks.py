"""The engine's paged prefix cache: block hashes, the device pool, host RAM and a shared store.

The rules are vLLM 0.32's (`v1/core/block_pool.py`, `kv_cache_manager.py`): only full blocks are cached,
under the hash of (parent's hash, tokens, extra keys); a prompt's last token is never served from the device;
blocks of finished requests stay until their place is needed, the longest unused first and a request's tail
before its head. The offload tiers hold chunks of blocks under the hash of a chunk's last block, and may serve
a prompt to its last token (`distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`).
"""

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from anbar.testing.fake_engine.wire import AllBlocksCleared, BlockRemoved, BlockStored, Event

_NONE_HASH = hashlib.sha256(pickle.dumps("vllm-none-hash", protocol=pickle.HIGHEST_PROTOCOL)).digest()


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes equal tokens different KV: LoRA on every block, the salt on the first."""

    lora: str | None = None
    salt: str | None = None

    def tagged(self, index: int) -> tuple[tuple[str, ...], ...] | None:
        """The extra keys that go into block `index`'s hash."""
        keys: list[tuple[str, ...]] = []
        if self.lora:
            keys.append(("lora", self.lora, self.lora))
        if self.salt and index == 0:
            keys.append(("cache_salt", self.salt))
        return tuple(keys) or None

    def published(self, index: int) -> tuple[str, ...] | None:
        """The same keys as an event shows them."""
        tagged = self.tagged(index)
        return None if tagged is None else tuple(key[1] for key in tagged)


def block_hashes(
    tokens: Sequence[int], block_size: int, identity: Identity, known: Sequence[bytes] = ()
) -> list[bytes]:
    """Hashes of the full blocks of `tokens`; `known` are those of its first blocks."""
    hashes = list(known)
    for index in range(len(hashes), len(tokens) // block_size):
        block = tuple(tokens[index * block_size : (index + 1) * block_size])
        parent = hashes[-1] if hashes else _NONE_HASH
        data = pickle.dumps((parent, block, identity.tagged(index)), protocol=pickle.HIGHEST_PROTOCOL)
        hashes.append(hashlib.sha256(data).digest())
    return hashes


class SharedStore:
    """The shared tier: one object given to several fakes. Outlives each of them."""

    def __init__(self, owner: str = "anbar:test") -> None:
        self.owner = owner
        """The `ownership` of its events, `anbar:<store id>`."""
        self.blocks: set[bytes] = set()
        """Hashes of the last blocks of its chunks."""


@dataclass(slots=True)
class Allocation:
    """The blocks that one running request holds: ids of the pool, hashes of the full ones."""

    tokens: list[int]
    identity: Identity
    hashes: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    num_cached_blocks: int = 0
    num_device: int = 0
    num_host: int = 0
    num_shared: int = 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that need no computing: what usage reports."""
        return self.num_device + self.num_host + self.num_shared


@dataclass(slots=True)
class _Block:
    references: int = 0
    hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where blocks go beyond the device."""

    host_chunks: int = 0
    """Room in host RAM; 0 means no host tier."""
    shared: SharedStore | None = None
    """Every chunk that is computed is stored there."""
    chunk_blocks: int = 1
    """Device blocks in a chunk."""


NO_TIERS = Tiers()


class NoFreeBlocks(Exception):
    """The pool has not enough unused blocks now: the request waits."""


class PagedCache:
    """Device blocks, and the tiers below them; collects events."""

    def __init__(self, num_blocks: int, block_size: int, tiers: Tiers = NO_TIERS) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks {num_blocks} and block_size {block_size} must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[bytes, dict[int, None]] = {}
        self._host: OrderedDict[bytes, None] = OrderedDict()
        self._tiers = tiers
        self._events: list[Event] = []

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def take_events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def holds(self, block_hash: bytes) -> bool:
        """Whether the device has this block."""
        return block_hash in self._by_hash

    def admit(self, tokens: Sequence[int], identity: Identity, *, reads_cache: bool = True) -> Allocation:
        """Take the cached prefix of a prompt and blocks for the rest; its full blocks count as cached.

        Raises NoFreeBlocks when the rest does not fit now.
        """
        seq = Allocation(list(tokens), identity)
        seq.hashes = block_hashes(seq.tokens, self.block_size, identity)
        usable = seq.hashes[: (len(tokens) - 1) // self.block_size] if reads_cache else []
        device = next((i for i, h in enumerate(usable) if h not in self._by_hash), len(usable))
        hits = [next(iter(self._by_hash[h])) for h in usable[:device]]
        needed = -(-len(tokens) // self.block_size) - device
        if needed > len(self._free) - sum(1 for block in hits if not self._blocks[block].references):
            raise NoFreeBlocks
        for block in hits:
            self._free.pop(block, None)
            self._blocks[block].references += 1
        seq.blocks = hits + [self._take() for _ in range(needed)]
        seq.num_device = device * self.block_size
        if reads_cache:
            self._look_below(seq)
        seq.num_cached_blocks = device
        self._cache_full(seq, len(seq.hashes))
        return seq

    def append(self, seq: Allocation, token: int) -> None:
        """Add a generated token whose KV is about to be computed; raises NoFreeBlocks."""
        if len(seq.tokens) == len(seq.blocks) * self.block_size:
            seq.blocks.append(self._take())
        seq.tokens.append(token)
        if len(seq.tokens) % self.block_size == 0:
            seq.hashes = block_hashes(seq.tokens, self.block_size, seq.identity, seq.hashes)
            self._cache_full(seq, len(seq.hashes))

    def release(self, seq: Allocation) -> None:
        """The request ended: cached blocks become evictable, tail first; the others are free at once."""
        for block in reversed(seq.blocks):
            entry = self._blocks[block]
            entry.references -= 1
            if entry.references == 0:
                self._free[block] = None
                if entry.hash is None:
                    self._free.move_to_end(block, last=False)
        seq.blocks = []

    def clear(self) -> bool:
        """Drop the device cache (`reset_prefix_cache`); refused while requests hold blocks."""
        if self.num_used:
            return False
        for entry in self._blocks:
            entry.hash = None
        self._by_hash.clear()
        self._events.append(AllBlocksCleared())
        return True

    def check_integrity(self) -> None:
        """Every block is free or referenced, and the hash map names exactly the hashed blocks."""
        for index, entry in enumerate(self._blocks):
            assert (entry.references == 0) == (index in self._free), index
            assert entry.hash is None or index in self._by_hash[entry.hash], index
        assert sum(map(len, self._by_hash.values())) == sum(e.hash is not None for e in self._blocks)
        assert len(self._host) <= self._tiers.host_chunks

    def _look_below(self, seq: Allocation) -> None:
        """Count what continues the device's prefix in the tiers below: whole chunks, one at least.

        The device's prefix may end inside the first of them, which is then loaded from there on.
        """
        chunk_blocks = self._tiers.chunk_blocks
        chunk_tokens = chunk_blocks * self.block_size
        ends = seq.hashes[chunk_blocks - 1 :: chunk_blocks]
        stored = self._tiers.shared.blocks if self._tiers.shared else set[bytes]()
        host = shared = 0
        at = seq.num_device
        for end in ends[at // chunk_tokens :]:
            gained = chunk_tokens - at % chunk_tokens
            if end in self._host:
                host += gained
            elif end in stored:
                shared += gained
            else:
                break
            at += gained
        if host + shared >= chunk_tokens:
            seq.num_host, seq.num_shared = host, shared

    def _take(self) -> int:
        if not self._free:
            raise NoFreeBlocks
        block, _ = self._free.popitem(last=False)
        entry = self._blocks[block]
        if entry.hash is not None:
            same = self._by_hash[entry.hash]
            del same[block]
            if not same:
                del self._by_hash[entry.hash]
            self._events.append(BlockRemoved([entry.hash], "GPU"))
            entry.hash = None
        entry.references = 1
        return block

    def _cache_full(self, seq: Allocation, num_full: int) -> None:
        first = seq.num_cached_blocks
        if num_full <= first:
            return
        new = seq.hashes[first:num_full]
        for block, block_hash in zip(seq.blocks[first:num_full], new, strict=True):
            self._blocks[block].hash = block_hash
            self._by_hash.setdefault(block_hash, {})[block] = None
        seq.num_cached_blocks = num_full
        self._events.append(
            BlockStored(
                block_hashes=new,
                parent_block_hash=seq.hashes[first - 1] if first else None,
                token_ids=seq.tokens[first * self.block_size : num_full * self.block_size],
                block_size=self.block_size,
                medium="GPU",
                lora_name=seq.identity.lora,
                extra_keys=[seq.identity.published(i) for i in range(first, num_full)],
            )
        )
        chunk_blocks = self._tiers.chunk_blocks
        ends = range((first // chunk_blocks + 1) * chunk_blocks - 1, num_full, chunk_blocks)
        self._offload([seq.hashes[index] for index in ends])

    def _offload(self, ends: Sequence[bytes]) -> None:
        """Copy new chunks to the tiers below, announcing each by hash alone (a placeholder event)."""
        if self._tiers.host_chunks:
            fresh = [end for end in ends if end not in self._host]
            for end in ends:
                self._host[end] = None
                self._host.move_to_end(end)
            evicted: list[bytes] = []
            while len(self._host) > self._tiers.host_chunks:
                evicted.append(self._host.popitem(last=False)[0])
            if evicted:
                self._events.append(BlockRemoved(evicted, "CPU"))
            self._events.extend(placeholder(end, "CPU") for end in fresh if end in self._host)
        shared = self._tiers.shared
        if shared is not None:
            fresh = [end for end in ends if end not in shared.blocks]
            shared.blocks.update(fresh)
            self._events.extend(
                placeholder(end, "STORAGE", locality="REMOTE", ownership=shared.owner) for end in fresh
            )


def placeholder(
    block_hash: bytes, medium: str, locality: str | None = None, ownership: str | None = None
) -> BlockStored:
    """An offload tier's event: a hash without tokens, parent or size."""
    return BlockStored(
        [block_hash], None, [], 0, medium, locality=locality, ownership=ownership, spec_kind=None
    )
