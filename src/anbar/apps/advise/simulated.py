"""What waiting makes of a verdict: the log on the engine model, without the tier and with it.

The verdict's own figures are of engines that nobody waits for. Queues, preemptions and what keeps an
objective come of a simulation (`anbar.apps.simulate`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.load import Load
from anbar.apps.simulate.result import Result
from anbar.apps.simulate.run import simulate
from anbar.apps.simulate.setup import CacheSetup, FleetSetup, Mode, Setup, Slo, StoreSetup, Unfit
from anbar.apps.simulate.traces import trace_load
from anbar.config.models import PolicyName
from anbar.plan.answer import Figure, in_words
from anbar.plan.reasons import Choice
from anbar.plan.stack import Stack
from anbar.plan.workload import Workload

_BLOCKS = (128, 64, 32, 16)
"""Tokens of the simulated engines' blocks: the largest that the log's are made of. Fewer are quicker."""
_MODES = {Choice.NATIVE: Mode.NATIVE, Choice.SHARED: Mode.SHARED}


@dataclass(frozen=True, slots=True)
class Simulated:
    """Figures, and what to know of them."""

    figures: tuple[Figure, ...] = ()
    note: str = ""


def simulated(workload: Workload, stack: Stack, choice: Choice, num_requests: int) -> Simulated:
    """The first `num_requests` of a log without a tier and with the one that was chosen, or else with host
    RAM, if there is any."""
    after = _MODES.get(choice, Mode.NATIVE if stack.host_tokens else Mode.NONE)
    if num_requests == 0:
        return Simulated(note="not simulated: asked not to (--simulate 0)")
    if stack.concurrency is None and workload.span_s <= 0.0:
        text = "all requests have one time: --concurrency says how many are under way"
        return Simulated(note=f"not simulated: {text}")
    part = replace(workload, requests=workload.requests[:num_requests])
    try:
        setup = _setup(part, stack)
        modes = [Mode.NONE] if after is Mode.NONE else [Mode.NONE, after]
        found = {mode: simulate(setup.with_mode(mode), _load(part, stack, setup)) for mode in modes}
    except Unfit as error:
        return Simulated(note=f"not simulated: {error.reason}")
    figures = [figure for mode, result in found.items() for figure in _figures(mode, result, setup.slo)]
    num, of = len(part.requests), len(workload.requests)
    note = f"simulated: {'all' if num == of else f'the first {num:,} of'} {of:,} requests, cold at first"
    if stack.concurrency is not None:
        note += f", {stack.concurrency:g} at a time"
    return Simulated(tuple(figures), note)


class ClosedLoad:
    """So many clients, each of which sends the log's next request when it has its answer."""

    def __init__(self, asks: Sequence[Ask], num_clients: int) -> None:
        self.asks = [replace(ask, at_s=0.0) for ask in asks[:num_clients]]
        self.soonest_s = 0.0
        self.longest = max(ask.num_prompt + ask.num_answer for ask in asks)
        self._waiting = iter(asks[num_clients:])

    def after(self, ask: Ask, now_s: float) -> Ask | None:
        """The next one of the log; none is left: None."""
        following = next(self._waiting, None)
        return None if following is None else replace(following, at_s=now_s)


def _load(workload: Workload, stack: Stack, setup: Setup) -> Load:
    load = trace_load(workload, setup.fleet.block_size)
    if stack.concurrency is None:
        return load
    return ClosedLoad(load.asks, max(1, math.ceil(stack.concurrency)))


def _setup(workload: Workload, stack: Stack) -> Setup:
    size = workload.block_size
    block = next((b for b in _BLOCKS if size % b == 0 and b <= stack.chunk_tokens), size)
    store = StoreSetup()
    if stack.store is not None:
        store = StoreSetup(stack.store.name, stack.store.num_bytes)
    fleet = FleetSetup(stack.engine, stack.num_engines, stack.pool, block_size=block)
    cache = CacheSetup(Mode.NONE, stack.host_bytes or 0, stack.chunk_tokens, store=store)
    policy = PolicyName.PREDICTED_TTFT if stack.has_affinity else PolicyName.ROUND_ROBIN
    slo = Slo() if stack.slo_ttft_s is None else Slo(ttft_s=stack.slo_ttft_s)
    return Setup(fleet, cache, policy, slo=slo)


def _figures(mode: Mode, result: Result, slo: Slo) -> Iterator[Figure]:
    name = "neither" if mode is Mode.NONE else mode.value
    ttft = result.ttft_s
    how = f"p90 {in_words(ttft.p90, 's')}, p99 {in_words(ttft.p99, 's')}, mean {in_words(ttft.mean, 's')}"
    yield Figure(f"median time to first token, {name}, simulated", ttft.p50, "s", how)
    kept = f"{result.num_good:,} of {result.num_requests:,} begin within {in_words(slo.ttft_s, 's')} and "
    yield Figure(
        f"good answers a second, {name}, simulated",
        result.goodput,
        "count",
        f"{kept}take at most {in_words(slo.itl_s, 's')} a token; in {in_words(result.span_s, 's')}",
    )
    back = f"{result.tokens.recovered:,} tokens of theirs were not computed again"
    yield Figure(f"preemptions, {name}, simulated", result.num_preemptions, "count", back)
