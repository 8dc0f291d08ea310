"""Costs in seconds: what it takes to compute tokens, and to load them from a tier.

`PrefillCost` and `TierCost` are what a router weighs; `EngineCost` is what one step of an engine takes, in
enough detail to imitate it. The text form of the latter is `anbar.core.cost_file`.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

import msgspec


class PrefillWork(msgspec.Struct, frozen=True):
    """What there is to compute of prompts. For tokens m..L of one: L - m `tokens` and L^2 - m^2 `pairs`."""

    tokens: int = 0
    pairs: int = 0

    @classmethod
    def of(cls, num_tokens: int, num_cached: int = 0) -> "PrefillWork":
        """Tokens `num_cached`..`num_tokens` of a prompt; at least the last one, which nothing has sampled
        from yet."""
        cached = max(0, min(num_cached, num_tokens - 1))
        return cls(num_tokens - cached, num_tokens**2 - cached**2)


NO_WORK = PrefillWork()


class PrefillCost(msgspec.Struct, frozen=True):
    """Time to compute prompt tokens m..L: `overhead + a*(L-m) + b*(L^2-m^2)`.

    The quadratic term is attention: token i attends to i predecessors.
    """

    a_s_per_token: float
    b_s_per_token2: float = 0.0
    overhead_s: float = 0.0
    s_per_answer: float = 0.0
    """By how much each answer that runs beside it delays a prompt's first token: its part of the step that is
    under way when the prompt arrives, and of those in which the prompt is computed."""

    def seconds(self, num_tokens: int, num_cached: int = 0) -> float:
        """Seconds to compute tokens `num_cached`..`num_tokens`; 0.0 when nothing is left to compute."""
        if num_tokens <= num_cached:
            return 0.0
        linear = self.a_s_per_token * (num_tokens - num_cached)
        quadratic = self.b_s_per_token2 * (num_tokens**2 - num_cached**2)
        return self.overhead_s + linear + quadratic

    def work_seconds(self, work: PrefillWork) -> float:
        """Seconds to compute `work`, without any overhead."""
        return self.a_s_per_token * work.tokens + self.b_s_per_token2 * work.pairs


@dataclass(frozen=True, slots=True)
class TierCost:
    """Time to bring bytes from a tier to the device: `latency + bytes / bandwidth`."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: int) -> float:
        """Seconds to load `num_bytes`; 0.0 for nothing."""
        return self.latency_s + num_bytes / self.bytes_per_s if num_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True)
class StoreCost:
    """Seconds of single calls on a store. The default is one that takes no time."""

    lookup_s: float = 0.0
    """Per call of up to 256 keys."""
    load: TierCost = field(default_factory=lambda: TierCost(0.0, math.inf))
    store: TierCost = field(default_factory=lambda: TierCost(0.0, math.inf))


class LoadCost(msgspec.Struct, frozen=True):
    """Time to bring tokens' KV from a tier to one engine's device: `latency + s_per_token * tokens`."""

    s_per_token: float
    latency_s: float = 0.0

    def seconds(self, num_tokens: int) -> float:
        """Seconds to load `num_tokens`; 0.0 for none."""
        return self.latency_s + self.s_per_token * num_tokens if num_tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TokenCurve:
    """Seconds of a step by its number of tokens, without attention: matrix products, scheduling, sampling.

    Straight between `points` (tokens, seconds) and on past the last one. Weights are read once a step, so
    the first tokens cost much and the next ones little; a plain line would be wrong for decodes or for
    prompts. No points: free.
    """

    points: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if len(self.points) == 1:
            raise ValueError("a curve has no points or at least two")
        for (tokens, seconds), (next_tokens, next_seconds) in pairwise(self.points):
            if not (1 <= tokens < next_tokens and 0.0 <= seconds <= next_seconds):
                raise ValueError("the points of a curve grow, in tokens from 1 and in seconds from 0")

    def seconds(self, num_tokens: int) -> float:
        """Seconds of one step of `num_tokens`; 0.0 for none."""
        points = self.points
        if num_tokens <= 0 or not points:
            return 0.0
        above = bisect_right(points, num_tokens, 1, len(points) - 1, key=itemgetter(0))
        (left, low), (right, high) = points[above - 1], points[above]
        return max(0.0, low + (num_tokens - left) * (high - low) / (right - left))

    @property
    def s_per_token(self) -> float:
        """Seconds of one more token in a large step: the slope past the last point."""
        if not self.points:
            return 0.0
        (left, low), (right, high) = self.points[-2:]
        return (high - low) / (right - left)


def _check_not_negative(cost: object, *names: str) -> None:
    for name in names:
        if getattr(cost, name) < 0:
            raise ValueError(f"{name} is {getattr(cost, name)}, must not be negative")


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Time to copy KV between a device and a host: `latency + s_per_copy * copies + s_per_byte * bytes`.

    The constant per contiguous copy makes bandwidth depend on the size of copies: 3.4 µs and 51 GB/s give
    what vLLM has published for an H100's copy engines, 8 KiB to 16 MiB in both directions, within 11 %.
    """

    latency_s: float = 0.0
    """Once per transfer."""
    s_per_copy: float = 0.0
    s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        _check_not_negative(self, "latency_s", "s_per_copy", "s_per_byte")

    def seconds(self, num_bytes: int, num_copies: int = 1) -> float:
        """Seconds to copy `num_bytes` in `num_copies` pieces; 0.0 for nothing."""
        if num_bytes <= 0:
            return 0.0
        return self.latency_s + self.s_per_copy * num_copies + self.s_per_byte * num_bytes


FREE_COPY = CopyCost()


@dataclass(frozen=True, slots=True)
class EngineCost:
    """What an engine's steps and its front end cost. The default is an engine that takes no time."""

    tokens: TokenCurve = field(default_factory=TokenCurve)
    prefill_s_per_token2: float = 0.0
    """Attention of prompts: tokens m..L take this times `L^2 - m^2`."""
    decode_s_per_kv_byte: float = 0.0
    """Attention of decodes, which read the KV of their whole context."""
    load: CopyCost = FREE_COPY
    """Host to device."""
    store: CopyCost = FREE_COPY
    """Device to host."""
    copy_delay: float = 0.0
    """Share of a copy's time by which it delays the computing beside it: 0 where a copy engine does it
    unnoticed, 1 where the copy is made by the thread that computes."""
    front_s: float = 0.0
    """Per request, outside of steps: HTTP, queues between processes, the first token's way out."""
    front_s_per_token: float = 0.0
    """Per token of a prompt that comes as text, outside of steps: tokenizing."""

    def __post_init__(self) -> None:
        _check_not_negative(
            self, "prefill_s_per_token2", "decode_s_per_kv_byte", "front_s", "front_s_per_token"
        )
        if not 0 <= self.copy_delay <= 1:
            raise ValueError(f"copy_delay is {self.copy_delay}, must be between 0 and 1")

    def front_seconds(self, num_text_tokens: int) -> float:
        """What is added to the time to first token outside of the engine's steps. `num_text_tokens`: of a
        prompt that came as text; 0 for one of token ids, which nobody has to tokenize."""
        return self.front_s + self.front_s_per_token * num_text_tokens
