"""A scenario's runs, and what follows from them. Structs: they are the JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from anbar.apps.advise.model import read_model
from anbar.apps.advise.trace import read_trace
from anbar.apps.calibrate.files import read_cost_file
from anbar.apps.simulate.load import Load
from anbar.apps.simulate.result import Result, Samples
from anbar.apps.simulate.run import simulate
from anbar.apps.simulate.scenario import FleetConfig, Scenario, TraceConfig
from anbar.apps.simulate.scenario_file import Found
from anbar.apps.simulate.setup import CacheSetup, FleetSetup, Incident, Mode, Setup, Slo, StoreSetup, Unfit
from anbar.apps.simulate.streams import StreamLoad
from anbar.apps.simulate.traces import trace_load
from anbar.core.errors import ConfigError
from anbar.plan.deployment import Deployment
from anbar.plan.workload import Workload
from anbar.sim.engine.shape import Offload

Progress = Callable[[str, float, int], None]
"""Told which run is under way, its virtual time in seconds, and how many requests have been answered."""

_BUNDLED_TRACES = {"mooncake-conversation": "data/mooncake_conversation_1000.jsonl.gz"}
_DURATION_S = 60.0
_BLOCK = 16


class Run(msgspec.Struct, frozen=True):
    """One."""

    mode: Mode
    kv_tokens: int
    """Of each engine."""
    result: Result


class Gain(msgspec.Struct, frozen=True):
    """One mode against none, at one size of HBM. Shares: 0.05 is 5 % more."""

    mode: Mode
    kv_tokens: int
    utilisation: float
    """Mean share of HBM's KV blocks that requests hold without offload."""
    throughput: float
    """Of answer tokens while requests came."""
    goodput: float
    computed: int
    """Prompt tokens computed less."""


class BreakEven(msgspec.Struct, frozen=True):
    """From which HBM utilisation on a mode gains throughput. None: it gains at all sizes that were tried, or
    at none: `text` says which."""

    mode: Mode
    utilisation: float | None
    text: str


class Report(msgspec.Struct, frozen=True):
    """All runs of a scenario."""

    scenario: str
    about: str
    seed: int
    assumptions: tuple[str, ...]
    runs: tuple[Run, ...]
    gains: tuple[Gain, ...]
    sweep: tuple[Gain, ...]
    break_even: tuple[BreakEven, ...]
    incidents: tuple[str, ...]
    slo_ttft_s: float
    slo_itl_s: float


def run_scenario(found: Found, progress: Progress | None = None) -> Report:
    """Run it in all its modes, and at all sizes of its sweep. Raises ConfigError, with file and line."""
    try:
        return _run_scenario(found, progress)
    except Unfit as error:
        raise found.located(error) from error


def _run_scenario(found: Found, progress: Progress | None) -> Report:
    scenario = found.scenario
    setup, make_load, notes = prepare(found)

    def run(mode: Mode, kv_tokens: int, what: str) -> Run:
        made = replace(setup, fleet=replace(setup.fleet, kv_tokens=kv_tokens)).with_mode(mode)
        tell = partial(progress, what) if progress is not None else None
        return Run(mode, kv_tokens, simulate(made, make_load(), tell))

    modes, own = scenario.cache.modes, setup.kv_tokens
    runs = tuple(run(mode, own, mode) for mode in modes)
    sweep: list[Gain] = []
    for kv_tokens in scenario.sweep.kv_tokens if scenario.sweep is not None else ():
        sweep += gains([run(mode, kv_tokens, f"{mode}, {kv_tokens:,} tokens") for mode in modes])
    return Report(
        scenario=found.name,
        about=scenario.about,
        seed=scenario.seed,
        assumptions=(*_assumptions(scenario, setup), *notes),
        runs=runs,
        gains=tuple(gains(runs)),
        sweep=tuple(sweep),
        break_even=tuple(break_even(mode, sweep) for mode in modes if mode is not Mode.NONE and sweep),
        incidents=tuple(happened(setup.incidents, runs)),
        slo_ttft_s=setup.slo.ttft_s,
        slo_itl_s=setup.slo.itl_s,
    )


