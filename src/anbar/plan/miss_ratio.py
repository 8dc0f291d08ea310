"""What hit rate a cache of any size would have had: miss-ratio curves of a workload, from one reading of it.

An LRU cache of C blocks holds a block if no more than that was used since the block's last use (its stack
distance; Mattson et al. 1970), so one histogram of distances answers for every capacity. Of long logs only
the blocks whose hashed name is below a rate are followed, and weigh as much more (SHARDS, Waldspurger et al.,
FAST 2015). Two things that chance would decide are counted instead: uses of the few blocks that everybody
uses, and how many blocks there are, so that it is known how often blocks were used again; of the sample comes
only how long after.

What is counted is a *prefix* cache: a block is of use only with all before it. Names are of a hash chain, so
whoever uses a block uses its predecessors too, and engines free a prompt's end before its beginning; a
predecessor's distance is never the longer one. Blocks may therefore be counted, and sampled, one by one.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from anbar.plan.sketches import DistinctCount, OftenUsed, hash_of
from anbar.plan.stack_distance import StackDistances

_HASHES = 1 << 64
_OFTEN = 64
"""Blocks with more than a share of 1/64 of all uses are followed whatever their name."""
_FEW = 50
"""Uses below which nothing is often."""


@dataclass(frozen=True, slots=True)
class MissRatioCurve:
    """Hits of an LRU prefix cache against its capacity, cold at the beginning."""

    capacities: tuple[int, ...]
    """Blocks, rising; the hit rate changes at these only."""
    hits: tuple[float, ...]
    """At each of them, in the unit of `total`."""
    total: float
    """Blocks or tokens that were asked for."""

    def hit_rate(self, capacity: float) -> float:
        """Share of what was asked for that a cache of `capacity` blocks would have held."""
        place = bisect_right(self.capacities, capacity)
        return self.hits[place - 1] / self.total if place and self.total else 0.0

    @property
    def best(self) -> float:
        """The hit rate of a cache without bounds."""
        return self.hits[-1] / self.total if self.hits else 0.0

    def capacity_for(self, hit_rate: float) -> int | None:
        """The fewest blocks that give `hit_rate`; None: no cache does."""
        needed = hit_rate * self.total
        return next((c for c, hits in zip(self.capacities, self.hits, strict=True) if hits >= needed), None)


@dataclass(slots=True)
class _Uses:
    """Uses of some blocks: how many, of how many tokens, and of those again after which distance."""

    num: int = 0
    tokens: int = 0
    again: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, distance: int | None, tokens: int) -> None:
        self.num += 1
        self.tokens += tokens
        if distance is not None:
            num, before = self.again.get(distance, (0, 0))
            self.again[distance] = (num + 1, before + tokens)

    def of(self, unit: int) -> float:
        return (self.num, self.tokens)[unit]

    def of_again(self, unit: int) -> float:
        return sum(counts[unit] for counts in self.again.values())


class ReuseHistogram:
    """Reads prompts one after the other and makes the curves of what was read.

    `rate`: share of the blocks that is followed. At 1.0 curves are exact.
    """

    def __init__(self, rate: float = 1.0) -> None:
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"rate is {rate}, must be above 0 and at most 1")
        self._below = int(rate * _HASHES)
        self._weight = round(1 / rate)
        self._distances = StackDistances()
        self._asked = _Uses()
        self._sampled = _Uses()
        self._often = _Uses()
        self._all = DistinctCount()
        self._counts = OftenUsed(_OFTEN)

    @property
    def num_followed(self) -> int:
        """Different blocks that are remembered."""
        return len(self._distances)

    @property
    def num_blocks(self) -> float:
        """Different blocks that were read: the working set."""
        return self.num_followed if self._weight == 1 else self._all.estimate()

    def prompt(self, blocks: Sequence[int], num_tokens: Sequence[int]) -> None:
        """A prompt of `blocks`, names in a hash chain, of so many tokens each. Looked up whole, then used."""
        followed = [
            (block, weight)
            for block, tokens in zip(blocks, num_tokens, strict=True)
            if (weight := self._looked_up(block, tokens))
        ]
        for block, weight in reversed(followed):  # engines free the end first: the beginning is used last
            self._distances.use(block, weight)

    def by_blocks(self) -> MissRatioCurve:
        """Every block counts the same."""
        return self._curve(0)

    def by_tokens(self) -> MissRatioCurve:
        """Every token counts the same: what a prefill does not compute."""
        return self._curve(1)

    def _looked_up(self, block: int, tokens: int) -> int:
        """Count a use of `block`; its weight if it is followed, otherwise 0."""
        self._asked.add(None, tokens)
        distance = self._distances.distance(block)
        if self._weight == 1:
            self._sampled.add(distance, tokens)
            return 1
        hashed = hash_of(block)
        self._all.add(hashed)
        is_sampled = hashed < self._below
        is_often = self._counts.add(block) > max(_FEW, self._asked.num // _OFTEN // 4)
        if is_often and distance is not None:
            self._often.add(distance, tokens)
        elif is_sampled:
            self._sampled.add(distance, tokens)
        if is_often:
            return 1
        return self._weight if is_sampled else 0

    def _curve(self, unit: int) -> MissRatioCurve:
        scale = self._scale(unit)
        found = {distance: scale * counts[unit] for distance, counts in self._sampled.again.items()}
        for distance, counts in self._often.again.items():
            found[distance] = found.get(distance, 0.0) + counts[unit]
        distances = sorted(found)
        hits = accumulate(found[distance] for distance in distances)
        return MissRatioCurve(tuple(distances), tuple(hits), self._asked.of(unit))

    def _scale(self, unit: int) -> float:
        """What each use again in the sample stands for."""
        again = self._sampled.of_again(unit)
        if self._weight == 1 or not again:
            return 1.0
        first = (
            self._sampled.num - self._sampled.of_again(0),
            self._sampled.tokens - self._sampled.of_again(1),
        )
        size = first[unit] / first[0] if first[0] else 1.0
        return max(0.0, self._asked.of(unit) - self._often.of(unit) - size * self._all.estimate()) / again


def token_counts(num_tokens: int, num_blocks: int, block_size: int) -> Sequence[int]:
    """Tokens in each of a prompt's blocks: the last one may not be full."""
    whole = [block_size] * max(0, num_blocks - 1)
    return [*whole, num_tokens - block_size * len(whole)] if num_blocks else []


def reuse_of(
    prompts: Iterable[tuple[Sequence[int], int]], block_size: int, rate: float = 1.0
) -> ReuseHistogram:
    """The histogram of `prompts`: names of blocks, and tokens of the whole."""
    reuse = ReuseHistogram(rate)
    for blocks, num_tokens in prompts:
        reuse.prompt(blocks, token_counts(num_tokens, len(blocks), block_size))
    return reuse
