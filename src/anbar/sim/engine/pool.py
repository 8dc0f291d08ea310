"""The paged KV cache of the device: which blocks are free, in which order they go, what each of them holds.

Models vLLM 0.32 `v1/core/block_pool.py` and `FreeKVCacheBlockQueue` of `kv_cache_utils.py` for one
full-attention group. Blocks are numbers. Block 0 stands for "no block" and holds nothing; it doubles as the
head of the free queue, which is a ring of links in two lists.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter

from anbar.core.errors import ConfigError
from anbar.sim.engine.events import Cleared, EngineEvent, Removed, Stored
from anbar.sim.engine.request import BlockKey, EngineRequest

_RING = 0


class BlockPool:
    """Blocks 1..num_blocks - 1. A block is free when nobody holds it; a free block keeps its key, and can be
    hit, until it is taken for something else."""

    __slots__ = ("_by_key", "_caches", "_events", "_holders", "_keys", "_next", "_previous", "num_evictions",
                 "num_free")  # fmt: skip

    def __init__(self, num_blocks: int, *, prefix_caching: bool = True) -> None:
        """Raises ConfigError when there is no block to use."""
        if num_blocks < 2:
            raise ConfigError(f"num_blocks is {num_blocks}, but block 0 holds nothing: at least 2 are needed")
        self._caches = prefix_caching
        self._next = [*range(1, num_blocks), _RING]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]
        self._holders = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._by_key: dict[BlockKey, int | list[int]] = {}
        """The block of a key; several, oldest first, when requests computed the same thing side by side."""
        self._events: list[EngineEvent] = []
        self.num_free = num_blocks - 1
        self.num_evictions = 0
        """Cached blocks that were taken for something else."""

    @property
    def usage(self) -> float:
        """Share of the blocks that somebody holds, 0..1."""
        return 1.0 - self.num_free / (len(self._next) - 1)

    def find(self, keys: Sequence[BlockKey]) -> list[int]:
        """Blocks of the longest run of `keys`, from the first, that are cached."""
        found = []
        lookup = self._by_key.get
        for key in keys:
            block = lookup(key)
            if block is None:
                break
            found.append(block if type(block) is int else block[0])  # type: ignore[index]
        return found

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` nobody holds: holding them makes that many fewer free."""
        holders = self._holders
        return sum(not holders[block] for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """One more holder for each of `blocks`, which were found by key."""
        holders = self._holders
        for block in blocks:
            if not holders[block]:
                self._unlink(block)
            holders[block] += 1

    def take(self, count: int) -> list[int]:
        """The `count` blocks that are first to go, held once; what they cached is forgotten.

        The caller sees to it that so many are free.
        """
        assert count <= self.num_free, f"{count} blocks of {self.num_free} free ones"
        next_, holders, keys = self._next, self._holders, self._keys
        taken = []
        block = next_[_RING]
        for _ in range(count):
            taken.append(block)
            holders[block] = 1
            if keys[block] is not None:
                self._forget(block)
            block = next_[block]
        next_[_RING] = block
        self._previous[block] = _RING
        self.num_free -= count
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        """One holder fewer for each of `blocks`, given in the order in which they should go.

        Those that cache nothing go before all other free blocks, the rest after them.
        """
        holders, keys = self._holders, self._keys
        first: list[int] = []
        last: list[int] = []
        for block in blocks:
            holders[block] -= 1
            if not holders[block]:
                (first if keys[block] is None else last).append(block)
        if first:
            self._link(_RING, first)
        if last:
            self._link(self._previous[_RING], last)

    def cache(self, request: EngineRequest, num_blocks: int) -> None:
        """The first `num_blocks` blocks of a request are full, or will be when the step ends: from now on
        they can be hit. Does nothing without prefix caching."""
        start = request.num_keyed
        if not self._caches or num_blocks <= start:
            return
        keys = request.keys.first(num_blocks)
        blocks = request.blocks
        by_key = self._by_key
        for index in range(start, num_blocks):
            key, block = keys[index], blocks[index]
            self._keys[block] = key
            there = by_key.get(key)
            if there is None:
                by_key[key] = block
            elif isinstance(there, list):
                there.append(block)
            else:
                by_key[key] = [there, block]
        parent = keys[start - 1] if start else None
        self._events.append(Stored(request, start, tuple(keys[start:num_blocks]), parent))
        request.num_keyed = num_blocks

    def clear(self) -> bool:
        """Forget all that is cached; False, and nothing done, while a block is held."""
        if self.num_free != len(self._next) - 1:
            return False
        self._by_key.clear()
        self._keys = [None] * len(self._keys)
        self._events.append(Cleared())
        return True

    def take_events(self) -> list[EngineEvent]:
        """What happened since the last call, in order."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would give any."""
        return bool(self._events)

    def free_order(self) -> list[int]:
        """Free blocks, first to go first."""
        order, block = [], self._next[_RING]
        while block != _RING:
            order.append(block)
            block = self._next[block]
        return order

    def contents(self) -> list[BlockKey | None]:
        """What each block caches, by its number; None: nothing."""
        return list(self._keys)

    def check_integrity(self, requests: Iterable[EngineRequest]) -> None:
        """AssertionError unless all blocks are accounted for; `requests` are those that may hold any."""
        held = [0] * len(self._next)
        for request in requests:
            assert request.num_keyed <= len(request.blocks), "more keys than blocks"
            assert len(set(request.blocks)) == len(request.blocks), "a block twice in one request"
            for block in request.blocks:
                held[block] += 1
        assert held[_RING] == 0, "block 0 was handed out"
        assert held == self._holders, "holders differ from the requests' blocks"
        order = self.free_order()
        assert len(order) == self.num_free, "the free queue's length is wrong"
        assert set(order) == {b for b in range(1, len(held)) if not held[b]}, (
            "free blocks are not those unheld"
        )
        assert all(self._previous[self._next[b]] == b for b in (_RING, *order)), "links do not agree"
        in_map: list[tuple[int, BlockKey]] = []
        for key, there in self._by_key.items():
            in_map += [(block, key) for block in (there if isinstance(there, list) else [there])]
        keyed = [(block, key) for block, key in enumerate(self._keys) if key is not None]
        assert sorted(in_map, key=itemgetter(0)) == keyed, "map and blocks disagree"

    def _forget(self, block: int) -> None:
        key, self._keys[block] = self._keys[block], None
        there = self._by_key[key]
        if isinstance(there, list) and len(there) > 1:
            there.remove(block)
        else:
            del self._by_key[key]
        self.num_evictions += 1
        self._events.append(Removed((key,)))

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

    def _link(self, before: int, blocks: list[int]) -> None:
        """Put `blocks` behind `before`."""
        next_, previous = self._next, self._previous
        after = next_[before]
        for block in blocks:
            next_[before] = block
            previous[block] = before
            before = block
        next_[before] = after
        previous[after] = before
        self.num_free += len(blocks)
