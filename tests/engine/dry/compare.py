"""Random engines on vLLM's side and on the model's; runs in the engine's interpreter."""

import os
import random
from pathlib import Path

from anbar.sim.engine.shared import SharedTier
from tests.engine.dry.engine import DryEngine
from tests.engine.dry.tier import CLOCK
from tests.engine.recording.recorded import Batch, Recording
from tests.engine.replay import Clear, Extras, Replay, Totals
from tests.unit.sim.workload import Ask, Below, random_ask, random_workload

_MAX_STEPS = 4000
_HOST_REGIONS = Path("/dev/shm")


def compare(seed: int) -> Totals:
    """One engine and two batches on it; AssertionError where the model differs."""
    rng = random.Random(seed)
    count = rng.randint(2, 20)
    workload = random_workload(seed, count, rng.choice(tuple(Below)))
    name = f"anbar-dry-{os.getpid()}-{seed}"
    CLOCK.value_s = 0.0
    engine = DryEngine(workload, name)
    try:
        served = [_Served(engine, rng, count) for _ in range(2)]
        batches = tuple(part.serve(label) for part, label in zip(served, "ab", strict=True))
        recording = Recording(name, engine.scheduler.settings(), batches)
    finally:
        engine.scheduler.shutdown()
        for path in _HOST_REGIONS.glob(f"*{name}.*"):
            path.unlink()
    extras = Extras(
        SharedTier(*workload.store) if workload.store is not None else None,
        workload.shape.kv_bytes_per_token,
        {name: ask for part in served for name, ask in part.asks.items()},
        {place: clear for part in served for place, clear in part.clears.items()},
    )
    return Replay(recording, extras).run()


class _Served:
    """A batch of requests on vLLM's side."""

    def __init__(self, engine: DryEngine, rng: random.Random, count: int) -> None:
        self._engine = engine
        self._rng = rng
        self._count = count
        self.asks: dict[str, Ask] = {}
        self.clears: dict[tuple[str, int], Clear] = {}

    def serve(self, label: str) -> Batch:
        """Serve it to the end of all work."""
        engine, asks = self._engine, self.asks
        scheduler = engine.scheduler
        scheduler.steps = []
        clears = label == "b" and self._rng.random() < 0.3
        if clears:
            assert scheduler.reset_prefix_cache()
        limit = scheduler.max_model_len
        asks |= {f"{label}{i}": random_ask(self._rng, limit) for i in range(self._count)}
        arrived: dict[str, int] = {}
        while True:
            number = len(scheduler.steps)
            assert number < _MAX_STEPS, "no end"
            for name, ask in asks.items():
                if name not in arrived and (ask.arrives <= number or not scheduler.has_requests()):
                    engine.add(name, ask)
                    arrived[name] = number
            now = [name for name, ask in asks.items() if ask.aborts == number]
            engine.abort([name for name in now if not asks[name].aborts_amid])
            if scheduler.has_requests():
                if (label, number) not in self.clears:
                    self._clear(label, number)
                if (
                    scheduler.has_requests()
                ):  # as vLLM's core looks again: clearing may have ended the last job
                    engine.step([name for name in now if asks[name].aborts_amid])
            elif len(arrived) == len(asks):
                break
        requests = tuple(
            scheduler.asked(name, arrives=arrived[name], aborts=None if ask.aborts_amid else ask.aborts)
            for name, ask in asks.items()
        )
        return Batch(label, clears, requests, tuple(scheduler.steps), scheduler.lookups)

    def _clear(self, label: str, number: int) -> None:
        """Now and then."""
        if self._rng.random() < 0.97:
            return
        preempts, tiers = self._rng.random() < 0.5, self._rng.random() < 0.5
        # With a connector vLLM may die of that: of a request which is preempted by it, and loads in the same
        # step, it asserts that it stores.
        preempts = preempts and self._engine.scheduler.connector is None
        try:
            cleared = self._engine.scheduler.reset_prefix_cache(preempts, tiers)
        except RuntimeError:  # a request that loads keeps its blocks
            cleared = False
        self.clears[label, number] = Clear(preempts, tiers, cleared)
