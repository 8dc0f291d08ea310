"""The block pool against a naive one, and the rules that vLLM's has, one by one."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.errors import ConfigError
from anbar.core.ids import RequestId
from anbar.sim.engine.events import Cleared, EngineEvent, Removed, Stored
from anbar.sim.engine.pool import BlockPool
from anbar.sim.engine.request import BlockKey, EngineRequest

NUM_BLOCKS = 9


def holder(keys: str = "") -> EngineRequest:
    """A request whose blocks have these letters as keys."""
    return EngineRequest(RequestId("r"), 100, 1, _Letters(keys))


@dataclass(frozen=True)
class _Letters:
    """Keys that are letters, or `chained`: all letters so far, as real ones tell all before them."""

    letters: str
    chained: bool = False

    def first(self, num_blocks: int) -> tuple[BlockKey, ...]:
        if self.chained:
            return tuple(self.letters[: i + 1] for i in range(num_blocks))
        return tuple(self.letters[:num_blocks])


def cached(pool: BlockPool, keys: str) -> EngineRequest:
    """A request that holds new blocks, all cached under `keys`."""
    request = holder(keys)
    request.blocks = pool.take(len(keys))
    pool.cache(request, len(keys))
    return request


def test_blocks_go_in_the_order_of_their_numbers_and_0_is_none() -> None:
    """A new pool hands out block 1 first, and never block 0."""
    pool = BlockPool(5)
    assert pool.take(4) == [1, 2, 3, 4]
    assert pool.num_free == 0
    assert pool.usage == 1.0


def test_a_pool_without_a_block_to_use_is_refused() -> None:
    """One block would be block 0."""
    with pytest.raises(ConfigError, match="num_blocks is 1"):
        BlockPool(1)


def test_what_caches_nothing_goes_first_and_the_last_released_before_all() -> None:
    """A request of two cached blocks and two that are not is released, end of the prompt first: those that
    are not cached go before all free blocks, the later before the earlier; cached ones after all."""
    pool = BlockPool(7)
    request = holder("ab")
    request.blocks = pool.take(4)
    pool.cache(request, 2)
    pool.release(reversed(request.blocks))
    assert pool.free_order() == [4, 3, 5, 6, 2, 1]


def test_the_oldest_of_equal_blocks_is_hit_until_it_is_gone() -> None:
    """Two requests compute the same block side by side: the first one's is hit, also when it was cached again
    after the second one's it comes after that."""
    pool = BlockPool(3)
    first, second = cached(pool, "a"), cached(pool, "a")
    assert pool.find("a") == first.blocks == [1]
    pool.release(first.blocks)
    assert pool.take(1) == [1]
    assert pool.find("a") == second.blocks == [2]
    again = holder("a")
    again.blocks = [1]
    pool.cache(again, 1)
    assert pool.find("a") == [2]
    pool.check_integrity([second, again])


def test_one_event_per_block_that_goes_and_one_for_all_that_come() -> None:
    """Three blocks are cached in two calls, and two of them go at once."""
    pool = BlockPool(4)
    request = holder("abc")
    request.blocks = pool.take(3)
    pool.cache(request, 1)
    pool.cache(request, 3)
    pool.cache(request, 3)
    pool.release(reversed(request.blocks))
    pool.take(2)
    stored = [Stored(request, 0, ("a",), None), Stored(request, 1, ("b", "c"), "a")]
    assert pool.take_events() == [*stored, Removed(("c",)), Removed(("b",))]
    assert pool.take_events() == []
    assert pool.num_evictions == 2


def test_a_hit_free_block_is_no_longer_free() -> None:
    """It leaves the free queue from the middle, and comes back as the last."""
    pool = BlockPool(5)
    requests = [cached(pool, key) for key in "abcd"]
    for request in requests:
        pool.release(request.blocks)
    found = pool.find("b")
    assert pool.num_free_among(found) == 1
    pool.hold(found)
    assert pool.free_order() == [1, 3, 4]
    pool.release(found)
    assert pool.free_order() == [1, 3, 4, 2]


