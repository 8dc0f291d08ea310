"""The shared tier as vLLM sees it: a `SecondaryTierManager` over a `Store`.

A thin shell. What to ask, send, refuse and report is decided by the pure `tier.lookups` and `tier.transfers`;
calls on the store run on the threads of `store_calls`. All methods run in the engine's scheduler loop: none
waits for the store (but `drain_jobs` and `shutdown`, which vLLM means to wait, and `hear`, for a fiftieth of
a step), none raises on account of the store.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from anbar.adapters.vllm.store_calls import Result, StoreCalls, Timeouts
from anbar.core.clock import Clock
from anbar.core.cost import PrefillCost
from anbar.tier import part_counts, scope_counts, wish
from anbar.tier.admission import Admission, Run, cost_gauges
from anbar.tier.breaker import Breaker, BreakerState
from anbar.tier.eviction import NOMINAL, chain_saves_s
from anbar.tier.found import GROUP_BYTES
from anbar.tier.kept_out import Shadow
from anbar.tier.load_speed import LoadSpeed
from anbar.tier.lookups import Answer, Lookups, Question
from anbar.tier.part_counts import PartCounts
from anbar.tier.patience import Patience
from anbar.tier.pressure import Pressure
from anbar.tier.reuse import ReuseSketch
from anbar.tier.scope_counts import ScopeCounts
from anbar.tier.scopes import Scopes
from anbar.tier.step_times import StepTimes
from anbar.tier.store import Outcome, Store, StoreStats
from anbar.tier.store_gate import StoreGate
from anbar.tier.tally import (
    BREAKER_OPENED,
    BREAKER_STATE,
    CAPACITY_BYTES,
    COUNTERS,
    DEFECTS,
    EVICTED,
    GAUGES,
    REUSE_FILTER,
    USED_BYTES,
    WRITABLE,
    Series,
    Tally,
)
from anbar.tier.transfers import CALL_BYTES, Direction, Finished, Job, TransferConfig, Transfers

# Below vLLM's logger, so that lines appear in the engine's log.
logger = init_logger("vllm.anbar.shared_tier")

_RESTART = "its requests neither read nor write the store until it is restarted with the tenants of today"

_HIT, _MISS = Answer.HIT, Answer.MISS  # looked up by name ten thousand times a second


@dataclass(frozen=True, slots=True)
class SharedTierOptions:
    """How long the tier waits for the store."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    """Deadlines of single calls."""
    threads_per_lane: int = 2
    """Threads for each of lookups, loads and stores."""
    weighs_loads: bool = True
    """Load only what is sooner loaded than computed; else whatever is found."""
    scopes: Scopes | None = None
    """Whose metrics are told apart. None: nobody's."""


