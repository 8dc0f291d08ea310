"""The shared tier: a store that several engines share, and each engine's link to it.

What to ask, load, store and refuse is decided by the classes that decide it in the plugin (`tier.lookups`,
`tier.admission`, `tier.store_gate`, `tier.transfers`); when vLLM's tiering manager (0.32,
`v1/kv_offload/tiering/manager.py`) asks them, and what it does with the answers, is modelled here. Calls on
the store take time: what is stored can be found when the call that stores it ends, and an answer is seen by
the first step that starts after it.
"""

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anbar.core.events import Tier
from anbar.sim.engine.chunks import Chunks, ChunkTable
from anbar.sim.engine.events import EngineEvent, TierRemoved, TierStored
from anbar.sim.engine.host import Found, HostTier
from anbar.sim.engine.names import Names
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.store import (
    EVERY_PART,
    Asking,
    Node,
    Operation,
    PartState,
    SharedCost,
    StoreFault,
    StoreFaultKind,
    StorePart,
    StoreParts,
)
from anbar.sim.engine.tier_work import Asked, Move, TierWork
from anbar.tier.admission import Admission, Run
from anbar.tier.breaker import Breaker, Ticket, judge
from anbar.tier.kept_out import Shadow
from anbar.tier.load_speed import LoadSpeed
from anbar.tier.lookups import Answer, Lookups, Question
from anbar.tier.pressure import Pressure
from anbar.tier.reuse import ReuseSketch
from anbar.tier.step_times import StepTimes
from anbar.tier.store import Outcome, PartStats
from anbar.tier.store_gate import StoreGate
from anbar.tier.tally import Series, Tally
from anbar.tier.transfers import CALL_BYTES, Call, Direction, Finished, Job, TransferConfig, Transfers
from anbar.tier.wish import Storing

AnyCall = Question | Call


@dataclass(slots=True)  # not frozen: see `step.Piece`
class _Result:
    """What came of a call; `outcomes` and `ticket` are None when the breaker refused it."""

    call: AnyCall
    outcomes: list[Outcome] | None
    evicted: list[bytes]
    ticket: Ticket | None
    seconds: float
    ended_s: float
    """0.0 when it was refused: at once."""


@dataclass(slots=True)  # not frozen: see `step.Piece`
class Sent:
    """A call under way."""

    call: AnyCall
    asking: Asking
    seconds: float
    ends_s: float
    ticket: Ticket
    results: list[_Result]
    """Where what came of it goes."""


class SharedTier:
    """The store of the engines of a process, or of more than one: that is up to its chunks."""

    def __init__(
        self,
        store: Node | Chunks | int,
        cost: SharedCost | None = None,
        capacity_bytes: int | None = None,
        *,
        weighs_loads: bool = True,
    ) -> None:
        """`store` a number: so many chunks in this process. `cost`: of a store that is made of others, what
        holds for the whole: threads and deadlines. `capacity_bytes` is what the store was told it may hold.
        `weighs_loads`: engines load only what is sooner loaded than computed; else what they find. Raises
        ConfigError when nothing fits."""
        self.cost = cost or SharedCost()
        self.capacity_bytes = capacity_bytes
        self.weighs_loads = weighs_loads
        self.names = Names()
        self.faults: dict[str, StoreFault] = {}
        """By the part's id; `EVERY_PART`: the whole store. May be changed at any time."""
        if isinstance(store, StorePart | StoreParts):
            self.store: Node = store
        else:
            chunks = ChunkTable(store) if isinstance(store, int) else store
            self.store = StorePart("", chunks, self.cost)
        self._due: list[tuple[float, int, Sent]] = []
        self._number = 0

    def begin(self, call: AnyCall, chunk_bytes: int, states: Mapping[str, PartState]) -> tuple[Asking, float]:
        """A call begins: what it is, and how long it will take."""
        operation = Operation.LOOKUP if isinstance(call, Question) else Operation(call.direction.value)
        asking = Asking(operation, call.scope, chunk_bytes, dict(self.faults), states)
        return asking, self.store.begin(asking, call.keys, self.cost.deadline(operation))

    def submit(self, sent: Sent) -> None:
        """What began takes effect when it ends, and is answered then."""
        self._number += 1
        heapq.heappush(self._due, (sent.ends_s, self._number, sent))

    def advance(self, now_s: float) -> None:
        """Let the calls take effect that have ended by now."""
        while self._due and self._due[0][0] <= now_s:
            ends_s, _, sent = heapq.heappop(self._due)
            self._end(sent, ends_s)

    def finish(self, results: list[_Result], now_s: float) -> None:
        """Like `advance`; and let all calls whose results go there take effect, too, in their order."""
        self.advance(now_s)
        theirs = [due for due in self._due if due[-1].results is not results]
        ours = [due for due in self._due if due[-1].results is results]
        heapq.heapify(theirs)
        self._due = theirs
        for _, _, sent in sorted(ours, key=lambda due: due[:2]):
            self._end(sent, now_s)

    def _end(self, sent: Sent, ended_s: float) -> None:
        asking, call = sent.asking, sent.call
        asking.takes_effect = True
        reply = self.store.ask(asking, call.keys, self.cost.deadline(asking.operation))
        gone = asking.evicted
        if self.store.parts():  # gone when no part has it
            gone = [key for key in gone if not self.store.has(call.scope, key)]
        result = _Result(call, reply.outcomes, gone, sent.ticket, sent.seconds, ended_s)
        sent.results.append(result)


