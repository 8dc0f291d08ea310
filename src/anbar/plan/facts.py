"""What the verdict weighs: each option's time, and where the limits are."""

import math
from dataclasses import dataclass
from functools import cached_property

from anbar.plan.break_even import Throughput, length_needed
from anbar.plan.options import Option, Options
from anbar.plan.stack import Stack

MIN_GAIN = 0.02
"""Of an engine's time. Less is within what storing costs from one load to another."""
FIRST_TOKEN = 0.9
"""A tier that gains no time pays if the mean time to first token falls to this,"""
FIRST_TOKEN_S = 0.02
"""and by so much,"""
MOST_LOST = -0.03
"""and no more of the engine's time is lost."""
NEARLY_ALL = 0.95
"""Of what any RAM would gain: the least that does so is advised."""
_SIZES = 32
_MAX_TOKENS = 1_048_576
_WINDOWS = 20
_GB = 10**9


def pays(gain: float, before_s: float, after_s: float) -> bool:
    """By time alone: hits count for nothing. `gain`: requests served at most, over those without, less 1;
    `before_s`, `after_s`: mean times to first token on an engine that nobody waits for."""
    if gain >= MIN_GAIN and after_s <= before_s * (1.0 + MIN_GAIN):
        return True
    is_sooner = after_s <= FIRST_TOKEN * before_s and before_s - after_s >= FIRST_TOKEN_S
    return is_sooner and gain >= MOST_LOST


class Facts:
    """Of one workload on one stack; each worked out once, when it is asked for."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.stack: Stack = options.stack
        self.num_prompt = int(options.prompt.sum())

    @cached_property
    def neither(self) -> Option:
        return self.options.neither()

    @cached_property
    def native(self) -> Option:
        return self.options.native(self.stack.host_tokens)

    @cached_property
    def shared(self) -> Option:
        """Only with a store."""
        return self.options.with_store()

    @cached_property
    def shared_always(self) -> Option:
        """If all that the store has were loaded."""
        return self.options.with_store(always=True)

    def share(self, option: Option) -> float:
        """Of prompt tokens that are not computed."""
        return float(option.found.sum()) / self.num_prompt

    @cached_property
    def best(self) -> float:
        """Share that a cache without bounds for everybody would have held."""
        return float(self.options.shared.found(float("inf")).sum()) / self.num_prompt

    @cached_property
    def chunk_share(self) -> float:
        """Share of prompt tokens in prompts of at least a chunk."""
        prompt = self.options.prompt
        return float(prompt[prompt >= self.stack.chunk_tokens].sum()) / self.num_prompt

    def gain(self, option: Option, than: Option) -> float:
        """Requests that engines serve at most, over those with the other, less 1."""
        return than.engine_s / option.engine_s - 1.0

    def pays(self, option: Option, than: Option) -> bool:
        """Whether it is worth having, by the rule of `pays`."""
        before, after = float(than.first_token_s.mean()), float(option.first_token_s.mean())
        return pays(self.gain(option, than), before, after)

    @cached_property
    def working_set(self) -> float:
        """Tokens in different blocks that came again; all engines."""
        sizes = self.options.shared.capacities(2)
        return sizes[-1] if sizes else 0.0

    @cached_property
    def host_advice(self) -> int | None:
        """RAM for each engine, in tokens: the least that gains nearly all that RAM can. None: no
        size pays."""
        joined = self.stack.num_joined
        sizes = [int(tokens / joined) for tokens in self.options.own.capacities(_SIZES)]
        tried = [(size, self.options.native(size)) for size in sizes if size > self.stack.pool]
        paying = [(size, option) for size, option in tried if self.pays(option, self.neither)]
        if not paying:
            return None
        most = max(self.neither.engine_s - option.engine_s for _, option in paying)
        return next(
            size
            for size, option in paying
            if self.neither.engine_s - option.engine_s >= min(NEARLY_ALL * most, most)
        )

    @property
    def advised_bytes(self) -> int:
        """The same in whole GB; 0 when no size pays."""
        return math.ceil((self.host_advice or 0) * self.stack.engine.host_bytes_per_token / _GB) * _GB

    @cached_property
    def break_even(self) -> float | None:
        """The largest pool, in tokens of all engines whose caches count as one, at which host RAM gains time;
        None: it never does."""
        joined, host = self.stack.num_joined, self.stack.host_tokens
        for size in reversed(self.options.own.capacities(_SIZES)):
            pool = max(1.0, size / joined - 1)
            without = self.options.with_pool(pool)
            if host > pool and self.options.native(host, pool).engine_s <= without.engine_s:
                return pool * joined
        return None

    @cached_property
    def at_once(self) -> float:
        """Tokens that the requests which want to run on one engine need, what they have in common once."""
        wanted = self.options.wanted
        if wanted == float("inf"):
            return float("inf")
        requests, size = self.options.workload.requests, self.options.workload.block_size
        num = max(1, min(len(requests), round(wanted)))
        step = max(1, (len(requests) - num + 1) // _WINDOWS)
        starts = range(0, len(requests) - num + 1, step)
        distinct = [
            size * len({block for asked in requests[s : s + num] for block in asked.blocks})
            + sum(asked.num_prompt for asked in requests[s : s + num] if not asked.blocks)
            for s in starts
        ]
        mean = sum(distinct) / len(distinct)
        return (mean + num * float(self.options.answer.mean()) / 2) * max(1.0, wanted / num)

    @cached_property
    def throughput(self) -> Throughput:
        """What storing takes, what prefill is of the engine's time, and what loading is of computing."""
        cost, engine = self.stack.engine.prefill.cost, self.stack.engine
        typical = max(self.stack.chunk_tokens, int(self.options.prompt.mean()))
        medium = self.stack.host_medium.cost_for(engine.num_gpus)
        ratio = medium.seconds(engine.stored.bytes_of(typical)) / cost.seconds(typical)
        computed = float(self.options.computed(self.neither.found).sum())
        return Throughput(self.stack.native_overhead, computed / self.neither.engine_s, ratio)

    @cached_property
    def store_length(self) -> int | None:
        """The shortest prefix that the store brings sooner than it is computed, round trips included."""
        store, engine = self.stack.store, self.stack.engine
        assert store is not None
        cost = store.medium.cost_for(engine.num_gpus)
        waits = cost.latency_s + store.round_trip_s + store.lookup_s
        tier = type(cost)(waits, cost.bytes_per_s)
        return length_needed(engine.prefill.cost, tier, engine.stored, _MAX_TOKENS, self.stack.chunk_tokens)

    @cached_property
    def found_length(self) -> int:
        """Tokens of a typical prefix that only the store had: the mean of those there were."""
        more = self.shared_always.found - self.native.found
        return int(more[more > 0].mean()) if (more > 0).any() else 0


@dataclass(frozen=True, slots=True)
class Written:
    """What storing moves on one engine, in bytes a second."""

    rate: float
    link: float
    """Of the way to the host."""

    @classmethod
    def of(cls, facts: Facts) -> "Written":
        """While the engine has as much to do as it is asked for, or as it can."""
        options, stack = facts.options, facts.stack
        tokens = float(options.prompt.sum() - facts.neither.found.sum() + options.answer.sum())
        busy = min(1.0, options.utilisation(facts.neither) or 1.0)
        rate = busy * tokens * stack.engine.host_bytes_per_token / facts.neither.engine_s
        return cls(rate, stack.engine.num_gpus * stack.engine.gpu.host_bytes_per_s)