def gains(runs: Sequence[Run]) -> list[Gain]:
    """Of each mode against none among the runs; none: no gains."""
    base = next((run.result for run in runs if run.mode is Mode.NONE), None)
    if base is None:
        return []
    return [
        Gain(
            run.mode,
            run.kv_tokens,
            base.hbm_mean,
            run.result.answer_tokens_per_s / base.answer_tokens_per_s - 1,
            run.result.goodput / base.goodput - 1 if base.goodput else 0.0,
            base.tokens.computed - run.result.tokens.computed,
        )
        for run in runs
        if run.mode is not Mode.NONE
    ]


def break_even(mode: Mode, sweep: Sequence[Gain]) -> BreakEven:
    """Where the gain in throughput goes from none to some, in a straight line between two sizes."""
    points = sorted((gain.utilisation, gain.throughput) for gain in sweep if gain.mode is mode)
    for (left, low), (right, high) in pairwise(points):
        if low <= 0 < high:
            at = left + (right - left) * -low / (high - low)
            return BreakEven(mode, at, f"{mode} gains from {at:.0%} HBM utilisation on")
    least, most = points[0][0], points[-1][0]
    if points[0][1] > 0:
        return BreakEven(mode, None, f"{mode} gains at all sizes tried, from {least:.0%} HBM utilisation on")
    return BreakEven(mode, None, f"{mode} gains at no size tried, up to {most:.0%} HBM utilisation")


def happened(incidents: Sequence[Incident], runs: Sequence[Run]) -> Iterator[str]:
    """What the store gave before and after each incident, of runs that have one."""
    for run in runs if incidents else ():
        if run.mode is not Mode.SHARED:
            continue
        samples, times = run.result.samples, sorted({incident.at_s for incident in incidents})
        bounds = [0.0, *times, samples.at_s[-1] + 1]
        spans = list(pairwise(bounds))
        for number, at_s in enumerate(times):
            what = ", ".join(f"node {i.node} {i.kind.value}" for i in incidents if i.at_s == at_s)
            (since_s, _), (_, until_s) = spans[number : number + 2]
            before = _from_store(samples, max(since_s, at_s - _MINUTE_S), at_s)
            after = _from_store(samples, at_s, min(until_s, at_s + _MINUTE_S))
            last = _from_store(samples, max(at_s, until_s - _MINUTE_S), until_s)
            found = (
                f"{before:.1%} of prompt tokens found in the store in the minute before, {after:.1%} in the "
                f"one after, {last:.1%} in the last one"
            )
            yield f"{what} at {at_s:g} s: {found}"


_MINUTE_S = 60.0


def _from_store(samples: Samples, since_s: float, until_s: float) -> float:
    within = [i for i, at_s in enumerate(samples.at_s) if since_s <= at_s <= until_s]
    if not within:
        return 0.0
    first, last = within[0], within[-1]
    asked = samples.prompt[last] - samples.prompt[first]
    return (samples.shared[last] - samples.shared[first]) / asked if asked else 0.0


def prepare(found: Found) -> tuple[Setup, Callable[[], Load], tuple[str, ...]]:
    """A scenario as what `simulate` takes: the setup, what makes a load for one run, and notes on the trace.
    Raises ConfigError."""
    scenario = found.scenario
    workload, trace = scenario.workload, scenario.workload.trace
    if trace is not None:
        read, notes = _requests(trace, found.directory, workload.duration_s)
        block_size = scenario.fleet.block_size or (read.block_size if read.has_blocks else _BLOCK)
        open_load = trace_load(read, block_size, speed=trace.speed, shared=trace.shared)
        return _setup(found, block_size), lambda: open_load, notes
    block_size = scenario.fleet.block_size or _BLOCK
    duration_s = workload.duration_s or _DURATION_S
    setup = _setup(found, block_size)
    return setup, lambda: StreamLoad(workload.streams, duration_s, block_size, scenario.seed), ()