def test_without_prefix_caching_nothing_is_hit_or_announced() -> None:
    """Released blocks are the next to be taken."""
    pool = BlockPool(4, prefix_caching=False)
    request = cached(pool, "ab")
    assert pool.find("ab") == []
    pool.release(reversed(request.blocks))
    assert pool.free_order() == [2, 1, 3]
    assert pool.take_events() == []


def test_a_cache_in_use_is_not_cleared() -> None:
    """Clearing is refused while a block is held; after it, nothing is hit and one event says so."""
    pool = BlockPool(4)
    request = cached(pool, "ab")
    assert not pool.clear()
    pool.release(reversed(request.blocks))
    pool.take_events()
    assert pool.clear()
    assert pool.find("ab") == []
    assert pool.take_events() == [Cleared()]


def test_a_lost_block_is_noticed() -> None:
    """A block that no request has, though the pool believes it held."""
    pool = BlockPool(4)
    pool.take(1)
    with pytest.raises(AssertionError, match="holders differ"):
        pool.check_integrity([])


@dataclass
class NaivePool:
    """The same rules, written for reading only."""

    free: list[int] = field(default_factory=lambda: list(range(1, NUM_BLOCKS)))
    holders: dict[int, int] = field(default_factory=dict)
    cached: list[tuple[BlockKey, int]] = field(default_factory=list)
    """Oldest first."""
    events: list[EngineEvent] = field(default_factory=list)

    def key_of(self, block: int) -> BlockKey | None:
        return next((key for key, b in self.cached if b == block), None)

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.holders[block] = 1
            key = self.key_of(block)
            if key is not None:
                self.cached.remove((key, block))
                self.events.append(Removed((key,)))
        return taken

    def find(self, keys: str) -> list[int]:
        found = []
        for key in keys:
            blocks = [block for k, block in self.cached if k == key]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self.holders[block] = self.holders.get(block, 0) + 1
        self.free = [block for block in self.free if block not in blocks]

    def release(self, blocks: list[int]) -> None:
        unheld = []
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                unheld.append(block)
        first = [block for block in unheld if self.key_of(block) is None]
        self.free = first + self.free + [block for block in unheld if block not in first]

    def cache(self, request: EngineRequest, start: int, end: int) -> None:
        keys = tuple(request.keys.first(end))
        self.cached += list(zip(keys[start:], request.blocks[start:end], strict=True))
        self.events.append(Stored(request, start, keys[start:], keys[start - 1] if start else None))


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(("start", "grow", "end")), st.integers(0, 7), st.text("ab", max_size=6)),
    max_size=40,
)


@given(OPERATIONS)
def test_like_a_naive_pool(operations: list[tuple[str, int, str]]) -> None:
    """Requests come with a prefix that may be cached, take blocks, cache some of them, and go."""
    pool, naive = BlockPool(NUM_BLOCKS), NaivePool()
    requests: list[EngineRequest] = []
    for kind, number, letters in operations:
        if kind == "start":
            request = EngineRequest(RequestId("r"), 1, 1, _Letters(letters, chained=True))
            found = pool.find(request.keys.first(len(letters)))  # type: ignore[arg-type]
            assert found == naive.find(request.keys.first(len(letters)))  # type: ignore[arg-type]
            assert pool.num_free_among(found) == sum(block in naive.free for block in found)
            pool.hold(found)
            naive.hold(found)
            request.blocks, request.num_keyed = list(found), len(found)
            requests.append(request)
        elif requests and kind == "grow":
            request = requests[number % len(requests)]
            count = min(len(request.keys.letters) - len(request.blocks), pool.num_free)  # type: ignore[attr-defined]
            taken = pool.take(count)
            assert taken == naive.take(count)
            request.blocks += taken
            start, end = request.num_keyed, max(request.num_keyed, len(request.blocks) - number % 2)
            pool.cache(request, end)
            if end > start:
                naive.cache(request, start, end)
        elif requests:
            request = requests.pop(number % len(requests))
            blocks = request.blocks[::-1]
            pool.release(blocks)
            naive.release(blocks)
        assert pool.free_order() == naive.free
        assert pool.contents() == [naive.key_of(block) for block in range(NUM_BLOCKS)]
        pool.check_integrity(requests)
    assert pool.take_events() == naive.events
