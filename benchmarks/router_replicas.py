"""Several routers in front of one fleet, in virtual time, with and without the exchange between them.

Requests come to a router at random, as a load balancer in front would have it. Each router is the real thing
but for HTTP, with an index, placements, books and learned costs of its own (`fleet_sim`); all hear the
engines' events. With the exchange each also hears what the others have in flight, `DELAY_S` later.

- hit rate: share of prompt tokens that the engines had in their caches;
- precision: 1 less what was predicted to be cached and was not, or the other way round, as a share of all
  prompt tokens;
- time to first token.

Two loads: the trace, and the trace with every prompt `BURST` times within `BURST_S`, as agents that fan out
send them.
"""

import argparse
import heapq
import itertools
import math
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random

from rich.console import Console
from rich.table import Table

from anbar.apps.router.changes import Change
from anbar.apps.router.sharing import PeerShare, SharedCaches, SharedLoad, Told
from anbar.core.events import KvBatch, KvEvent
from anbar.core.ids import RequestId
from anbar.route import make_policy
from anbar.sim.engine.engine import Engine as EngineModel
from anbar.sim.engine.request import EngineRequest
from benchmarks.fleet_sim import Ask, FleetSim, InFlight, events_of, trace, working_set
from benchmarks.report import Report

NUM_ENGINES = 8
NUM_REQUESTS = 1000
SPEED = 2.4
LEVEL = 3.0
"""Working set over the fleet's capacity."""
COUNTS = (1, 2, 4, 8)
DELAY_S = 0.005
"""Until another router has heard: 2 ms to gather, the network, and a busy event loop. Between workers of one
machine it is a tenth of that."""
BURST = 4
BURST_S = 0.02
WANTED = 0.97
"""Of one router's hit rate and precision, with the exchange."""


class Replica(FleetSim):
    """One of several routers in front of the same engines."""

    def __init__(
        self, models: Sequence[EngineModel] | None, num_blocks: int, seed: int, told: Told | None
    ) -> None:
        super().__init__(NUM_ENGINES, num_blocks, make_policy("predicted_ttft", Random(seed)))
        self.error = 0
        for worker, model in zip(self._workers, models or self.models, strict=True):
            worker.model = model
            if told is not None:
                worker.engine.load = SharedLoad(worker.engine.id, told)
        placements = self._caches.placements
        if told is not None:
            self._caches = SharedCaches(told, self.fleet, self._index, placements, self._clock, 120.0)
        self.share = lambda: PeerShare(self.fleet, placements, self._clock)

    @property
    def models(self) -> list[EngineModel]:
        return [worker.model for worker in self._workers]

    def heard(self, number: int, batch: KvBatch) -> None:
        """What an engine publishes."""
        engine = self._workers[number].engine.id
        self._index.apply(engine, batch, self._clock.at_s)
        self._caches.taken_in(engine)

    def has(self, request: RequestId) -> InFlight | None:
        return self._running.get(request)

    def first_token(self, running: InFlight, request: EngineRequest) -> None:
        predicted = running.share._plan.prediction.match.total
        self.error += abs(predicted - request.num_cached_tokens)
        self._first_token(running, request)


@dataclass(frozen=True)
class Case:
    """One run."""

    num_routers: int
    exchange: bool
    burst: bool
    seed: int
    num_requests: int = NUM_REQUESTS
    delay_s: float = DELAY_S


@dataclass(frozen=True)
class Figures:
    hit_rate: float
    precision: float
    ttft_p50_s: float
    ttft_p99_s: float


class Replicas:
    """Routers, the engines behind them and what is on its way between them. `run` once."""

    def __init__(self, case: Case, num_blocks: int) -> None:
        tells = [Told() if case.exchange else None for _ in range(case.num_routers)]
        first = Replica(None, num_blocks, case.seed, tells[0])
        others = [
            Replica(first.models, num_blocks, case.seed + place, told)
            for place, told in enumerate(tells[1:], 1)
        ]
        self.routers = [first, *others]
        self._delay_s = case.delay_s
        self._rng = Random(case.seed)
        self._on_way: list[tuple[float, int, PeerShare, Change]] = []
        self._order = itertools.count()
        self._batches = [0] * NUM_ENGINES
        for router in others:
            router._ends, router._busy = first._ends, first._busy
            router._result = first._result
        for router, told in zip(self.routers, tells, strict=True):
            if told is not None:
                self._connect(router, told)

    def _connect(self, router: Replica, told: Told) -> None:
        shares = [other.share() for other in self.routers if other is not router]

        def tell(change: Change) -> None:
            at_s = router._clock.at_s + self._delay_s
            for share in shares:
                heapq.heappush(self._on_way, (at_s, next(self._order), share, change))

        told.tell = tell

    def run(self, asks: Sequence[Ask]) -> None:
        """To the end of the last answer."""
        ends = self.routers[0]._ends
        place = 0
        while place < len(asks) or ends:
            arrival_s = asks[place].at_s if place < len(asks) else math.inf
            heard_s = self._on_way[0][0] if self._on_way else math.inf
            end_s = ends[0][0] if ends else math.inf
            until_s = arrival_s
            if heard_s <= min(arrival_s, end_s):
                self._at(heard_s, until_s)
                _, _, share, change = heapq.heappop(self._on_way)
                share.take(change)
            elif end_s < arrival_s:
                self._at(end_s, until_s)
                _, number = heapq.heappop(ends)
                self._finish(number)
                self.routers[0]._start(number)
            else:
                place += 1
                self._at(arrival_s, asks[place].at_s if place < len(asks) else math.inf)
                self._rng.choice(self.routers)._arrive(asks[place - 1])

    def _at(self, now_s: float, until_s: float) -> None:
        for router in self.routers:
            router._clock.at_s, router._until_s = now_s, until_s

    def _finish(self, number: int) -> None:
        result = self.routers[0].models[number].finish_step()
        events: tuple[KvEvent, ...] = tuple(events_of(result.events))
        if events:
            batch = KvBatch(self._batches[number], events, self.routers[0]._clock.at_s)
            self._batches[number] += 1
            for router in self.routers:
                router.heard(number, batch)
        for output in result.outputs:
            router, running = self._owner(output.request.id)
            if running.first_s is None:
                router.first_token(running, output.request)
            if output.finished:
                router._over(running, output.request)

    def _owner(self, request: RequestId) -> tuple[Replica, InFlight]:
        for router in self.routers:
            running = router.has(request)
            if running is not None:
                return router, running
        raise AssertionError("an engine has a request that no router sent")


