"""The shared tier: a store that several engines share, and each engine's link to it.

What to ask, send and refuse is decided by the classes that decide it in the plugin (`tier.lookups`,
`tier.transfers`); when vLLM's tiering manager (0.32, `v1/kv_offload/tiering/manager.py`) asks them, and what
it does with the answers, is modelled here. Calls on the store take time: what is stored can be found when
the call that stores it ends, and an answer is seen by the first step that starts after it.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from anbar.core.cost import TierCost
from anbar.core.errors import ConfigError
from anbar.core.events import Tier
from anbar.sim.engine.events import EngineEvent, TierRemoved, TierStored
from anbar.sim.engine.host import Found, HostTier
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.tier_work import Asked, Move, TierWork
from anbar.tier.breaker import Breaker, Ticket, judge
from anbar.tier.lookups import Answer, Lookups, Question
from anbar.tier.store import Outcome, Scope
from anbar.tier.tally import Series, Tally
from anbar.tier.transfers import CALL_BYTES, Call, Direction, Finished, Job, TransferConfig, Transfers


@dataclass(frozen=True, slots=True)
class SharedCost:
    """Seconds of calls on a store. Each engine has `threads` for each of lookups, loads and stores."""

    lookup_s: float = 0.0
    """Per call of up to 256 keys."""
    load: TierCost = field(default_factory=lambda: TierCost(0.0, math.inf))
    store: TierCost = field(default_factory=lambda: TierCost(0.0, math.inf))
    threads: int = 2
    timeout_s: float = 0.5
    """How long a lookup may delay a request that does not say."""


AnyCall = Question | Call


@dataclass(frozen=True, slots=True)
class _Result:
    """What came of a call; `outcomes` and `ticket` are None when the breaker refused it."""

    call: AnyCall
    outcomes: list[Outcome] | None
    evicted: list[bytes]
    ticket: Ticket | None
    seconds: float


_Due = tuple[float, int, AnyCall, Ticket, float, list[_Result]]
"""When a call ends, its number, the seconds that it takes, and where its result goes."""


class Chunks(Protocol):
    """Which chunks a store holds, by scope and key; the longest unused go when it is full.

    Calls may raise OSError where the store is more than a table of this process: such a call failed.
    """

    def use(self, scope: Scope, key: bytes) -> bool:
        """Whether a chunk is there; if so, it becomes the most recently used."""
        ...

    def add(self, scope: Scope, key: bytes) -> Sequence[bytes]:
        """Put a chunk there; the keys of those that had to go for it."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...


