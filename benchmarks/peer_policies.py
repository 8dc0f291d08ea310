"""Routing formulas of other projects, written anew from their published descriptions, beside ours.

Each is a `Chooser` of `fleet_sim`: what the formula needs to know it gets from the workers, true to the
moment, or keeps itself from what it has sent. Texts of prompts are taken to have four characters a token.
Where description and code of a project differ, the code's numbers are taken.

In formulas: L prompt tokens, m matched ones, n requests in flight, q waiting ones, u share of KV in use.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from random import Random

from benchmarks.fleet_sim import BLOCK, Ask, Worker, leading

DYNAMO_BLOCK = 16
"""Tokens; the unit of its costs."""


class _Sent:
    """Which blocks each worker was ever sent: a text tree without the engine's evictions."""

    def __init__(self) -> None:
        self.of: dict[int, set[int]] = {}

    def matched(self, ask: Ask, num_workers: int) -> list[int]:
        """Tokens by worker."""
        return [BLOCK * leading(ask.blocks, self.of.setdefault(place, set())) for place in range(num_workers)]

    def size(self, place: int) -> int:
        return len(self.of.setdefault(place, set()))

    def add(self, ask: Ask, place: int) -> int:
        self.of.setdefault(place, set()).update(ask.blocks)
        return place


def _least(values: Sequence[float], rng: Random) -> int:
    """The place of the least value, by chance among equal ones."""
    least = min(values)
    return rng.choice([place for place, value in enumerate(values) if value == least])


class VrCacheAware:
    """vllm-router, sglang-router: `cache_aware` with the defaults of their command lines. Out of balance (the
    spread of n is above 64 and above half as much again) the least n; else the best match, if it is more than
    0.3 of the text; else the smallest tree."""

    name = "cache_aware (vllm-router, sglang-router)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sent = _Sent()

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        loads = [worker.num_in_flight for worker in workers]
        matched = self._sent.matched(ask, len(workers))
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            return self._sent.add(ask, _least(loads, self._rng))
        if max(matched) / ask.num_prompt > 0.3:
            return self._sent.add(ask, matched.index(max(matched)))
        return self._sent.add(
            ask, _least([self._sent.size(place) for place in range(len(workers))], self._rng)
        )


class SmgCacheAware:
    """smg 1.13: the same without the gate; a matched worker is passed over if its n is above the mean by half
    as much again and by A, which is two standard deviations of a Poisson variable, 4 to 64."""

    name = "cache_aware (smg)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sent = _Sent()

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        loads = [worker.num_in_flight for worker in workers]
        mean = statistics.fmean(loads)
        above = max(4.0, min(64.0, 2 * math.sqrt(mean)))
        matched = self._sent.matched(ask, len(workers))
        for place in sorted(range(len(workers)), key=lambda place: (-matched[place], self._rng.random())):
            if matched[place] / ask.num_prompt <= 0.3:
                break
            if loads[place] <= mean + above or loads[place] <= 1.5 * mean:
                return self._sent.add(ask, place)
        return self._sent.add(ask, _least(loads, self._rng))


class SmgLeastLoad:
    """smg: `least_load`, queued and running tokens over 2,000 a second, and 0.15 u / (1 - u)."""

    name = "least_load (smg)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        def load(worker: Worker) -> float:
            used = min(worker.model.usage, 0.999)
            return worker.active_tokens / 2000 + 0.15 * used / (1 - used)

        return _least([load(worker) for worker in workers], self._rng)


class Dynamo:
    """Dynamo's kv router; vllm-router's `kv_aware` has the same: prefill blocks active and to come, less what
    the device holds by its events, and blocks being decoded; temperature 0."""

    name = "kv (dynamo), kv_aware (vllm-router)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        def cost(worker: Worker) -> float:
            prefill = worker.prefill_tokens + ask.num_prompt - worker.overlap
            return (prefill + worker.active_tokens) / DYNAMO_BLOCK

        return _least([cost(worker) for worker in workers], self._rng)


class LlmD:
    """llm-d's default profile: queue 2, free KV 2, prefix 3, each between 0 and 1, the queue by the spread of
    the fleet, the prefix as a share of the prompt."""

    name = "default (llm-d)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sent = _Sent()

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        waiting = [worker.model.num_waiting for worker in workers]
        most, spread = max(waiting), max(waiting) - min(waiting)
        matched = self._sent.matched(ask, len(workers))

        def score(place: int) -> float:
            queue = (most - waiting[place]) / spread if spread else 1.0
            return 2 * queue + 2 * (1 - workers[place].model.usage) + 3 * matched[place] / ask.num_prompt

        return self._sent.add(ask, _least([-score(place) for place in range(len(workers))], self._rng))


class Aibrix:
    """aibrix: `prefix-cache`. More than 8 between the most and the least running: the least; else the best
    match whose running requests are no more than a standard deviation above the mean."""

    name = "prefix-cache (aibrix)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sent = _Sent()

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        loads = [worker.num_in_flight for worker in workers]
        if max(loads) - min(loads) > 8:
            return self._sent.add(ask, _least(loads, self._rng))
        matched = self._sent.matched(ask, len(workers))
        limit = statistics.fmean(loads) + statistics.pstdev(loads)
        order = sorted(
            range(len(workers)), key=lambda place: (-matched[place], loads[place], self._rng.random())
        )
        fit = (place for place in order if matched[place] and loads[place] <= limit)
        return self._sent.add(ask, next(fit, _least(loads, self._rng)))


class ProductionStack:
    """production-stack: `prefixaware`, by chance among those with the longest match, whatever they do."""

    name = "prefixaware (production-stack)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sent = _Sent()

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        matched = self._sent.matched(ask, len(workers))
        return self._sent.add(ask, _least([-tokens for tokens in matched], self._rng))


class Ray:
    """Ray Serve LLM: prefix affinity with its defaults: those that match 0.1 of the text, else the smallest
    trees; the load is never looked at, since the threshold of the queues' spread is infinite."""

    name = "prefix affinity (ray)"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._sent = _Sent()

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        matched = self._sent.matched(ask, len(workers))
        if max(matched) >= 0.1 * ask.num_prompt:
            return self._sent.add(ask, _least([-tokens for tokens in matched], self._rng))
        return self._sent.add(
            ask, _least([self._sent.size(place) for place in range(len(workers))], self._rng)
        )


PEER_POLICIES: Sequence[Callable[[Random], object]] = (
    VrCacheAware,
    SmgCacheAware,
    SmgLeastLoad,
    Dynamo,
    LlmD,
    Aibrix,
    ProductionStack,
    Ray,
)