def load(case: Case) -> list[Ask]:
    """The requests of a case."""
    if not case.burst:
        return trace(case.seed * case.num_requests, case.num_requests, SPEED)
    number = case.num_requests // BURST
    asks = trace(case.seed * case.num_requests, number, SPEED / BURST)
    more = [
        replace(ask, number=ask.number + 1_000_000 * (at + 1), at_s=ask.at_s + BURST_S * (at + 1) / BURST)
        for ask in asks
        for at in range(BURST - 1)
    ]
    return sorted([*asks, *more], key=lambda ask: ask.at_s)


def run(case: Case) -> Figures:
    """One case, from a cold fleet."""
    asks = load(case)
    sim = Replicas(case, max(600, int(working_set(asks) / LEVEL / NUM_ENGINES)))
    sim.run(asks)
    result = sim.routers[0]._result
    percentiles = statistics.quantiles(result.ttft_s, n=100)
    error = sum(router.error for router in sim.routers) / result.num_prompt
    return Figures(result.hit_rate, 1 - error, percentiles[49], percentiles[98])


@dataclass
class Found:
    """Figures by case; medians over the seeds."""

    figures: dict[Case, Figures] = field(default_factory=dict)

    def median(self, name: str, num_routers: int, exchange: bool, burst: bool) -> float:
        return statistics.median(
            getattr(figures, name)
            for case, figures in self.figures.items()
            if (case.num_routers, case.exchange, case.burst) == (num_routers, exchange, burst)
        )


NAMES = ("hit_rate", "precision", "ttft_p50_s", "ttft_p99_s")


def report(found: Found, counts: Sequence[int], setup: dict[str, object]) -> Report:
    made = Report("router-replicas", "make bench NAME=router-replicas", setup)
    table = Table(title="router-replicas: make bench NAME=router-replicas")
    for column in ("load", "routers", "exchange", *NAMES):
        table.add_column(column, justify="right")
    for burst, count, exchange in itertools.product((False, True), counts, (True, False)):
        if count == 1 and exchange:
            continue
        where = f"{'bursts' if burst else 'trace'}, {count} routers, {'with' if exchange else 'without'}"
        values = [found.median(name, count, exchange, burst) for name in NAMES]
        made.figures |= {f"{where}: {name}": value for name, value in zip(NAMES, values, strict=True)}
        cells = (f"{value:.3f}" for value in values)
        table.add_row("bursts" if burst else "trace", str(count), "yes" if exchange else "no", *cells)
        if count > 1 and exchange:
            for name in ("hit_rate", "precision"):
                one = found.median(name, 1, False, burst)
                made.ratios[f"{where} / 1 router: {name}"] = found.median(name, count, True, burst) / one
    Console(width=120).print(table)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, two counts, nothing written")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--delay", type=float, default=DELAY_S, help="seconds until another router has heard")
    options = parser.parse_args()
    counts = COUNTS[:2] if options.quick else COUNTS
    seeds = range(1 if options.quick else options.seeds)
    todo = [
        Case(count, exchange, burst, seed, options.requests, options.delay)
        for burst, count, exchange, seed in itertools.product((False, True), counts, (True, False), seeds)
        if count > 1 or not exchange
    ]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        found = Found(dict(zip(todo, pool.map(run, todo), strict=True)))
    setup = {
        "engines": NUM_ENGINES,
        "requests": options.requests,
        "delay_s": options.delay,
        "seeds": len(seeds),
    }
    made = report(found, counts, setup)
    for name, value in made.ratios.items():
        print(f"{name}: {value:.3f}")
    if not options.quick:
        print(f"written: {made.write()}")
        missed = [name for name, value in made.ratios.items() if value < WANTED]
        if missed:
            sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
