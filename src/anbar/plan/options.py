"""What an engine's requests take without a tier below the device, with host RAM, and with a store behind it.

Time is what counts, not hits: everything is in seconds of the engine (what it could have computed meanwhile)
and in seconds until a request's first token on an engine that nobody waits for.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anbar.core.cost import TierCost
from anbar.plan.decode import MAX_RUNNING, DecodeCost, Load, decode_of
from anbar.plan.depths import Depths, Tokens
from anbar.plan.stack import Stack
from anbar.plan.workload import Workload

Seconds = npt.NDArray[np.float64]
"""One number for each request."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve the workload."""

    found: Tokens
    """Not computed, of each prompt."""
    loaded: Tokens
    """Of these, brought from below the device."""
    load_s: Seconds
    first_token_s: Seconds
    """On an engine that nobody waits for."""
    engine_s: float
    """Of all engines, answers and the cost of storing included."""


class Options:
    """The options of one workload on one stack, each worked out when it is asked for."""

    def __init__(self, workload: Workload, stack: Stack, decode: DecodeCost | None = None) -> None:
        self.workload, self.stack = workload, stack
        self.decode = decode or decode_of(stack.engine)
        self.prompt = np.array([asked.num_prompt for asked in workload.requests], np.int64)
        self.answer = np.array([asked.num_answer for asked in workload.requests], np.int64)
        self._depths: dict[int, Depths] = {}
        self._stretch = 1.0
        self._stretched: dict[int, Depths] = {}
        self._prefill = stack.engine.prefill.cost
        self._kv = stack.engine.host_bytes_per_token

    def but(self, stack: Stack, stretch: float = 1.0) -> "Options":
        """The same workload on another stack; what was read of it is not read again. `stretch`: everything
        comes again after so many times as much else."""
        other = Options(self.workload, stack, self.decode)
        other._depths, other._stretch = self._depths, stretch
        return other

    @property
    def own(self) -> Depths:
        """In what engines have for themselves."""
        return self._of_caches(self.stack.num_apart)

    @property
    def shared(self) -> Depths:
        """In what all engines share."""
        store = self.stack.store
        return self.own if store is not None and store.medium.is_local else self._of_caches(1)

    def _of_caches(self, num: int) -> Depths:
        if num not in self._depths:
            self._depths[num] = Depths.of(self.workload, num)
        if self._stretch == 1.0:
            return self._depths[num]
        if num not in self._stretched:
            self._stretched[num] = self._depths[num].stretched(self._stretch)
        return self._stretched[num]

    def computed(self, found: Tokens) -> Seconds:
        """Seconds to compute what was not found; a prompt's last token always is."""
        m = np.minimum(found, self.prompt - 1).astype(float)
        cost, n = self._prefill, self.prompt.astype(float)
        seconds: Seconds = (
            cost.overhead_s + cost.a_s_per_token * (n - m) + cost.b_s_per_token2 * (n**2 - m**2)
        )
        return seconds

    def neither(self) -> Option:
        """The device alone."""
        return self.with_pool(self.stack.pool)

    def with_pool(self, pool_tokens: float) -> Option:
        """The device alone, were it of another size."""
        found = self.own.found(pool_tokens * self.stack.num_joined)
        computed = self.computed(found)
        nothing = np.zeros(len(found))
        return Option(found, np.zeros_like(found), nothing, computed, float(computed.sum()) + self.decode_s)

    def native(self, host_tokens: float, pool_tokens: float | None = None) -> Option:
        """With RAM for so many tokens beside each engine. It holds what the device holds, too: what counts is
        the larger of the two. All that is found is loaded."""
        pool = self.stack.pool if pool_tokens is None else pool_tokens
        device = self.own.found(pool * self.stack.num_joined)
        held = self.own.found(max(pool, host_tokens) * self.stack.num_joined)
        found = np.maximum(device, self._whole_chunks(held))
        load_s = self._load_s(found - device, self._host)
        computed = self.computed(found)
        storing = self.stack.native_overhead * self.without_s(pool)
        return Option(
            found,
            found - device,
            load_s,
            computed + load_s,
            float((computed + load_s).sum()) + self.decode_s + storing,
        )

    def with_store(self, *, always: bool = False) -> Option:
        """With host RAM and the store. `always`: all that is found is loaded, as most do; otherwise what is
        sooner loaded than computed, as Anbar does. Every prompt of a chunk or more waits for the lookup."""
        store = self.stack.store
        assert store is not None
        host = self.native(self.stack.host_tokens)
        capacity = np.inf if store.num_bytes is None else store.num_bytes / self._kv
        found = np.maximum(host.found, self._whole_chunks(self.shared.found(capacity)))
        cost = store.medium.cost_for(self.stack.engine.num_gpus)
        cost = TierCost(cost.latency_s + store.round_trip_s, cost.bytes_per_s)
        load_s = self._load_s(found - host.found, cost)
        if not always:
            pays = self.computed(found) + load_s < self.computed(host.found)
            found, load_s = np.where(pays, found, host.found), np.where(pays, load_s, 0.0)
        computed, loads = self.computed(found), host.load_s + load_s
        asks = np.where(self.prompt >= self.stack.chunk_tokens, store.lookup_s, 0.0)
        storing = self.stack.shared_overhead * self.without_s(self.stack.pool)
        return Option(
            found,
            host.loaded + found - host.found,
            loads,
            computed + loads + asks,
            float((computed + loads).sum()) + self.decode_s + storing,
        )

    def without_s(self, pool_tokens: float) -> float:
        """Seconds of the engines with the device alone."""
        return float(self.computed(self.own.found(pool_tokens * self.stack.num_joined)).sum()) + self.decode_s

    @cached_property
    def decode_s(self) -> float:
        """Seconds of the engines for all answers, with as many in each step as there is room for."""
        return self.decode.seconds(float(self.answer.sum()), self.context, self.running)

    @property
    def context(self) -> float:
        """Tokens of a request in the middle of its answer."""
        return float(self.prompt.mean() + self.answer.mean() / 2)

    @cached_property
    def wanted(self) -> float:
        """Requests at a time on one engine if there were room for all; inf: they would pile up."""
        if self.stack.concurrency is not None:
            return self.stack.concurrency / self.stack.num_engines
        return self.load.running(self.decode) if self.load is not None else 1.0

    @property
    def running(self) -> float:
        """Requests in a step of an engine that has as much to do as it can."""
        room = max(1.0, min(float(MAX_RUNNING), self.stack.pool / self.context))
        return room if self.stack.concurrency is None else max(1.0, min(self.wanted, room))

    @cached_property
    def load(self) -> Load | None:
        """What one engine is offered; None where requests wait for answers before more are sent, or all came
        at one moment."""
        requests, span_s = self.workload.requests, self.workload.span_s
        if self.stack.concurrency is not None or span_s <= 0.0:
            return None
        rate = (len(requests) - 1) / span_s / self.stack.num_engines
        found = self.own.found(self.stack.pool * self.stack.num_joined)
        prefill_s = float(self.computed(found).mean())
        return Load(rate, prefill_s, float(self.answer.mean()), self.context)

    @cached_property
    def too_long(self) -> int:
        """Requests whose prompt and answer no engine's pool holds."""
        return int((self.prompt + self.answer > self.stack.pool).sum())

    @cached_property
    def beyond_context(self) -> int:
        """Requests that are longer than the model's context."""
        most = self.stack.engine.max_tokens
        return 0 if most is None else int((self.prompt + self.answer > most).sum())

    def utilisation(self, option: Option) -> float | None:
        """Share of what the engines can do at most; above 1 they cannot. None: nobody said how often requests
        come."""
        if self.load is None:
            return None
        span_s = len(self.workload.requests) / self.load.requests_per_s
        return option.engine_s / span_s

    @cached_property
    def _host(self) -> TierCost:
        return self.stack.host_medium.cost_for(self.stack.engine.num_gpus)

    def _whole_chunks(self, tokens: Tokens) -> Tokens:
        return tokens // self.stack.chunk_tokens * self.stack.chunk_tokens

    def _load_s(self, tokens: Tokens, cost: TierCost) -> Seconds:
        kv = self.stack.engine.stored
        needed = kv.full_bytes * tokens + kv.windowed_bytes * np.minimum(tokens, kv.window_tokens)
        return np.where(tokens > 0, cost.latency_s + needed / cost.bytes_per_s, 0.0)
