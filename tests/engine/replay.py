"""A recording of real vLLM, served again by the engine model and compared with it step by step.

Everything that can be seen of vLLM's blocks is compared: which request gets which tokens and blocks, who is
preempted, the order of the queues and of the free blocks, what is cached where, and the events; and, batch by
batch, what is counted of lookups.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anbar.core.cost import EngineCost, TokenCurve
from anbar.core.events import Tier
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import NO_TIERS, Engine, Tiers
from anbar.sim.engine.events import Cleared, EngineEvent, Removed, Stored, TierRemoved, TierStored
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import BlockKey, EngineRequest, Status
from anbar.sim.engine.shape import EngineShape, HostShape, Offload
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.step import Step as EngineStep
from anbar.sim.engine.step import StepResult
from tests.engine.recording.recorded import Asked, Batch, Event, Lookups, Recording, Settings, Step
from tests.unit.sim.workload import Ask

_COST = StepCost(EngineCost(TokenCurve(((1, 1.0), (2, 1.0)))))
"""Every step takes a second, so that none is merged with the next."""
_MEDIA = {Tier.HOST: "CPU", Tier.SHARED: "STORAGE"}


@dataclass
class Totals:
    """What a recording contains: too little of it, and equality shows nothing."""

    steps: int = 0
    preemptions: int = 0
    evictions: int = 0
    device_hits: int = 0
    external_hits: int = 0
    host_evictions: int = 0
    given_away: int = 0
    """Stores that had to be copied in the step that planned them."""
    shared: int = 0
    """Events of the shared tier."""


@dataclass(frozen=True)
class Clear:
    """The caches are cleared before a step; `cleared` is what vLLM said."""

    preempts: bool
    tiers: bool
    cleared: bool


@dataclass(frozen=True)
class Extras:
    """What a recording does not hold."""

    shared: SharedTier | None = None
    """Behind the host tier."""
    kv_bytes_per_token: int = 0
    asks: Mapping[str, Ask] = field(default_factory=dict)
    """By request: what it asks of the shared tier, and whether it is aborted amid a step."""
    clears: Mapping[tuple[str, int], Clear] = field(default_factory=dict)
    """By batch and step."""


@dataclass
class Replay:
    """The model beside a recording. `run` raises AssertionError at the first difference."""

    recording: Recording
    extras: Extras = field(default_factory=Extras)
    totals: Totals = field(default_factory=Totals)

    def run(self) -> Totals:
        settings = self.recording.settings
        self._block_size = settings.block_size
        self._engine = Engine(self._shape(), _COST, _tiers(settings, self.extras.shared))
        self._now_s = 0.0
        for batch in self.recording.batches:
            self._serve(batch)
        return self.totals

    def _shape(self) -> EngineShape:
        """The engine's shape, as vLLM said it."""
        settings = self.recording.settings
        return EngineShape(
            block_size=settings.block_size,
            num_blocks=settings.num_blocks,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            watermark=settings.watermark,
            reserve_full_prompt=settings.reserve_full_prompt,
            prefix_caching=settings.prefix_caching,
            kv_bytes_per_token=self.extras.kv_bytes_per_token,
        )

    def _request(self, asked: Asked) -> EngineRequest:
        """The model's side of a request."""
        request = EngineRequest(
            RequestId(asked.id),
            len(asked.prompt),
            asked.max_tokens,
            _Keys(asked.keys),
            reads_cache=asked.reads_cache,
            max_load_tokens=asked.max_load_tokens,
            max_offload_tokens=asked.max_offload_tokens,
        )
        if (ask := self.extras.asks.get(asked.id)) is not None:
            request.wish, request.loads_shared = ask.wish, ask.loads_shared
        return request

    def _clear(self, batch: Batch, number: int) -> None:
        clear = self.extras.clears.get((batch.name, number))
        if clear is not None:
            cleared = self._engine.clear_cache(preempts=clear.preempts, tiers=clear.tiers)
            assert cleared == clear.cleared, f"{batch.name}, step {number}: clearing differs"
            self._engine.check_integrity()

    def _aborts_amid(self, batch: Batch, number: int) -> list[str]:
        """Requests that were aborted while a step was computed."""
        asks = self.extras.asks
        return [
            asked.id
            for asked in batch.requests
            if (ask := asks.get(asked.id)) is not None and ask.aborts_amid and ask.aborts == number
        ]

    def _serve(self, batch: Batch) -> None:
        if batch.clears:
            assert self._engine.clear_cache()
        self._asked = {asked.id: asked for asked in batch.requests}
        requests: dict[str, EngineRequest] = {}
        for number, step in enumerate(batch.steps):
            for asked in batch.requests:
                if asked.arrives == number:
                    requests[asked.id] = self._request(asked)
                    self._engine.add(requests[asked.id])
            for asked in batch.requests:
                if asked.aborts == number:
                    self._engine.abort(RequestId(asked.id))
            self._clear(batch, number)
            for name, ours, theirs in self._step(step, self._aborts_amid(batch, number)):
                assert ours == theirs, f"{batch.name}, step {number}: {name} differ"
            self._engine.check_integrity()
            self._count(step)
            self._now_s += 1.0
        self._clear(batch, len(batch.steps))
        assert self._engine.start_step(self._now_s) is None, f"{batch.name}: the model has something to do"
        for asked in batch.requests:
            hits = (requests[asked.id].num_device_hit, requests[asked.id].num_external_hit)
            if asked.answer:  # vLLM says it with the first token
                assert hits == (asked.device_hit, asked.external_hit), f"{asked.id}: hits differ"
            assert requests[asked.id].num_preemptions == asked.num_preemptions
            self.totals.device_hits += asked.device_hit
            self.totals.external_hits += asked.external_hit
        assert self._lookups() == batch.lookups, f"{batch.name}: counters differ"

    def _lookups(self) -> Lookups:
        counters = self._engine.counters
        by_source = {
            "host": counters.num_external_hits - counters.num_shared_hits,
            "disk": counters.num_shared_hits,
        }
        return Lookups(
            counters.num_prefix_queries,
            counters.num_prefix_hits,
            counters.num_external_queries,
            counters.num_external_hits,
            {source: number for source, number in by_source.items() if number},
        )

    def _step(self, step: Step, amid: Sequence[str]) -> Iterator[tuple[str, object, object]]:
        """What the model and vLLM did, part by part. A step in which vLLM only tells its workers that
        requests have ended is none in the model."""
        engine = self._engine
        running = engine.start_step(self._now_s, until_s=self._now_s)
        planned = running.step if running is not None else EngineStep()
        assert planned.num_repeats == 1
        pieces = [(piece.request.id, piece.num_before, piece.num_new) for piece in planned.pieces]
        yield "pieces", pieces, [(piece.request, piece.num_before, piece.num_new) for piece in step.pieces]
        yield "preempted", [request.id for request in planned.preempted], list(step.preempted)
        yield "running", [request.id for request in engine.scheduler.running()], list(step.running)
        waiting = engine.scheduler.waiting()
        yield "loading", [r.id for r in waiting if r.status is Status.LOADING], list(step.loading)
        yield "waiting", [r.id for r in waiting if r.status is not Status.LOADING], list(step.waiting)
        yield "num_deferred", engine.num_deferred, step.num_deferred
        blocks = {r.id: tuple(r.blocks) for r in engine.scheduler.requests() if r.blocks}
        yield "blocks", blocks, step.blocks
        yield "free", engine.pool.free_order(), list(step.free)
        yield from self._copies(step)
        for request_id in amid:
            engine.abort(RequestId(request_id))
        result = engine.finish_step() if running is not None else StepResult((), ())
        outputs = [(output.request.id, output.num_tokens, output.finished) for output in result.outputs]
        yield "outputs", outputs, [(o.request, len(o.tokens), o.finished) for o in step.outputs]
        yield "events", _sorted(self._wire(result.events)), _sorted(step.events)
        yield "free_after", engine.pool.free_order(), list(step.free_after)
        yield "cached", engine.pool.contents(), list(step.cached)
        host = engine.connector.host.keys() if engine.connector is not None else []
        yield "host", host, list(step.host)

    def _copies(self, step: Step) -> Iterator[tuple[str, object, object]]:
        connector = self._engine.connector
        if connector is None:
            return
        theirs = {job.job: (job.request, job.keys) for job in (*step.loads, *step.stores)}
        now = [(job.request.id, tuple(job.keys)) for job in connector.loads]
        yield "loads", now, [theirs[job.job] for job in step.loads]
        later = [(job.request.id, tuple(job.keys)) for job in connector.stores]
        flushed = [job.job for job in step.stores if job.job in step.flushed]
        yield "stores", later, [theirs[job.job] for job in step.stores if job.job not in flushed]
        copied = [(job.request.id, tuple(job.keys)) for job in connector.copying]
        ours = copied[len(copied) - len(flushed) :]
        yield "flushed", ours, [theirs[number] for number in flushed]
        self.totals.given_away += len(flushed)

    def _wire(self, events: Sequence[EngineEvent]) -> Iterator[Event]:
        for event in events:
            match event:
                case Stored(request, first, keys, parent):
                    asked = self._asked[request.id]
                    start = first * self._block_size
                    tokens = (asked.prompt + asked.answer)[start : start + len(keys) * self._block_size]
                    yield Event("stored", "GPU", _text(keys), str(parent) if parent else None, tokens)
                case Removed(keys):
                    yield Event("removed", "GPU", _text(keys))
                case TierStored(keys, tier):
                    yield Event("stored", _MEDIA[tier], _text(keys))
                case TierRemoved(keys, tier):
                    yield Event("removed", _MEDIA[tier], _text(keys))
                case Cleared():
                    yield Event("cleared")

    def _count(self, step: Step) -> None:
        self.totals.steps += 1
        self.totals.preemptions += len(step.preempted)
        removed = [event for event in step.events if event.type == "removed"]
        self.totals.evictions += sum(event.medium == "GPU" for event in removed)
        self.totals.host_evictions += sum(len(event.keys) for event in removed if event.medium == "CPU")
        self.totals.shared += sum(event.medium == "STORAGE" for event in step.events)


@dataclass(frozen=True)
class _Keys:
    """Block keys that vLLM has recorded."""

    keys: tuple[str, ...]

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        assert num_blocks <= len(self.keys)
        return self.keys[:num_blocks]


def _tiers(settings: Settings, shared: SharedTier | None) -> Tiers:
    if not settings.host_chunks:
        return NO_TIERS
    offload = Offload.PROMPT if settings.offload_prompt_only else Offload.ALL
    return Tiers(HostShape(settings.host_chunks, settings.chunk_blocks, offload), shared)


def _text(keys: tuple[BlockKey, ...]) -> tuple[str, ...]:
    return tuple(str(key) for key in keys)


def _sorted(events: Iterable[Event]) -> list[Event]:
    """In order, but for chunks stored on the host tier one after the other: in vLLM, chance."""
    ordered: list[Event] = []
    run: list[Event] = []
    for event in events:
        if (event.type, event.medium) == ("stored", "CPU"):
            run.append(event)
            continue
        ordered += [*sorted(run, key=_keys_of), event]
        run = []
    return ordered + sorted(run, key=_keys_of)


def _keys_of(event: Event) -> tuple[str, ...]:
    return event.keys