class SharedTier(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Owns `store` from now on: closes it at `shutdown`."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None,
        *,
        store: Store,
        clock: Clock,
        options: SharedTierOptions,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality.REMOTE
        self._owner = f"anbar:{store.id}"
        self._label = (store.id,)
        self._emits_events = offloading_spec.kv_events_config.enable_kv_cache_events
        self._memory = primary_kv_view.cast("B")
        self._breaker = Breaker(clock)
        self._breaker_seen = BreakerState.CLOSED
        self._tally = Tally(by_scope=options.scopes is not None)
        self._scopes = options.scopes or Scopes()
        self._scope_counts = ScopeCounts(self._scopes)
        self._plain: set[str] = set()
        """Scopes that are kept out of the store, told once."""
        self._num_defects = 0
        self._num_evicted = 0
        self._store_stats = self._store_told = StoreStats(None, None, None)
        self._told: dict[str, float] = {}
        """Values of metrics that were reported last."""
        self._part_counts = PartCounts()
        self._events: list[OffloadingEvent] = []
        row_bytes = self.block_size_bytes
        moves = _moves(len(primary_kv_view), row_bytes)
        self._transfers = Transfers(clock, self._breaker, self._tally, moves)
        self.steps = StepTimes(clock)
        """To be told of each step of the engine."""
        self._admission = Admission(
            LoadSpeed(clock),
            self.steps,
            self._tally,
            lambda: self._transfers.pinned(Direction.LOAD),
            row_bytes,
        )
        self._lookups = Lookups(
            clock,
            self._breaker,
            self._tally,
            timeout_s=options.timeouts.lookup_s,
            admission=self._admission if options.weighs_loads else None,
        )
        self._patience = Patience(self.steps)
        self._clock = clock
        self._num_asked = 0
        """Questions that the store has not answered yet."""
        self._gate = StoreGate(Pressure(clock), ReuseSketch(), self._tally)
        self._lookups.shadow = Shadow(self._gate.kept_out, self._admission, self._tally, self._tokens)
        self._chunk_tokens = _chunk_tokens(offloading_spec)
        self._calls = StoreCalls(store, self._breaker, self._row, options.timeouts)
        self._calls.start(options.threads_per_lane)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Reads what the request asks of the tier."""
        request_wish = self._read(req_context)
        req_context.set_state(request_wish)
        self._lookups.open(req_context.req_id, request_wish)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.close(req_context.req_id)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        end_token = req_context.get_offload_key_position(key)
        answer = self._lookups.answer(req_context.req_id, key, end_token, self._tokens(key))
        if answer is _MISS:
            return LookupResult.MISS
        return LookupResult.HIT if answer is _HIT else LookupResult.RETRY

    def submit_store(self, job_metadata: TransferJob) -> None:
        context = job_metadata.req_context
        request_wish = self._wish(context)
        keys, rows, ends = _ordered(job_metadata)
        saves_s = _saves_s(ends, context, self._prefill(request_wish))
        job = Job(job_metadata.job_id, context.req_id, request_wish.scope, keys, rows, saves_s)
        kept: Sequence[int] = ()
        if request_wish.may_store:
            always = request_wish.storing is wish.Storing.ALWAYS
            kept = self._gate.admit(job.scope, job.keys, ends, always=always)
        for call in self._transfers.store(job, wanted=request_wish.may_store, kept=kept):
            self._calls.submit(call)
        self._gate.pressure.queued(self._transfers.store_share)

    def submit_load(self, job_metadata: TransferJob) -> None:
        request_wish = self._wish(job_metadata.req_context)
        keys, rows, ends = _ordered(job_metadata)
        # What lies in another layer, or has lost a copy, is written there with what it is worth.
        saves_s = chain_saves_s([end or 0 for end in ends], self._prefill(request_wish))
        request = job_metadata.req_context.req_id
        job = Job(job_metadata.job_id, request, request_wish.scope, keys, rows, saves_s)
        self._lookups.loading(job.request, keys)
        run = self._run(keys, ends)
        if run is not None:
            decision = self._lookups.decision(job.request)
            self._admission.started(job.id, decision, run, request_wish.prefill)
        for call in self._transfers.load(job):
            self._calls.submit(call)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """vLLM calls this once per step before any lookup, so answers are applied here too."""
        for result in self._calls.collect():
            self._settle(result)
        return [self._report(finished) for finished in self._transfers.take_finished()]

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Sends the questions of this step. What was found for a preempted request is weighed anew: it has
        more to lose by then."""
        self._admission.step_ended()
        for request in context.preempted_req_ids:
            self._lookups.reconsider(request)
        self._send_questions()
        self._patience.step_ended()

    def hear(self) -> bool:
        """Send what was asked in this step so far and wait for the answers, as long as a step may
        (`tier.patience`). Whether there were any: then it is worth asking again."""
        left_s = self._patience.left_s()
        if left_s <= 0:
            return False
        self._send_questions()
        if not self._num_asked:
            return False
        began_s = self._clock.now_s()
        ends_s = began_s + left_s
        while self._num_asked and (result := self._calls.wait(max(0.0, ends_s - self._clock.now_s()))):
            self._settle(result)
        waited_s = self._clock.now_s() - began_s
        self._patience.spent(waited_s)
        self._tally.add(Series.SECONDS, "wait", waited_s)
        return not self._num_asked

    def _send_questions(self) -> None:
        for question in self._lookups.take_questions():
            self._num_asked += 1
            self._calls.submit(question)

    def has_pending_work(self) -> bool:
        """Jobs keep the engine stepping by themselves; events that wait to be published need a step more."""
        return bool(self._events)

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    def drain_jobs(self) -> None:
        for result in self._calls.collect_all():
            self._settle(result)

    def shutdown(self) -> None:
        self._calls.close()
        self._memory.release()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, object]) -> dict[str, OffloadingMetricMetadata]:
        """The metrics of `get_stats`, by name; all have the label `store`."""
        return metric_definitions()

    def get_stats(self) -> OffloadingConnectorStats:
        """What happened since the last call, and what has another value now; at first all. vLLM asks in each
        step, and what does not change would be carried to its server each time."""
        stats = OffloadingConnectorStats()
        for (series, label), amount in self._tally.take().items():
            stats.increase_counter(series.value, amount, (*self._label, label))
        for sample in self._scope_counts.take(self._tally):
            stats.increase_counter(sample.name, sample.value, (*self._label, *sample.labels))
        num_opened = self._breaker.take_num_opened()
        for name, num in ((DEFECTS, self._num_defects), (BREAKER_OPENED, num_opened)):
            if num or name not in self._told:
                self._told[name] = num
                stats.increase_counter(name, num, self._label)
        if self._num_evicted:
            stats.increase_counter(EVICTED, self._num_evicted, self._label)
        self._num_defects = self._num_evicted = 0
        self._gauge(stats, BREAKER_STATE, self._breaker.state().value)
        self._gauge(stats, REUSE_FILTER, float(self._gate.is_engaged))
        self._add_costs(stats)
        if self._store_stats is not self._store_told:
            self._store_told = self._store_stats
            self._add_store(stats, self._store_stats)
        return stats

    def _add_costs(self, stats: OffloadingConnectorStats) -> None:
        """What is known of loading and of computing."""
        for name, value in cost_gauges(self._admission).items():
            self._gauge(stats, name, value)

    def _add_store(self, stats: OffloadingConnectorStats, store: StoreStats) -> None:
        """What the store said of itself."""
        self._gauge(stats, USED_BYTES, store.used_bytes)
        self._gauge(stats, CAPACITY_BYTES, store.capacity_bytes)
        self._gauge(stats, WRITABLE, store.is_writable)
        gauges, evicted = self._scope_counts.holdings(store)
        for sample in (*gauges, *part_counts.gauges(store.parts)):
            stats.set_gauge(sample.name, float(sample.value), (*self._label, *sample.labels))
        for sample in (*evicted, *self._part_counts.take(store.parts)):
            stats.increase_counter(sample.name, sample.value, (*self._label, *sample.labels))

    def _gauge(self, stats: OffloadingConnectorStats, name: str, value: float | None) -> None:
        """None: not known."""
        if value is not None and self._told.get(name) != value:
            self._told[name] = value
            stats.set_gauge(name, float(value), self._label)

    def _row(self, index: int) -> memoryview:
        size = self.block_size_bytes
        return self._memory[index * size : (index + 1) * size]

    def _wish(self, context: ReqContext) -> wish.Wish:
        """As it was read when the request came."""
        known: wish.Wish | None = context.get_state(wish.Wish)
        return known or self._read(context)

    def _read(self, context: ReqContext) -> wish.Wish:
        asked = wish.parse(context.kv_transfer_params)
        granted = asked.granted(seals=self._scopes.of(asked.scope).encrypt)
        if granted is not asked and asked.scope not in self._plain:
            self._plain.add(asked.scope)
            logger.warning(
                "scope %r is to be encrypted, and this engine was started without: %s", asked.scope, _RESTART
            )
        return granted

    def _prefill(self, request_wish: wish.Wish) -> PrefillCost:
        """What computing costs: as the request says, as measured, or as nobody knows."""
        return request_wish.prefill or self.steps.cost or NOMINAL

    def _tokens(self, key: bytes) -> int:
        """Of one chunk of the layers that the key belongs to."""
        return self._chunk_tokens.get(key[-GROUP_BYTES:], 0)

    def _run(self, keys: Sequence[bytes], ends: Sequence[int | None]) -> Run | None:
        """Which tokens a load is for."""
        known = [end for end in ends if end is not None]
        if not known or len(known) < len(ends):
            return None
        return Run(max(0, known[0] - self._tokens(keys[0])), known[-1], len(ends))

    def _settle(self, result: Result) -> None:
        call = result.call
        self._num_defects += result.is_defect
        self._num_evicted += len(result.evicted)
        self._measure(result)
        if isinstance(call, Question):
            self._num_asked -= 1
            if result.outcomes is not None:
                self._patience.answered(result.seconds)
            self._tally.add(Series.SECONDS, "lookup", result.seconds)
            self._lookups.settle(call, result.outcomes)
        else:
            self._tally.add(Series.SECONDS, call.direction.value, result.seconds)
            if call.direction is Direction.LOAD:
                self._admission.called(call.job, result.seconds)
            self._transfers.settle(call, result.outcomes)
        self._emit(result.evicted, removed=True)
        for change in self._transfers.take_changes():
            self._emit(change.keys, removed=not change.present)
        self._watch_breaker()

    def _measure(self, result: Result) -> None:
        """What a call says of the room in the store."""
        pressure, stats = self._gate.pressure, result.stats
        if result.outcomes and Outcome.FULL in result.outcomes:
            pressure.full()
        if stats is not None:
            self._store_stats = stats
            if stats.used_bytes is not None and stats.capacity_bytes:
                pressure.occupied(stats.used_bytes / stats.capacity_bytes)

    def _report(self, finished: Finished) -> JobResult:
        if finished.direction is Direction.LOAD:
            self._admission.ended(finished)
            self._lookups.give_up(finished.request, finished.failed)
        else:
            self._lookups.stored(finished.request, finished.good)
        return JobResult(
            job_id=finished.job,
            success=finished.ok,
            successful_keys=finished.good or None,
            transfer_time=finished.seconds,
            transfer_bytes=finished.num_bytes,
        )

    def _emit(self, keys: Collection[bytes], *, removed: bool) -> None:
        if self._emits_events and keys:
            self._events.append(
                OffloadingEvent(
                    keys=list(keys),
                    medium=self.medium,
                    removed=removed,
                    locality=self.locality,
                    ownership=self._owner,
                )
            )

    def _watch_breaker(self) -> None:
        state = self._breaker.state()
        if state is not self._breaker_seen:
            logger.warning("store %s: circuit breaker %s", self._owner, state.name.lower())
            self._breaker_seen = state


