"""Random engines on vLLM's side and on the model's; runs in the engine's interpreter."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from anbar.sim.engine.engine import Engine
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape, Offload
from anbar.sim.engine.shared import SharedTier
from tests.engine.dry.engine import DryEngine
from tests.engine.dry.tier import CLOCK
from tests.engine.recording.recorded import Asked, Batch, Recording, Settings
from tests.engine.replay import Replay
from tests.unit.sim.workload import Ask, Below, Workload, random_ask, random_workload

_MAX_STEPS = 4000
_HOST_REGIONS = Path("/dev/shm")


@dataclass(frozen=True)
class _Clear:
    """The caches are cleared before a step; `cleared` is what vLLM said."""

    preempts: bool
    tiers: bool
    cleared: bool


@dataclass
class _DryReplay(Replay):
    """With what a recording does not hold."""

    workload: Workload | None = None
    asks: dict[str, Ask] = field(default_factory=dict)
    clears: dict[tuple[str, int], _Clear] = field(default_factory=dict)
    """By batch and step."""

    def shape(self) -> EngineShape:
        assert self.workload is not None
        return replace(
            super().shape(),
            prefix_caching=self.workload.shape.prefix_caching,
            kv_bytes_per_token=self.workload.shape.kv_bytes_per_token,
        )

    def before_step(self, engine: Engine, batch: Batch, number: int) -> None:
        clear = self.clears.get((batch.name, number))
        if clear is not None:
            cleared = engine.clear_cache(preempts=clear.preempts, tiers=clear.tiers)
            assert cleared == clear.cleared, f"{batch.name}, step {number}: clearing differs"
            engine.check_integrity()

    def request(self, asked: Asked) -> EngineRequest:
        request = super().request(asked)
        ask = self.asks[asked.id]
        request.wish, request.loads_shared = ask.wish, ask.loads_shared
        return request

    def aborts_amid(self, batch: Batch, number: int) -> Sequence[str]:
        return [
            a.id for a in batch.requests if self.asks[a.id].aborts_amid and self.asks[a.id].aborts == number
        ]


def compare(seed: int) -> Counter[str]:
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
        recording = Recording(name, "dry", _settings(workload, engine), batches)
    finally:
        engine.scheduler.shutdown()
        for path in _HOST_REGIONS.glob(f"*{name}.*"):
            path.unlink()
    shared = SharedTier(*workload.store) if workload.store is not None else None
    replay = _DryReplay(recording, shared, workload=workload)
    for part in served:
        replay.asks |= part.asks
        replay.clears |= part.clears
    return Counter(asdict(replay.run()))


class _Served:
    """A batch of requests on vLLM's side."""

    def __init__(self, engine: DryEngine, rng: random.Random, count: int) -> None:
        self._engine = engine
        self._rng = rng
        self._count = count
        self.asks: dict[str, Ask] = {}
        self.clears: dict[tuple[str, int], _Clear] = {}

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
                self._clear(label, number)
                engine.step([name for name in now if asks[name].aborts_amid])
            elif len(arrived) == len(asks):
                break
        requests = tuple(_asked(engine, name, ask, arrived[name]) for name, ask in asks.items())
        return Batch(label, clears, requests, tuple(scheduler.steps))

    def _clear(self, label: str, number: int) -> None:
        """Now and then."""
        if self._rng.random() < 0.97:
            return
        preempts, tiers = self._rng.random() < 0.5, self._rng.random() < 0.5
        # With a connector vLLM may die of that: of a request which is preempted by it, and loads in the same
        # step, it asserts that it stores.
        preempts = preempts and self._engine.num_chunks == 0
        try:
            cleared = self._engine.scheduler.reset_prefix_cache(preempts, tiers)
        except RuntimeError:  # a request that loads keeps its blocks
            cleared = False
        self.clears[label, number] = _Clear(preempts, tiers, cleared)


def _asked(engine: DryEngine, name: str, ask: Ask, arrived: int) -> Asked:
    request = engine.scheduler.seen[name]
    device_hit, external_hit = engine.scheduler.hits.get(name, (0, 0))
    return Asked(
        id=name,
        prompt=ask.prompt,
        max_tokens=len(ask.answer),
        salt=None,
        reads_cache=ask.reads_cache,
        max_load_tokens=ask.max_load_tokens,
        max_offload_tokens=ask.max_offload_tokens,
        arrives=arrived,
        aborts=None if ask.aborts_amid else ask.aborts,
        answer=tuple(request.output_token_ids),
        keys=engine.keys(ask),
        cached_tokens=device_hit + external_hit,
        device_hit=device_hit,
        external_hit=external_hit,
        num_preemptions=request.num_preemptions,
    )


def _settings(workload: Workload, engine: DryEngine) -> Settings:
    shape, host = workload.shape, workload.host
    return Settings(
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=shape.max_model_len,
        watermark=shape.watermark,
        reserve_full_prompt=shape.reserve_full_prompt,
        host_chunks=engine.num_chunks,
        chunk_blocks=host.chunk_blocks if host is not None else 1,
        offload_prompt_only=host is not None and host.offload is Offload.PROMPT,
    )