def _requests(
    trace: TraceConfig, directory: Path, duration_s: float | None
) -> tuple[Workload, tuple[str, ...]]:
    bundled = _BUNDLED_TRACES.get(trace.path)
    path = Path(__file__).parent / bundled if bundled else directory / trace.path
    read = read_trace(path)
    end = None if trace.requests is None else trace.first + trace.requests
    requests = read.workload.requests[trace.first : end]
    if duration_s is not None and requests:
        last_s = requests[0].at_s + duration_s * trace.speed
        requests = [asked for asked in requests if asked.at_s <= last_s]
    if not requests:
        num = len(read.workload.requests)
        text = f"is {trace.first}; allowed: below {num}, which {path} has"
        raise Unfit(("workload", "trace", "first"), text)
    return Workload(requests, read.workload.block_size), read.notes


def _chunk_tokens(scenario: Scenario, block_size: int) -> int:
    """Whole blocks. Raises Unfit where somebody said another number."""
    tokens = scenario.cache.chunk_tokens
    if tokens % block_size == 0:
        return tokens
    if "chunk_tokens" in scenario.cache.model_fields_set:
        text = f"is {tokens}; allowed: whole blocks, multiples of {block_size} (`fleet.block_size`)"
        raise Unfit(("cache", "chunk_tokens"), text)
    return max(1, tokens // block_size) * block_size


def _setup(found: Found, block_size: int) -> Setup:
    scenario = found.scenario
    fleet, cache = scenario.fleet, scenario.cache
    deployment = _deployment(fleet, found.directory)
    cost = None
    if fleet.cost_file is not None:
        cost = read_cost_file(found.directory / fleet.cost_file).cost
    store = cache.store
    return Setup(
        FleetSetup(
            deployment,
            fleet.engines,
            fleet.kv_tokens,
            cost,
            block_size,
            fleet.max_num_seqs,
            fleet.max_num_batched_tokens,
            fleet.prefill_engines,
        ),
        CacheSetup(
            Mode.NONE,
            cache.host_bytes,
            _chunk_tokens(scenario, block_size),
            Offload(cache.offload.value),
            StoreSetup(store.medium, store.capacity_bytes, store.nodes, store.copies),
        ),
        scenario.router.policy,
        scenario.seed,
        Slo(scenario.slo.ttft_s, scenario.slo.itl_s),
        tuple(
            Incident(event.at_s, event.node, event.kind, event.until_s, event.delay_s)
            for event in scenario.events
        ),
    )


def _deployment(fleet: FleetConfig, directory: Path) -> Deployment:
    is_file = (directory / fleet.model).exists()
    try:
        name, config = read_model(str(directory / fleet.model) if is_file else fleet.model)
    except ConfigError as error:
        raise Unfit(("fleet", "model"), str(error)) from error
    return Deployment(name, config, fleet.gpu, fleet.tp, fleet.dtype, fleet.kv_dtype)


def _assumptions(scenario: Scenario, setup: Setup) -> tuple[str, ...]:
    """What nobody said."""
    deployment = setup.fleet.deployment
    found = ["hit rates are by tokens, of all prompts; nothing is cached at first"]
    if setup.fleet.cost is None:
        found += deployment.assumptions
        found.append("steps are bound by memory up to where computing takes longer")
    if setup.fleet.kv_tokens is None:
        found.append(f"{setup.kv_tokens:,} tokens of KV fit on an engine's GPUs, an estimate")
    if setup.cache.chunk_tokens != scenario.cache.chunk_tokens:
        found.append(f"chunks have {setup.cache.chunk_tokens} tokens: whole blocks")
    if Mode.SHARED in scenario.cache.modes:
        found.append(f"each engine has a way of its own to the store ({scenario.cache.store.medium})")
    if scenario.workload.streams and any(stream.adapters for stream in scenario.workload.streams):
        found.append("loading LoRA adapters takes no time, and any number runs together")
    return tuple(found)
