"""router-quality: how well requests are routed, in virtual time, by our policies and by others' formulas.

Eight engines of the engine model (an 8B model on one H100 each, by the emulator's own estimates), a public
chat trace (`benchmarks/data`) in open loop, sped up; the fleet's KV cache holds the stated share of the
working set. Each seed is another part of the trace. Said of each policy:

- the hit rate, relative to that of one LRU cache that has the room of all engines together;
- goodput: requests a second with their first token within 2 s and, on the average, no more than 100 ms
  between tokens;
- the time to the first token.

*Not shared* is the same trace with no two prompts alike: there a policy that looks at caches can only lose.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from random import Random

from rich.console import Console
from rich.table import Table

from anbar.route import POLICIES, make_policy
from benchmarks.fleet_sim import FleetSim, pooled_hit_rate, trace, working_set
from benchmarks.peer_policies import PEER_POLICIES
from benchmarks.report import Report, Series

NUM_ENGINES = 8
NUM_REQUESTS = 1000
SPEED = 2.4
"""Times the trace's own pace: some nine tenths of what the fleet could do without any cache."""
LEVELS = (1.5, 3.0, 5.0)
"""Working set over capacity; three is what such engines have, with some 830 blocks of 512 tokens each."""
MIN_BLOCKS = 260
"""Of an engine: the longest request must fit."""
SLO_TTFT_S = 2.0
SLO_ITL_S = 0.1
WANTED_OF_POOL = 0.95
WANTED_GOODPUT = 1.2
PEERS = {made.name: made for made in PEER_POLICIES}


@dataclass(frozen=True)
class Case:
    """One run. `level` is the working set over capacity."""

    policy: str
    level: float
    seed: int
    shared: bool = True
    num_requests: int = NUM_REQUESTS


@dataclass(frozen=True)
class Figures:
    """What came of it."""

    hit_rate: float
    pooled_hit_rate: float
    goodput: float
    offered: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float


def run(case: Case) -> Figures:
    """One case, from a cold fleet."""
    asks = trace(case.seed * NUM_REQUESTS, case.num_requests, SPEED, shared=case.shared)
    num_blocks = max(MIN_BLOCKS, int(working_set(asks) / case.level / NUM_ENGINES))
    rng = Random(case.seed)
    chosen = PEERS[case.policy](rng) if case.policy in PEERS else make_policy(case.policy, rng)
    result = FleetSim(NUM_ENGINES, num_blocks, chosen).run(asks)
    percentiles = statistics.quantiles(result.ttft_s, n=100)
    return Figures(
        hit_rate=result.hit_rate,
        pooled_hit_rate=pooled_hit_rate(asks, NUM_ENGINES * num_blocks),
        goodput=result.goodput(SLO_TTFT_S, SLO_ITL_S),
        offered=len(asks) / result.span_s,
        ttft_p50_s=percentiles[49],
        ttft_p90_s=percentiles[89],
        ttft_p99_s=percentiles[98],
    )


def cases(
    levels: Sequence[float], seeds: Sequence[int], policies: Sequence[str], num_requests: int
) -> list[Case]:
    made = [
        Case(policy, level, seed, num_requests=num_requests)
        for seed in seeds
        for level in levels
        for policy in policies
    ]
    alone = [policy for policy in ("predicted_ttft", "least_loaded", "round_robin") if policy in policies]
    return made + [Case(policy, levels[0], seed, False, num_requests) for seed in seeds for policy in alone]


Found = dict[Case, Figures]


def column(
    found: Found, policy: str, level: float, shared: bool, of: Callable[[Figures], float]
) -> list[float]:
    """One value a seed."""
    return [
        of(f)
        for case, f in found.items()
        if (case.policy, case.level, case.shared) == (policy, level, shared)
    ]