class ChunkTable:
    """Chunks in this process."""

    def __init__(self, num_chunks: int) -> None:
        """Raises ConfigError when nothing fits."""
        if num_chunks < 1:
            raise ConfigError(f"num_chunks is {num_chunks}: the shared tier must hold at least one chunk")
        self._num_chunks = num_chunks
        self._chunks: OrderedDict[tuple[Scope, bytes], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def use(self, scope: Scope, key: bytes) -> bool:
        entry = (scope, key)
        if entry not in self._chunks:
            return False
        self._chunks.move_to_end(entry)
        return True

    def add(self, scope: Scope, key: bytes) -> Sequence[bytes]:
        if self.use(scope, key):
            return ()
        self._chunks[scope, key] = None
        if len(self._chunks) <= self._num_chunks:
            return ()
        (_, gone), _ = self._chunks.popitem(last=False)
        return (gone,)


class SharedTier:
    """The store of the engines of a process, or of more than one: that is up to `chunks`."""

    def __init__(
        self, chunks: Chunks | int, cost: SharedCost | None = None, capacity_bytes: int | None = None
    ) -> None:
        """`chunks` a number: so many chunks in this process. `capacity_bytes` is what the store was told it
        may hold. Raises ConfigError when nothing fits."""
        self.cost = cost or SharedCost()
        self.capacity_bytes = capacity_bytes
        self.chunks = ChunkTable(chunks) if isinstance(chunks, int) else chunks
        self._due: list[_Due] = []
        self._number = 0

    def submit(
        self, call: AnyCall, ends_s: float, seconds: float, ticket: Ticket, results: list[_Result]
    ) -> None:
        """A call of `seconds` that takes effect at `ends_s`; what came of it is added to `results` then."""
        self._number += 1
        heapq.heappush(self._due, (ends_s, self._number, call, ticket, seconds, results))

    def advance(self, now_s: float) -> None:
        """Let the calls take effect that have ended by now."""
        while self._due and self._due[0][0] <= now_s:
            self._end(heapq.heappop(self._due))

    def finish(self, results: list[_Result], now_s: float) -> None:
        """Like `advance`; and let all calls whose results go there take effect, too, in their order."""
        self.advance(now_s)
        theirs = [due for due in self._due if due[-1] is not results]
        ours = [due for due in self._due if due[-1] is results]
        heapq.heapify(theirs)
        self._due = theirs
        for due in sorted(ours):
            self._end(due)

    def _end(self, due: _Due) -> None:
        _, _, call, ticket, seconds, results = due
        evicted: list[bytes] = []
        outcomes = [self._perform(call, key, evicted) for key in call.keys]
        results.append(_Result(call, outcomes, evicted, ticket, seconds))

    def _perform(self, call: AnyCall, key: bytes, evicted: list[bytes]) -> Outcome:
        try:
            if isinstance(call, Question) or call.direction is Direction.LOAD:
                return Outcome.HIT if self.chunks.use(call.scope, key) else Outcome.MISS
            evicted += self.chunks.add(call.scope, key)
        except OSError:
            return Outcome.ERROR
        return Outcome.HIT


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


class SharedLink:
    """One engine's side: fetches chunks into its host tier, and sends those that came into it."""

    def __init__(self, tier: SharedTier, host: HostTier, chunk_bytes: int) -> None:
        self._tier = tier
        self._host = host
        self._chunk_bytes = max(1, chunk_bytes)
        self._now = SetClock()
        self.breaker, self.tally = Breaker(self._now), Tally()
        self._moves: list[Move] = []
        self._lookups = Lookups(self._now, self.breaker, self.tally, timeout_s=tier.cost.timeout_s)
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
        self._results: list[_Result] = []
        self._lanes: dict[Direction | None, list[float]] = {
            lane: [0.0] * tier.cost.threads for lane in (None, *Direction)
        }
        """When each thread is free, by what it does; None: lookups."""
        self._ends_s: list[float] = []
        """Of calls whose results have not been seen, a heap."""
        self._wanted: dict[str, tuple[EngineRequest, list[bytes]]] = {}
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
    def has_events(self) -> bool:
        """Whether `take_events` would give any."""
        return bool(self._events)

    @property
    def next_s(self) -> float:
        """When the next call ends; infinite when none is under way."""
        return self._ends_s[0] if self._ends_s else math.inf

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
        name = cast(bytes, key)  # any hashable: the policies only compare keys
        answer = self._lookups.answer(request.id, name, end_token)
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
        self._wanted.setdefault(request.id, (request, []))[1].append(name)
        return Found.COMING

    def store(self, request: EngineRequest, keys: Sequence[BlockKey]) -> None:
        """Chunks of a request are complete in the host tier: send them on."""
        self._host.pin(keys)
        job = self._job(request, Direction.STORE, cast(Sequence[bytes], keys))
        for call in self._transfers.store(job, wanted=request.wish.may_store):
            self._submit(call)

    def poll(self) -> None:
        """Apply what has ended by now; once in a step."""
        if self._has_polled:
            return
        self._has_polled = True
        self._tier.advance(self._now.value_s)
        while self._ends_s and self._ends_s[0] <= self._now.value_s:
            heapq.heappop(self._ends_s)
        results = self._results.copy()
        self._results.clear()
        self._is_news = self._is_news or bool(results)
        for result in results:
            self._settle(result)
        for finished in self._transfers.take_finished():
            self._report(finished)

    def end_plan(self) -> None:
        """All lookups of this step have been made: fetch what they found, and ask what they did not know."""
        self.poll()
        self._has_polled = False
        wanted, self._wanted = self._wanted, {}
        for request, keys in wanted.values():
            job = self._job(request, Direction.LOAD, keys)
            self._lookups.loading(request.id, keys)
            for call in self._transfers.load(job):
                self._submit(call)
        for question in self._lookups.take_questions():
            self._submit(question)

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
        return len(self._tier.chunks) * self._chunk_bytes

    @property
    def capacity_bytes(self) -> int | None:
        """What the store may hold, if it was told."""
        return self._tier.capacity_bytes

    def check_integrity(self) -> None:
        """AssertionError unless the host tier has all chunks that are on their way."""
        assert len(self._jobs) >= self._transfers.num_running
        for job in self._jobs.values():
            wanted = Found.HIT if job.direction is Direction.STORE else Found.COMING
            assert all(self._host.lookup(key) is wanted for key in job.keys), (
                "a chunk that is moved is not there"
            )

    def _job(self, request: EngineRequest, direction: Direction, keys: Sequence[bytes]) -> Job:
        self._num_jobs += 1
        self._jobs[self._num_jobs] = _Open(direction, tuple(keys))
        rows = tuple(range(len(keys)))
        return Job(self._num_jobs, request.id, request.wish.scope, tuple(keys), rows)

    def _submit(self, call: AnyCall) -> None:
        cost, now_s = self._tier.cost, self._now.value_s
        ticket = self.breaker.admit()
        if ticket is None:
            self._results.append(_Result(call, None, [], None, 0.0))
            return
        if isinstance(call, Question):
            lane, seconds = self._lanes[None], cost.lookup_s
        else:
            lane = self._lanes[call.direction]
            tier_cost = cost.load if call.direction is Direction.LOAD else cost.store
            seconds = tier_cost.seconds(len(call.keys) * self._chunk_bytes)
        ends_s = max(now_s, heapq.heappop(lane)) + seconds
        heapq.heappush(lane, ends_s)
        heapq.heappush(self._ends_s, ends_s)
        self._tier.submit(call, ends_s, seconds, ticket, self._results)

    def _settle(self, result: _Result) -> None:
        if result.ticket is not None and result.outcomes is not None:
            self.breaker.record(result.ticket, judge(result.outcomes))
        operation = "lookup" if isinstance(result.call, Question) else result.call.direction.value
        self.tally.add(Series.SECONDS, operation, result.seconds)
        if isinstance(result.call, Question):
            self._lookups.settle(result.call, result.outcomes)
        else:
            self._transfers.settle(result.call, result.outcomes)
        self._announce(result.evicted, present=False)
        for change in self._transfers.take_changes():
            self._announce(change.keys, present=change.present)

    def _report(self, finished: Finished) -> None:
        job = self._jobs.pop(finished.job)
        num_moved = len(job.keys if finished.ok else finished.good)
        self._moves.append(Move(job.direction, finished.ok, num_moved, finished.seconds))
        if job.direction is Direction.LOAD:
            self._lookups.give_up(finished.request, finished.failed)
            self._host.written(finished.good)
            self._host.not_written(finished.failed)
        else:
            self._lookups.stored(finished.request, finished.good)
            self._host.unpin(job.keys)

    def _announce(self, keys: Collection[bytes], *, present: bool) -> None:
        if not present and keys:
            self._events.append(TierRemoved(tuple(keys), Tier.SHARED))
        elif present:
            self._events += [TierStored((key,), Tier.SHARED) for key in keys]
