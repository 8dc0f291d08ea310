"""When KV is better loaded than computed again: the arithmetic, one function for each question.

Sizes in bytes, times in seconds, rates in bytes a second. The formulas follow from two costs alone: what it
takes to compute a prefix (`PrefillCost`) and what it takes to bring its KV from where it is (`TierCost`).
"""

import math
from dataclasses import dataclass

from anbar.core.cost import PrefillCost, TierCost
from anbar.plan.kv_size import KvSize


def bandwidth_needed(prefill: PrefillCost, kv: KvSize, num_tokens: int, latency_s: float = 0.0) -> float:
    """Below this rate, for each replica, loading `num_tokens` takes longer than computing them; infinite: the
    latency alone does."""
    left_s = prefill.seconds(num_tokens) - latency_s
    return kv.bytes_of(num_tokens) / left_s if left_s > 0.0 else math.inf


def length_needed(
    prefill: PrefillCost, tier: TierCost, kv: KvSize, max_tokens: int, step: int = 1
) -> int | None:
    """The shortest prefix, in multiples of `step` (the tokens of a chunk), that is sooner loaded than
    computed; None: none of up to `max_tokens` is.

    What loading saves is -latency + c * n + b * n^2 (with the overhead of computing counted to the first),
    where c grows behind a window: if it is above 0 at one length it is so at all greater ones, unless b is 0
    and c below it.
    """

    def saves(num_steps: int) -> bool:
        tokens = num_steps * step
        return tier.seconds(kv.bytes_of(tokens)) < prefill.seconds(tokens)

    low, high = 0, max_tokens // step
    if high < 1 or not saves(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if saves(middle) else (middle, high)
    return high * step


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a tier does to an engine that computes all the time."""

    store_overhead: float
    """Share of the throughput that storing takes when nothing is ever found: 0.025 is 2.5 %."""
    prefill_share: float
    """Of the device's time without a tier, the part that goes into prefill."""
    load_ratio: float
    """Time to load a token's KV over the time to compute it."""

    def hits_needed(self) -> float:
        """Share of prompt tokens that only the tier has, from which on it gains; above 1: it never does.

        With overhead o, prefill share f and ratio r a share e saves f * e * (1 - r): e* = o / (f * (1 - r)).
        """
        saved = self.prefill_share * (1.0 - self.load_ratio)
        return self.store_overhead / saved if saved > 0.0 else math.inf

    def gain(self, hits: float) -> float:
        """Throughput with the tier over that without, less 1, when it alone has a share `hits` of tokens."""
        took = 1.0 + self.store_overhead - self.prefill_share * hits * (1.0 - self.load_ratio)
        return 1.0 / took - 1.0


@dataclass(frozen=True, slots=True)
class Tenant:
    """One prompt prefix that is asked for again and again, at random times, and what finding it saves."""

    prefix_tokens: int
    queries_per_s: float
    """Of everybody who shares the prefix."""

    def left_to_tier(self, kept_s: float) -> float:
        """Share of queries that come when the device has dropped the prefix, `kept_s` after its last use, and
        only a tier can have it: with arrivals at random, exp(-rate * kept)."""
        return math.exp(-self.queries_per_s * kept_s)

    def saved_s(self, prefill: PrefillCost, tier: TierCost, kv: KvSize) -> float:
        """Device seconds that finding the prefix in a tier saves once. Loading is charged as if the device
        waited for it, and what every step costs is not saved; negative: computing is cheaper."""
        load_s = tier.seconds(kv.bytes_of(self.prefix_tokens))
        return prefill.seconds(self.prefix_tokens) - prefill.overhead_s - load_s

    def saved_s_per_s(self, prefill: PrefillCost, tier: TierCost, kv: KvSize, kept_s: float) -> float:
        """Device seconds that a tier saves per second, on one engine."""
        return self.queries_per_s * self.left_to_tier(kept_s) * self.saved_s(prefill, tier, kv)

    def avoidable_tokens_per_s(self) -> float:
        """Tokens that need not be computed if the prefix is always found."""
        return self.queries_per_s * self.prefix_tokens