def report(
    found: Found, levels: Sequence[float], policies: Sequence[str], setup: dict[str, object]
) -> Report:
    made = Report("router-quality", "make bench NAME=router-quality", setup)
    peers = [policy for policy in policies if policy in PEERS]
    for level in levels:
        of_pool = column(found, "predicted_ttft", level, True, lambda f: f.hit_rate / f.pooled_hit_rate)
        made.ratios[f"{level:g}: hit rate of predicted_ttft / of one pooled cache"] = statistics.median(
            of_pool
        )
        ours = column(found, "predicted_ttft", level, True, lambda f: f.goodput)
        for others, name in ((peers, "the best formula of others"), (["least_loaded"], "least_loaded")):
            rows = [
                column(found, policy, level, True, lambda f: f.goodput)
                for policy in others
                if policy in policies
            ]
            if rows:
                best = [max(values) for values in zip(*rows, strict=True)]
                ratio = statistics.median(a / b for a, b in zip(ours, best, strict=True))
                made.ratios[f"{level:g}: goodput of predicted_ttft / of {name}"] = ratio
    alone, least = (
        column(found, policy, levels[0], False, lambda f: f.goodput)
        for policy in ("predicted_ttft", "least_loaded")
    )
    made.ratios["not shared: goodput of predicted_ttft / of least_loaded"] = statistics.median(
        a / b for a, b in zip(alone, least, strict=True)
    )
    for case, figures in found.items():
        where = f"{case.level:g}" if case.shared else "not shared"
        name = f"{case.policy}, {where}, seed {case.seed}: ttft p50, p90, p99"
        made.series.append(Series(name, [figures.ttft_p50_s, figures.ttft_p90_s, figures.ttft_p99_s]))
    made.setup["runs"] = [asdict(case) | asdict(figures) for case, figures in found.items()]
    return made


def show(found: Found, levels: Sequence[float], policies: Sequence[str]) -> None:
    for level, shared in [*((level, True) for level in levels), (levels[0], False)]:
        what = f"working set {level:g} times the cache" if shared else "not shared"
        table = Table(title=f"router-quality: {what}; medians over seeds, least to most in brackets")
        for name in ("policy", "hit rate of pooled", "goodput /s", "of offered", "TTFT p50 s", "p90", "p99"):
            table.add_column(name, justify="left" if name == "policy" else "right")
        for policy in policies:
            columns = [
                column(found, policy, level, shared, of)
                for of in (
                    lambda f: f.hit_rate / f.pooled_hit_rate if f.pooled_hit_rate else 0.0,
                    lambda f: f.goodput,
                    lambda f: f.goodput / f.offered,
                    lambda f: f.ttft_p50_s,
                    lambda f: f.ttft_p90_s,
                    lambda f: f.ttft_p99_s,
                )
            ]
            if columns[0]:
                table.add_row(policy, *(_spread(values) for values in columns))
        Console(width=150).print(table)


def _spread(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.2f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, one level, nothing written")
    parser.add_argument("--policies", nargs="*", help="by default all of ours and of others")
    parser.add_argument("--levels", nargs="*", type=float, default=LEVELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    options = parser.parse_args()
    policies = options.policies or [*POLICIES, *PEERS]
    levels, seeds = (options.levels[:1], 1) if options.quick else (options.levels, options.seeds)
    todo = cases(levels, range(1, seeds + 1), policies, options.requests)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(todo, pool.map(run, todo), strict=True))
    setup: dict[str, object] = {
        "engines": NUM_ENGINES,
        "requests": options.requests,
        "speed": SPEED,
        "slo_ttft_s": SLO_TTFT_S,
        "slo_itl_s": SLO_ITL_S,
        "levels": list(levels),
    }
    made = report(found, levels, policies, setup)
    show(found, levels, policies)
    for name, value in made.ratios.items():
        print(f"{name}: {value:.2f}")
    if options.quick or options.policies:
        return
    print(f"written: {made.write()}")
    missed = [name for name, value in made.ratios.items() if value < _wanted(name)]
    if missed:
        sys.exit("missed: " + "; ".join(missed))


def _wanted(ratio: str) -> float:
    if "hit rate" in ratio:
        return WANTED_OF_POOL
    return WANTED_GOODPUT if "others" in ratio else 0.97


if __name__ == "__main__":
    main()
