"""What a simulated run comes to. Structs: they are the JSON."""

import statistics
from collections.abc import Sequence

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds; nearest rank."""

    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        """Of at least one value."""
        ranked = sorted(values)
        p50, p90, p99 = (ranked[_rank(share, len(ranked))] for share in (0.5, 0.9, 0.99))
        return cls(statistics.fmean(ranked), p50, p90, p99, ranked[-1])


def _rank(share: float, count: int) -> int:
    return min(count - 1, max(0, -int(-share * count // 1) - 1))


class Tokens(msgspec.Struct, frozen=True):
    """Of prompts, counted in tokens."""

    prompt: int
    """Of all requests."""
    device: int
    """Found in HBM at the first admission."""
    host: int
    """Found in host RAM."""
    shared: int
    """Fetched from the shared store."""
    computed: int
    """Computed that are no answer's, also again after a preemption."""
    recovered: int
    """Of preempted requests, when they ran again: found and not computed again. No prefix hits."""
    transferred: int
    """Computed by an engine for prefill and fetched by the one that answers. No prefix hits."""
    answers: int

    @property
    def avoided(self) -> int:
        """Not computed: prefix hits and what preempted requests got back."""
        return self.device + self.host + self.shared + self.recovered

    def rate(self, tokens: int) -> float:
        """Share of all prompt tokens."""
        return tokens / self.prompt


class Samples(msgspec.Struct):
    """What was to be seen every `every_s`; the counts are totals up to then."""

    every_s: float
    at_s: list[float] = msgspec.field(default_factory=list)
    hbm: list[float] = msgspec.field(default_factory=list)
    """Share of the blocks that requests hold, mean of the engines."""
    host: list[float] = msgspec.field(default_factory=list)
    """Share of the places that are taken, mean of the engines."""
    num_running: list[int] = msgspec.field(default_factory=list)
    num_waiting: list[int] = msgspec.field(default_factory=list)
    num_done: list[int] = msgspec.field(default_factory=list)
    num_preemptions: list[int] = msgspec.field(default_factory=list)
    prompt: list[int] = msgspec.field(default_factory=list)
    device: list[int] = msgspec.field(default_factory=list)
    host_hits: list[int] = msgspec.field(default_factory=list)
    shared: list[int] = msgspec.field(default_factory=list)
    answers: list[int] = msgspec.field(default_factory=list)


class Stream(msgspec.Struct, frozen=True):
    """A part of the load."""

    name: str
    num_requests: int
    ttft_s: Percentiles
    prompt_tokens: int
    cached_tokens: int


class Result(msgspec.Struct, frozen=True):
    """One run."""

    num_requests: int
    span_s: float
    """From the first arrival to the end of the last answer."""
    arrivals_s: float
    """From the first arrival to the last."""
    ttft_s: Percentiles
    itl_s: Percentiles
    """Mean time between the tokens of an answer, over answers of more than one token."""
    num_good: int
    """Requests that kept both bounds of the SLO."""
    tokens: Tokens
    num_preemptions: int
    busy_s: float
    """Time of all engines' steps."""
    hbm_mean: float
    """Share of HBM's KV blocks that requests held, mean over engines and time up to the last arrival."""
    hbm_peak: float
    host_peak: float
    ttft_cdf_s: tuple[float, ...]
    """101 values: what 0, 1, … 100 % of the first tokens took at most."""
    streams: tuple[Stream, ...]
    samples: Samples

    @property
    def throughput(self) -> float:
        """Answers a second."""
        return self.num_requests / self.span_s

    @property
    def answer_tokens_per_s(self) -> float:
        """While requests came, or over all of it when that was less than half of the time: an end in which
        fewer and fewer are left says nothing of a busy fleet."""
        samples = self.samples
        last = max((i for i, at_s in enumerate(samples.at_s) if at_s <= self.arrivals_s), default=0)
        if last and self.arrivals_s >= self.span_s / 2:
            return samples.answers[last] / samples.at_s[last]
        return self.tokens.answers / self.span_s

    @property
    def goodput(self) -> float:
        """Good answers a second."""
        return self.num_good / self.span_s

    @property
    def hit_rate(self) -> float:
        """Prefix hits of all tiers over prompt tokens."""
        return self.tokens.rate(self.tokens.device + self.tokens.host + self.tokens.shared)


def cdf(values: Sequence[float]) -> tuple[float, ...]:
    """Of at least one value, at 0, 1, … 100 %."""
    ranked = sorted(values)
    return tuple(ranked[_rank(share / 100, len(ranked))] for share in range(101))
