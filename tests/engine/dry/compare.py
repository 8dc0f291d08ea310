"""Random engines on vLLM's side and on the model's; runs in the engine's interpreter."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import Offload
from anbar.sim.engine.shared import SharedTier
from tests.engine.dry.engine import DryEngine
from tests.engine.dry.tier import CLOCK
from tests.engine.recording.recorded import Asked, Batch, Recording, Settings
from tests.engine.replay import Replay
from tests.unit.sim.workload import Ask, Below, Workload, random_ask, random_workload

_MAX_STEPS = 4000
_HOST_REGIONS = Path("/dev/shm")


@dataclass
class _DryReplay(Replay):
    """What a recording does not hold, by request."""

    asks: dict[str, Ask] = field(default_factory=dict)

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
    asks: dict[str, Ask] = {}
    name = f"anbar-dry-{os.getpid()}-{seed}"
    CLOCK.value_s = 0.0
    engine = DryEngine(workload, name)
    try:
        batches = []
        for label in "ab":
            drawn = {f"{label}{i}": random_ask(rng, workload.shape.max_model_len) for i in range(count)}
            asks |= drawn
            batches.append(_serve(engine, label, drawn, clears=label == "b" and rng.random() < 0.3))
        recording = Recording(name, "dry", _settings(workload, engine), tuple(batches))
    finally:
        engine.scheduler.shutdown()
        for path in _HOST_REGIONS.glob(f"*{name}.*"):
            path.unlink()
    shared = SharedTier(*workload.store) if workload.store is not None else None
    return Counter(asdict(_DryReplay(recording, shared, workload.shape.prefix_caching, asks=asks).run()))


def _serve(engine: DryEngine, label: str, asks: dict[str, Ask], *, clears: bool) -> Batch:
    scheduler = engine.scheduler
    scheduler.steps = []
    if clears:
        assert scheduler.reset_prefix_cache()
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
            engine.step([name for name in now if asks[name].aborts_amid])
        elif len(arrived) == len(asks):
            break
    requests = tuple(_asked(engine, name, ask, arrived[name]) for name, ask in asks.items())
    return Batch(label, clears, requests, tuple(scheduler.steps))


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