class SetClock:
    """A clock that is told what time it is."""

    def __init__(self) -> None:
        self.value_s = 0.0

    def now_s(self) -> float:
        return self.value_s


@dataclass(frozen=True, slots=True)
class _Open:
    """A job that has not been reported to the host tier."""

    direction: Direction
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A chunk to fetch, and the token of the prompt at which it ends."""

    key: bytes
    end_token: int


class SharedLink:
    """One engine's side: fetches chunks into its host tier, and sends those that came into it."""

    def __init__(self, tier: SharedTier, host: HostTier, chunk_bytes: int, chunk_tokens: int) -> None:
        self._tier = tier
        self._host = host
        self._chunk_bytes = max(1, chunk_bytes)
        self._chunk_tokens = chunk_tokens
        self._now = SetClock()
        self.breaker, self.tally = Breaker(self._now), Tally()
        self._moves: list[Move] = []
        self._transfers = Transfers(
            self._now,
            self.breaker,
            self.tally,
            TransferConfig(
                row_bytes=self._chunk_bytes,
                max_store_rows=max(1, host.num_chunks // 2),
                max_load_rows=max(1, host.num_chunks // 2),
                rows_per_call=max(1, CALL_BYTES // self._chunk_bytes),
            ),
        )
        self.steps = StepTimes(self._now)
        """To be told of each step of the engine."""
        self.admission = Admission(
            LoadSpeed(self._now),
            self.steps,
            self.tally,
            lambda: self._transfers.pinned(Direction.LOAD),
            self._chunk_bytes,
        )
        self._lookups = Lookups(
            self._now,
            self.breaker,
            self.tally,
            timeout_s=tier.cost.timeout_s,
            admission=self.admission if tier.weighs_loads else None,
        )
        self.gate = StoreGate(Pressure(self._now), ReuseSketch(), self.tally)
        chunk_tokens = self._chunk_tokens
        self._lookups.shadow = Shadow(self.gate.kept_out, self.admission, self.tally, lambda _: chunk_tokens)
        self._parts = {part.id: PartState(Breaker(self._now)) for part in tier.store.parts()}
        self._num_evicted = 0
        self._results: list[_Result] = []
        self._lanes: dict[Direction | None, list[float]] = {
            lane: [0.0] * tier.cost.threads for lane in (None, *Direction)
        }
        """When each thread is free, by what it does; None: lookups."""
        self._ends_s: list[float] = []
        """Of calls whose results have not been seen, a heap."""
        self._wanted: dict[str, tuple[EngineRequest, list[_Wanted]]] = {}
        """Chunks to fetch, by request, when the step's lookups are over."""
        self._jobs: dict[int, _Open] = {}
        self._num_jobs = 0
        self._has_polled = False
        self._is_news = False
        """Results have come since the time was told, perhaps too late for this step's lookups."""
        self._events: list[EngineEvent] = []

    @property
    def has_work(self) -> bool:
        """Whether something is under way that only further steps can finish."""
        return bool(self._jobs) or self.has_events

    @property
    def is_awaited(self) -> bool:
        """Whether nothing will change before `next_s`: a call is under way, and what came of those before was
        known to the plan."""
        all_run = len(self._jobs) == self._transfers.num_running and not self._results
        return bool(self._ends_s) and all_run and not self._is_news

    @property
    def is_only_storing(self) -> bool:
        """Whether nothing but stores is under way, and all may be looked at later, by `look` for each step
        that has begun since. Not so where chunks make room for others, since what two engines announce of
        that has an order, or where a store has parts, whose breakers look at this engine's clock."""
        tier = self._tier
        if tier.capacity_bytes is not None or self._parts:
            return False
        return all(job.direction is Direction.STORE for job in self._jobs.values())

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would give any."""
        return bool(self._events)

    @property
    def next_s(self) -> float:
        """When the next call ends; infinite when none is under way."""
        return self._ends_s[0] if self._ends_s else math.inf

    @property
    def last_s(self) -> float:
        """When the last call ends; minus infinity when none is under way."""
        return max(self._ends_s, default=-math.inf)

    def set_time(self, now_s: float) -> None:
        """It is `now_s`."""
        self._now.value_s = max(self._now.value_s, now_s)
        self._is_news = False

    def open(self, request: EngineRequest) -> None:
        """A request came."""
        self._lookups.open(request.id, request.wish)

    def close(self, request: EngineRequest) -> None:
        """A request ended, and its stores are over."""
        self._lookups.close(request.id)

    def lookup(
        self,
        request: EngineRequest,
        key: BlockKey,
        end_token: int,
        used: set[BlockKey],
        work: TierWork,
        asked: Asked | None,
    ) -> Found:
        """Where a chunk is that the host tier does not have, the last one of the first `end_token` tokens; if
        the store has it, it is fetched. What was found is noted in `work`; `asked` None: not of this request
        any more."""
        name = self._tier.names.name(key)
        answer = self._lookups.answer(request.id, name, end_token, self._chunk_tokens)
        if answer is Answer.RETRY:
            if asked is not None:
                asked.setdefault(key, self._now.value_s)
            return Found.UNKNOWN
        if asked is not None:
            work.shared.note(asked, key, hit=answer is Answer.HIT, now_s=self._now.value_s)
        if answer is Answer.MISS:
            return Found.MISS
        if self._host.reserve([key], used) is None:
            work.num_unplaced += 1
            return Found.MISS
        self._wanted.setdefault(request.id, (request, []))[1].append(_Wanted(name, end_token))
        return Found.COMING

    def store(self, request: EngineRequest, keys: Sequence[BlockKey], ends: Sequence[int]) -> None:
        """Chunks of a request, which end at these tokens, are complete in the host tier: send them on."""
        self._host.pin(keys)
        job = self._job(request, Direction.STORE, [self._tier.names.name(key) for key in keys])
        wish = request.wish
        kept: Sequence[int] = ()
        if wish.may_store:
            kept = self.gate.admit(wish.scope, job.keys, ends, always=wish.storing is Storing.ALWAYS)
        for call in self._transfers.store(job, wanted=wish.may_store, kept=kept):
            self._submit(call)
        self.gate.pressure.queued(self._transfers.store_share)

    def poll(self) -> None:
        """Apply what has ended by now; once in a step."""
        if self._has_polled:
            return
        self._has_polled = True
        self._tier.advance(self._now.value_s)
        while self._ends_s and self._ends_s[0] <= self._now.value_s:
            heapq.heappop(self._ends_s)
        now_s, count = self._now.value_s, len(self._results)
        if count and self._results[-1].ended_s > now_s:  # looked at later than it was (`look`)
            count = next(i for i, result in enumerate(self._results) if result.ended_s > now_s)
        results = self._results[:count]
        del self._results[:count]
        self._is_news = self._is_news or bool(results)
        for result in results:
            self._settle(result)
        for finished in self._transfers.take_finished():
            self._report(finished)

    def end_plan(self, preempted: Sequence[EngineRequest]) -> None:
        """All lookups of this step have been made: fetch what they found, and ask what they did not know."""
        self.poll()
        self._has_polled = False
        wanted, self._wanted = self._wanted, {}
        for request, chunks in wanted.values():
            self._fetch(request, chunks)
        self.admission.step_ended()
        for request in preempted:
            self._lookups.reconsider(request.id)
        for question in self._lookups.take_questions():
            self._submit(question)

    def look(self, at_s: float) -> None:
        """At `at_s` a step has begun that asked for nothing. It may be later now."""
        self.set_time(at_s)
        self.end_plan(())

    def clear(self) -> None:
        """The host tier is about to be emptied: wait for what is on its way (its last call's end, here, does
        not take the engine's time), and fetch nothing that was found."""
        self._tier.finish(self._results, self._now.value_s)
        self._ends_s.clear()
        self._has_polled = False
        self.poll()
        self._has_polled = False
        self._wanted.clear()

    def take_events(self) -> list[EngineEvent]:
        """What became known of the store's content since the last call."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def take_moves(self) -> list[Move]:
        """What ended since the last call."""
        moves, self._moves = self._moves, []
        return moves

    def under_way(self, direction: Direction) -> tuple[int, int]:
        """Moves that have not been reported, and their chunks."""
        jobs = [job for job in self._jobs.values() if job.direction is direction]
        return len(jobs), sum(len(job.keys) for job in jobs)

    @property
    def used_bytes(self) -> int:
        """What the store holds. May raise OSError, as `Chunks` may."""
        return self._tier.store.num_chunks * self._chunk_bytes

    @property
    def capacity_bytes(self) -> int | None:
        """What the store may hold, if it was told."""
        return self._tier.capacity_bytes

    @property
    def is_writable(self) -> bool:
        """Whether the store takes anything."""
        fault = self._tier.faults.get(EVERY_PART)
        return fault is None or fault.kind is not StoreFaultKind.FULL

    def take_num_evicted(self) -> int:
        """Chunks that went for want of room since the last call, as far as this engine was told."""
        num, self._num_evicted = self._num_evicted, 0
        return num

    def part_stats(self) -> list[PartStats]:
        """Of the stores that the store is made of."""
        return [state.stats(part) for part, state in self._parts.items()]

    def check_integrity(self) -> None:
        """AssertionError unless the host tier has all chunks that are on their way."""
        assert len(self._jobs) >= self._transfers.num_running
        for job in self._jobs.values():
            wanted = Found.HIT if job.direction is Direction.STORE else Found.COMING
            assert all(self._host.lookup(self._key(name)) is wanted for name in job.keys), (
                "a chunk that is moved is not there"
            )

    def _job(self, request: EngineRequest, direction: Direction, keys: Sequence[bytes]) -> Job:
        self._num_jobs += 1
        self._jobs[self._num_jobs] = _Open(direction, tuple(keys))
        rows = tuple(range(len(keys)))
        return Job(self._num_jobs, request.id, request.wish.scope, tuple(keys), rows)

    def _fetch(self, request: EngineRequest, chunks: Sequence[_Wanted]) -> None:
        ends = [chunk.end_token for chunk in chunks]
        job = self._job(request, Direction.LOAD, [chunk.key for chunk in chunks])
        self._lookups.loading(request.id, job.keys)
        run = Run(min(ends) - self._chunk_tokens, max(ends), len(ends))
        decision = self._lookups.decision(request.id)
        self.admission.started(job.id, decision, run, request.wish.prefill)
        for call in self._transfers.load(job):
            self._submit(call)

    def _submit(self, call: AnyCall) -> None:
        ticket = self.breaker.admit()
        if ticket is None:
            self._results.append(_Result(call, None, [], None, 0.0, 0.0))
            return
        asking, seconds = self._tier.begin(call, self._chunk_bytes, self._parts)
        lane = self._lanes[None if isinstance(call, Question) else call.direction]
        ends_s = max(self._now.value_s, heapq.heappop(lane)) + seconds
        heapq.heappush(lane, ends_s)
        heapq.heappush(self._ends_s, ends_s)
        self._tier.submit(Sent(call, asking, seconds, ends_s, ticket, self._results))

    def _settle(self, result: _Result) -> None:
        if result.ticket is not None and result.outcomes is not None:
            self.breaker.record(result.ticket, judge(result.outcomes))
        operation = "lookup" if isinstance(result.call, Question) else result.call.direction.value
        self.tally.add(Series.SECONDS, operation, result.seconds)
        if isinstance(result.call, Question):
            self._lookups.settle(result.call, result.outcomes)
        else:
            if result.call.direction is Direction.LOAD:
                self.admission.called(result.call.job, result.seconds)
            self._transfers.settle(result.call, result.outcomes)
        if result.outcomes and Outcome.FULL in result.outcomes:
            self.gate.pressure.full()
        self._num_evicted += len(result.evicted)
        self._announce(result.evicted, present=False)
        for change in self._transfers.take_changes():
            self._announce(change.keys, present=change.present)

    def _report(self, finished: Finished) -> None:
        job = self._jobs.pop(finished.job)
        num_moved = len(job.keys if finished.ok else finished.good)
        self._moves.append(Move(job.direction, finished.ok, num_moved, finished.seconds))
        if job.direction is Direction.LOAD:
            self.admission.ended(finished)
            self._lookups.give_up(finished.request, finished.failed)
            self._host.written(map(self._key, finished.good))
            self._host.not_written(map(self._key, finished.failed))
        else:
            self._lookups.stored(finished.request, finished.good)
            self._host.unpin(map(self._key, job.keys))

    def _announce(self, names: Collection[bytes], *, present: bool) -> None:
        keys = [self._key(name) for name in names]
        if not present and keys:
            self._events.append(TierRemoved(tuple(keys), Tier.SHARED))
        elif present:
            self._events += [TierStored((key,), Tier.SHARED) for key in keys]

    def _key(self, name: bytes) -> BlockKey:
        return self._tier.names.key(name)
