"""router-quality: how well requests are routed, in virtual time, by our policies and by others' formulas.

Eight engines of the engine model (an 8B model on one H100 each, by the emulator's own estimates), a public
chat trace (`benchmarks/data`) in open loop, sped up; the fleet's KV cache holds the stated share of the
working set. Three paces, below, about and above what the fleet can keep up with; at the middle one three
sizes of the cache, at the others the middle one. Each seed is another part of the trace; the policies were
made on others, which are not in `benchmarks/data`. Said of each policy:

- the hit rate, relative to that of one LRU cache that has the room of all engines together;
- goodput: requests a second with their first token within 2 s and, on the average, no more than 100 ms
  between tokens;
- the time to the first token.

*Most possible* is the goodput of a fleet in which nobody ever waits and every prompt finds what one pooled
cache holds of it: some prompts are too long to be computed within 2 s. No policy can have more.

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

from anbar.apps.emulator.default_cost import H100_8B
from anbar.route import make_policy
from benchmarks.fleet_sim import FleetSim, pooled_hits, trace, working_set
from benchmarks.peer_policies import PEER_POLICIES
from benchmarks.report import Report, Series

NUM_ENGINES = 8
NUM_REQUESTS = 1000
SPEED = 2.4
SPEEDS = (SPEED, 2.8, 3.2)
"""Times the trace's own pace. The prompts alone, without any cache, take 0.66 to 0.71 of the engines' time,
0.77 to 0.82, and 0.88 to 0.94; answers need the rest."""
LEVELS = (1.5, 3.0, 5.0)
"""Working set over capacity; three is what such engines have, with some 830 blocks of 512 tokens each."""
CELLS = (*((SPEEDS[1], level) for level in LEVELS), (SPEEDS[0], LEVELS[1]), (SPEEDS[2], LEVELS[1]))
COMPARED = ("predicted_ttft", "least_loaded", "prefix")
"""Of our own."""
CHUNK = 8192
"""Tokens of a step (`max_num_batched_tokens` of the engines in `fleet_sim`)."""
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
    speed: float
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
    most_possible: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float


def run(case: Case) -> Figures:
    """One case, from a cold fleet."""
    asks = trace(case.seed * NUM_REQUESTS, case.num_requests, case.speed, shared=case.shared)
    num_blocks = max(MIN_BLOCKS, int(working_set(asks) / case.level / NUM_ENGINES))
    rng = Random(case.seed)
    chosen = PEERS[case.policy](rng) if case.policy in PEERS else make_policy(case.policy, rng)
    result = FleetSim(NUM_ENGINES, num_blocks, chosen).run(asks)
    percentiles = statistics.quantiles(result.ttft_s, n=100)
    in_pool = pooled_hits(asks, NUM_ENGINES * num_blocks)
    num_possible = sum(
        alone_s(ask.num_prompt, hit) <= SLO_TTFT_S for ask, hit in zip(asks, in_pool, strict=True)
    )
    return Figures(
        hit_rate=result.hit_rate,
        pooled_hit_rate=sum(in_pool) / sum(ask.num_prompt for ask in asks),
        goodput=result.goodput(SLO_TTFT_S, SLO_ITL_S),
        offered=len(asks) / result.span_s,
        most_possible=num_possible / result.span_s,
        ttft_p50_s=percentiles[49],
        ttft_p90_s=percentiles[89],
        ttft_p99_s=percentiles[98],
    )


def alone_s(num_tokens: int, num_cached: int) -> float:
    """Seconds to compute a prompt on an engine that does nothing else."""
    chunks = [min(CHUNK, num_tokens - done) for done in range(num_cached, num_tokens, CHUNK)]
    pairs_s = H100_8B.prefill_s_per_token2 * (num_tokens**2 - num_cached**2)
    return sum(H100_8B.tokens.seconds(chunk) for chunk in chunks) + pairs_s


Cell = tuple[float, float]
"""Speed and level."""


def cases(
    cells: Sequence[Cell], seeds: Sequence[int], policies: Sequence[str], num_requests: int
) -> list[Case]:
    made = [
        Case(policy, *cell, seed, num_requests=num_requests)
        for seed in seeds
        for cell in cells
        for policy in policies
    ]
    alone = [policy for policy in ("predicted_ttft", "least_loaded") if policy in policies]
    return made + [Case(policy, *cells[0], seed, False, num_requests) for seed in seeds for policy in alone]


Found = dict[Case, Figures]


def column(
    found: Found, policy: str, cell: Cell, shared: bool, of: Callable[[Figures], float]
) -> list[float]:
    """One value a seed."""
    return [
        of(f)
        for case, f in found.items()
        if (case.policy, case.speed, case.level, case.shared) == (policy, *cell, shared)
    ]


def report(found: Found, cells: Sequence[Cell], policies: Sequence[str], setup: dict[str, object]) -> Report:
    made = Report("router-quality", "make bench NAME=router-quality", setup)
    for cell in cells:
        made.ratios |= _ratios(found, cell, policies)
    alone, least = (
        column(found, policy, cells[0], False, lambda f: f.goodput)
        for policy in ("predicted_ttft", "least_loaded")
    )
    made.ratios["not shared: goodput of predicted_ttft / of least_loaded"] = _median_ratio(alone, least)
    for case, figures in found.items():
        where = _where((case.speed, case.level)) if case.shared else "not shared"
        name = f"{case.policy}, {where}, seed {case.seed}: ttft p50, p90, p99"
        made.series.append(Series(name, [figures.ttft_p50_s, figures.ttft_p90_s, figures.ttft_p99_s]))
    made.setup["runs"] = [asdict(case) | asdict(figures) for case, figures in found.items()]
    return made


def _where(cell: Cell) -> str:
    return f"pace {cell[0]:g}, level {cell[1]:g}"


def _ratios(found: Found, cell: Cell, policies: Sequence[str]) -> dict[str, float]:
    """Of one cell. The best other policy is the one with the most goodput over all seeds."""
    where = _where(cell)
    ours = column(found, "predicted_ttft", cell, True, lambda f: f.goodput)
    goodput = {
        policy: column(found, policy, cell, True, lambda f: f.goodput)
        for policy in policies
        if policy != "predicted_ttft"
    }
    best = max(goodput, key=lambda policy: statistics.fmean(goodput[policy]))
    possible = column(found, "predicted_ttft", cell, True, lambda f: f.most_possible)
    of_pool = column(found, "predicted_ttft", cell, True, lambda f: f.hit_rate / f.pooled_hit_rate)
    made = {
        f"{where}: hit rate of predicted_ttft / of one pooled cache": statistics.median(of_pool),
        f"{where}: goodput of predicted_ttft / of the best other ({best})": _median_ratio(
            ours, goodput[best]
        ),
        f"{where}: most possible / goodput of the best other": _median_ratio(possible, goodput[best]),
    }
    if "least_loaded" in goodput:
        ratio = _median_ratio(ours, goodput["least_loaded"])
        made[f"{where}: goodput of predicted_ttft / of least_loaded"] = ratio
    return made


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def show(found: Found, cells: Sequence[Cell], policies: Sequence[str]) -> None:
    for cell, shared in [*((cell, True) for cell in cells), (cells[0], False)]:
        what = _where(cell) if shared else "not shared"
        table = Table(title=f"router-quality: {what}; medians over seeds, least to most in brackets")
        for name in ("policy", "hit rate of pooled", "goodput /s", "of offered", "TTFT p50 s", "p90", "p99"):
            table.add_column(name, justify="left" if name == "policy" else "right")
        for policy in policies:
            columns = [
                column(found, policy, cell, shared, of)
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
    parser.add_argument("--quick", action="store_true", help="one seed, one pace and level, nothing written")
    parser.add_argument("--policies", nargs="*", help="by default others' and the best of ours")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    options = parser.parse_args()
    policies = options.policies or [*COMPARED, *PEERS]
    cells, seeds = (CELLS[:1], 1) if options.quick else (CELLS, options.seeds)
    todo = cases(cells, range(1, seeds + 1), policies, options.requests)
    with ProcessPoolExecutor(options.processes) as pool:
        found = dict(zip(todo, pool.map(run, todo), strict=True))
    setup: dict[str, object] = {
        "engines": NUM_ENGINES,
        "requests": options.requests,
        "cells": [list(cell) for cell in cells],
        "slo_ttft_s": SLO_TTFT_S,
        "slo_itl_s": SLO_ITL_S,
    }
    made = report(found, cells, policies, setup)
    show(found, cells, policies)
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
    return WANTED_GOODPUT if "best other (" in ratio else 0.97


if __name__ == "__main__":
    main()
