"""What waiting makes of a verdict: the log on the engine model, without the tier and with it.

The verdict's own figures are of engines that nobody waits for. Queues, preemptions and what keeps an
objective come of a simulation (`anbar.apps.simulate`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anbar.apps.simulate.result import Result
from anbar.apps.simulate.run import simulate
from anbar.apps.simulate.setup import CacheSetup, FleetSetup, Mode, Setup, Slo, StoreSetup
from anbar.apps.simulate.traces import trace_load
from anbar.config.models import PolicyName
from anbar.core.errors import ConfigError
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
    if stack.concurrency is not None or workload.span_s <= 0.0:
        return Simulated(note="not simulated: the log's times are not those of this load")
    part = replace(workload, requests=workload.requests[:num_requests])
    try:
        setup = _setup(part, stack)
        load = trace_load(part, setup.fleet.block_size)
        modes = [Mode.NONE] if after is Mode.NONE else [Mode.NONE, after]
        found = {mode: simulate(setup.with_mode(mode), load) for mode in modes}
    except ConfigError as error:
        return Simulated(note=f"not simulated: {error}")
    figures = [figure for mode, result in found.items() for figure in _figures(mode, result, setup.slo)]
    num, of = len(part.requests), len(workload.requests)
    note = f"simulated: {'all' if num == of else f'the first {num:,} of'} {of:,} requests, cold at first"
    return Simulated(tuple(figures), note)


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
    yield Figure(f"time to first token, {name}, simulated", ttft.p50, "s", f"median; {how}")
    kept = f"{result.num_good:,} of {result.num_requests:,} begin within {in_words(slo.ttft_s, 's')} and "
    yield Figure(
        f"good answers a second, {name}, simulated",
        result.goodput,
        "count",
        f"{kept}take at most {in_words(slo.itl_s, 's')} a token; in {in_words(result.span_s, 's')}",
    )
    back = f"{result.tokens.recovered:,} tokens of theirs were not computed again"
    yield Figure(f"preemptions, {name}, simulated", result.num_preemptions, "count", back)
