"""Miss-ratio curves against a cache that is really kept, and sampled ones against exact ones."""

import gzip
import json
import random
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.plan.miss_ratio import MissRatioCurve, reuse_of, token_counts
from anbar.plan.stack_distance import StackDistances

TRACE = Path(__file__).parents[3] / "benchmarks" / "data" / "mooncake_conversation_4000.jsonl.gz"
BLOCK = 4

Prompt = tuple[tuple[int, ...], int]


def chained(words: Sequence[int], num_tokens: int) -> Prompt:
    """Names of a prompt's blocks: each stands for all words up to it, as a hash chain's do."""
    names = tuple(hash(tuple(words[: place + 1])) for place in range(len(words)))
    return names, num_tokens


@st.composite
def prompts(draw: st.DrawFn) -> list[Prompt]:
    """Prompts that share beginnings, some with a last block that is not full."""
    drawn = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=25))
    return [chained(words, BLOCK * len(words) - draw(st.integers(0, BLOCK - 1))) for words in drawn]


def kept(asked: Sequence[Prompt], capacity: int) -> tuple[float, float]:
    """Share of blocks and of tokens that an LRU prefix cache holds, by keeping one: what leads is a hit."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits, hit_tokens = 0, 0
    for blocks, num_tokens in asked:
        leading = next((place for place, block in enumerate(blocks) if block not in cache), len(blocks))
        hits += leading
        hit_tokens += sum(token_counts(num_tokens, len(blocks), BLOCK)[:leading])
        for block in reversed(blocks):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits / sum(len(blocks) for blocks, _ in asked), hit_tokens / sum(tokens for _, tokens in asked)


@given(prompts().filter(bool), st.integers(0, 40))
def test_a_curve_says_what_a_cache_of_that_size_would_have_held(asked: list[Prompt], capacity: int) -> None:
    """Every capacity, from none to more than there is, against an LRU cache that is really kept."""
    reuse = reuse_of(asked, BLOCK)
    blocks, tokens = kept(asked, capacity)
    assert reuse.by_blocks().hit_rate(capacity) == pytest.approx(blocks)
    assert reuse.by_tokens().hit_rate(capacity) == pytest.approx(tokens)


@given(prompts().filter(bool))
def test_the_capacity_for_a_hit_rate_is_the_smallest(asked: list[Prompt]) -> None:
    """One block less gives less; no cache gives more than the best."""
    curve = reuse_of(asked, BLOCK).by_blocks()
    capacity = curve.capacity_for(curve.best)
    if curve.best:
        assert capacity is not None
        assert curve.hit_rate(capacity) == curve.best > curve.hit_rate(capacity - 1)
    assert curve.capacity_for(curve.best + 0.01) is None


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=200))
def test_distances_are_weights_of_what_was_used_since(uses: list[tuple[int, int]]) -> None:
    """Against a list that is searched from its end."""
    distances, stack = StackDistances(), list[tuple[int, int]]()
    for key, weight in uses:
        place = next((place for place, (other, _) in enumerate(stack) if other == key), None)
        expected = None if place is None else sum(weight for _, weight in stack[place:])
        assert distances.distance(key) == expected
        distances.use(key, weight)
        stack = [*(entry for entry in stack if entry[0] != key), (key, weight)]
    assert len(distances) == len(stack)


def test_distances_survive_many_more_uses_than_keys() -> None:
    """The row of slots is made anew many times; a round of all keys has all of them between two uses."""
    distances = StackDistances()
    for _ in range(100):
        for key in range(1000):
            assert distances.distance(key) in (None, 1000)
            distances.use(key)


def mooncake() -> list[Prompt]:
    """A third of the public conversation trace."""
    with gzip.open(TRACE, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [(tuple(row["hash_ids"]), row["input_length"]) for row in rows]


def mean_error(sampled: MissRatioCurve, exact: MissRatioCurve) -> float:
    """Over capacities that are evenly spread between nothing and all, as SHARDS is judged."""
    top = exact.capacities[-1]
    capacities = [top * step // 50 for step in range(1, 51)]
    return sum(abs(sampled.hit_rate(c) - exact.hit_rate(c)) for c in capacities) / len(capacities)


def test_a_sample_of_a_tenth_is_within_a_point_of_the_exact_curve() -> None:
    """On a public trace, in blocks and in tokens, with a tenth of what the exact one remembers."""
    asked = mooncake()
    exact, sampled = reuse_of(asked, 512), reuse_of(asked, 512, rate=0.1)
    assert sampled.num_followed < 0.11 * exact.num_followed
    assert sampled.num_blocks == pytest.approx(exact.num_blocks, rel=0.02)
    assert mean_error(sampled.by_blocks(), exact.by_blocks()) < 0.01
    assert mean_error(sampled.by_tokens(), exact.by_tokens()) < 0.01


def test_a_sample_does_not_miss_what_everybody_uses() -> None:
    """One system prompt of ten blocks before 3,000 questions that nobody asks twice: it is found by what it
    is, not by chance, whatever share of blocks is followed."""
    rng = random.Random(3)
    system = list(range(10))
    asked = [chained([*system, rng.getrandbits(62)], 11 * BLOCK) for _ in range(3_000)]
    exact = reuse_of(asked, BLOCK).by_blocks()
    for rate in (0.001, 0.01, 0.1):
        sampled = reuse_of(asked, BLOCK, rate).by_blocks()
        assert sampled.best == pytest.approx(exact.best, abs=0.02), rate
        assert sampled.hit_rate(50) > 0.9 * exact.hit_rate(50), rate


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_a_rate_is_a_share(rate: float) -> None:
    """Nothing to follow, or more than all, is refused by name."""
    with pytest.raises(ValueError, match=f"rate is {rate}"):
        reuse_of([], BLOCK, rate)


def test_nothing_read_has_no_hits() -> None:
    """An empty log: no hit rate at any size, and no size for one."""
    curve = reuse_of([], BLOCK).by_tokens()
    assert (curve.best, curve.hit_rate(100), curve.capacity_for(0.1)) == (0.0, 0.0, None)
