"""Hit rates of the public Mooncake traces: against figures of others, the paper, and a sample of itself.

Accounting: blocks of 512 tokens as the trace names them, the last one of a prompt too when it is not full; a
prompt's leading blocks that are held count as hits, then the whole prompt is used, its end first; one cache,
cold at the start. A capacity in tokens holds its whole blocks.
"""

import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from anbar.plan.miss_ratio import MissRatioCurve, ReuseHistogram, token_counts
from benchmarks.validation import published

BLOCK = 512
TRACES = ("conversation", "synthetic")

Asked = tuple[list[int], int]
"""Names of a prompt's blocks, and its tokens."""


def path(trace: str) -> str:
    """The trace as it is published, compressed."""
    return str(published.DATA / f"mooncake_{trace}.jsonl.xz")


@cache
def requests(trace: str) -> list[Asked]:
    """Of the whole trace, in order."""
    with lzma.open(path(trace), "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [(row["hash_ids"], row["input_length"]) for row in rows]


def histogram(asked: Sequence[Asked], rate: float = 1.0) -> ReuseHistogram:
    """What came again."""
    read = ReuseHistogram(rate)
    for blocks, num_tokens in asked:
        read.prompt(blocks, token_counts(num_tokens, len(blocks), BLOCK))
    return read


@cache
def exact(trace: str) -> ReuseHistogram:
    return histogram(requests(trace))


@dataclass(frozen=True, slots=True)
class HitRate:
    """Of one capacity in tokens: computed or published elsewhere, and ours."""

    capacity: float
    other: float
    ours: float


def against_simulation(trace: str) -> list[HitRate]:
    """By blocks: an LRU cache that was simulated at four sizes."""
    curve = exact(trace).by_blocks()
    return [
        HitRate(float(row["capacity_tokens"]), float(row["LRU"]), _at(curve, float(row["capacity_tokens"])))
        for row in published.rows("own_mrc_mooncake_public")
        if row["trace"] == trace
    ]


def against_paper(trace: str) -> list[HitRate]:
    """Figure 9 of the paper, which is of traces that are not quite the public ones."""
    curve = exact(trace).by_blocks()
    return [
        HitRate(float(row["capacity_tokens"]), float(row[trace]), _at(curve, float(row["capacity_tokens"])))
        for row in published.rows("mooncake_fast25_fig9_hitrate_vs_capacity")
    ]


def full_blocks_alone(trace: str) -> float:
    """The hit rate of a cache without bounds when a prompt's last block does not count unless it is full."""
    full = [(blocks[: num // BLOCK], num // BLOCK * BLOCK) for blocks, num in requests(trace)]
    return histogram(full).by_blocks().best


def _at(curve: MissRatioCurve, capacity_tokens: float) -> float:
    return curve.hit_rate(capacity_tokens // BLOCK)


@dataclass(frozen=True, slots=True)
class Sample:
    """A curve of some of the blocks against that of all, in shares of tokens."""

    rate: float
    followed: float
    """Share of the blocks that were remembered."""
    worst: float
    mean: float


def sampled(trace: str, rate: float) -> Sample:
    """At forty capacities, evenly in their logarithm, from 128 blocks to all there are."""
    whole, part = exact(trace), histogram(requests(trace), rate)
    low, high, steps = 128, whole.num_blocks, 40
    sizes = [low * (high / low) ** (place / steps) for place in range(steps + 1)]
    one, other = whole.by_tokens(), part.by_tokens()
    errors = [abs(one.hit_rate(size) - other.hit_rate(size)) for size in sizes]
    return Sample(rate, part.num_followed / whole.num_followed, max(errors), sum(errors) / len(errors))


def second_half(trace: str, capacities: Sequence[int]) -> list[float]:
    """Hit rates by tokens of the later half of the requests, by capacities in blocks: `kvcache-simulator`'s
    figure. Hits of all less hits of the first half, over the tokens of the second."""
    asked = requests(trace)
    half = len(asked) // 2
    first, all_ = histogram(asked[:half]).by_tokens(), exact(trace).by_tokens()
    total = all_.total - first.total
    return [(all_.hit_rate(c) * all_.total - first.hit_rate(c) * first.total) / total for c in capacities]