class _LeastSaved(float):
    """The least that an earlier chunk of a request saves; kept in vLLM's scratch space of the request."""


def _chunk_tokens(spec: OffloadingSpec) -> dict[bytes, int]:
    """Tokens of one chunk, by the end of the keys of its layers' cache."""
    return {
        group.group_id.to_bytes(GROUP_BYTES, "big"): group.tokens_per_block * spec.blocks_per_chunk
        for group in spec.config.groups
    }


def _ordered(job: TransferJob) -> tuple[tuple[bytes, ...], tuple[int, ...], list[int | None]]:
    """Keys, rows, and where each chunk ends in its prompt, None: not known. vLLM's keys are in no order; the
    beginning of a prefix is worth most."""
    keys, rows = list(job.keys), job.chunk_ids.tolist()
    ends = [job.req_context.get_offload_key_position(key) for key in keys]
    order = sorted(range(len(keys)), key=[end or 0 for end in ends].__getitem__)
    return tuple([keys[i] for i in order]), tuple([rows[i] for i in order]), [ends[i] for i in order]


def _saves_s(ends: Sequence[int | None], req_context: ReqContext, prefill: PrefillCost) -> tuple[float, ...]:
    """What each chunk saves, by where it ends in its prompt."""
    known = [end or 0 for end in ends]
    saves_s = chain_saves_s(known, prefill, req_context.get_state(_LeastSaved) or math.inf)
    if saves_s:
        req_context.set_state(_LeastSaved(saves_s[-1]))
    return saves_s


def metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Prometheus metrics of the tier."""
    counters = {
        series.value: OffloadingCounterMetadata(series.help, ("store", series.label)) for series in Series
    }
    store = ("store",)
    return {
        **counters,
        **{name: OffloadingCounterMetadata(text, store) for name, text in COUNTERS.items()},
        **{name: OffloadingGaugeMetadata(text, store) for name, text in GAUGES.items()},
        **{
            name: OffloadingCounterMetadata(text, ("store", *labels))
            for families in (scope_counts.COUNTERS, part_counts.COUNTERS)
            for name, (text, labels) in families.items()
        },
        **{
            name: OffloadingGaugeMetadata(text, ("store", *labels))
            for families in (scope_counts.GAUGES, part_counts.GAUGES)
            for name, (text, labels) in families.items()
        },
    }


def _moves(num_rows: int, row_bytes: int) -> TransferConfig:
    """Stores and loads each may hold half of the rows at once."""
    most = max(1, num_rows // 2)
    return TransferConfig(
        row_bytes=row_bytes,
        max_store_rows=most,
        max_load_rows=most,
        rows_per_call=max(1, CALL_BYTES // row_bytes),
    )
