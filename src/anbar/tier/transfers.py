"""Stores and loads on their way: what to send, what to refuse, what became of each.

The engine submits jobs and must be told the end of every one of them. A job's rows (places in host RAM) are
pinned until then, so the rows that may wait for a slow store are bounded: what is past the bound is
acknowledged without writing, or fails to load at once. Jobs are cut into calls of a bounded size, so that one
hung call loses little, and a breaker that opened in between refuses the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.core.clock import Clock
from anbar.tier.breaker import Breaker
from anbar.tier.store import Outcome, Scope
from anbar.tier.tally import Series, Tally

CALL_BYTES = 32 * 1024 * 1024
"""Bytes that one call on the store moves: enough to keep its threads busy, little to lose to one deadline."""


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Bounds; a row is one offloaded chunk of all workers, of `row_bytes`."""

    row_bytes: int
    max_store_rows: int
    """Rows that unfinished stores may pin; past it stores are skipped."""
    max_load_rows: int
    """Rows that unfinished loads may pin; past it loads fail."""
    rows_per_call: int
    """Rows moved by one call on the store."""


class Direction(Enum):
    """Which way bytes go."""

    LOAD = "load"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Job:
    """Rows to move for a request: `keys[i]` is, or will be, in row `rows[i]`. `saves_s[i]` are the seconds
    that it saves when it is read (see `tier.store.PutItem`); empty: not known."""

    id: int
    request: str
    scope: Scope
    keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    saves_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One call on the store; fields as in `Job`."""

    job: int
    direction: Direction
    scope: Scope
    keys: tuple[bytes, ...]
    rows: tuple[int, ...]
    saves_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a job. `good` are the keys that were moved; a skipped store has none and is a success."""

    job: int
    request: str
    direction: Direction
    ok: bool
    good: tuple[bytes, ...]
    failed: tuple[bytes, ...]
    seconds: float
    num_bytes: int
    scope: Scope = ""


@dataclass(frozen=True, slots=True)
class Change:
    """Keys that are now known to be, or not to be, in the store."""

    keys: tuple[bytes, ...]
    present: bool


@dataclass(slots=True)
class _Running:
    job: Job
    direction: Direction
    started_s: float
    calls_left: int = 0
    good: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)


_GONE = (Outcome.MISS, Outcome.CORRUPT, Outcome.NO_KEY)


class Transfers:
    """Owned by the scheduler's thread."""

    def __init__(self, clock: Clock, breaker: Breaker, tally: Tally, config: TransferConfig) -> None:
        self._clock = clock
        self._breaker = breaker
        self._tally = tally
        self._config = config
        self._running: dict[int, _Running] = {}
        self._storing: dict[Scope, set[bytes]] = {}
        """Keys that are being stored."""
        self._pinned = dict.fromkeys(Direction, 0)
        self._finished: list[Finished] = []
        self._changes: list[Change] = []

    @property
    def num_running(self) -> int:
        """Jobs with a call that has not been settled."""
        return len(self._running)

    def pinned(self, direction: Direction) -> int:
        """Rows of calls that have not been settled."""
        return self._pinned[direction]

    @property
    def store_share(self) -> float:
        """Of the rows that unfinished stores may pin, how much they do."""
        return self._pinned[Direction.STORE] / self._config.max_store_rows

    def store(self, job: Job, *, wanted: bool, kept: Sequence[int] | None = None) -> list[Call]:
        """Calls to make for a store, prefix first; keys that are refused are acknowledged without writing.
        `kept`: the places of the keys that are worth it; None: all."""
        if not wanted:
            self._tally.add(Series.STORES, "unwanted", len(job.keys), scope=job.scope)
            return self._start(job, Direction.STORE, [])
        offered: Sequence[int] = range(len(job.keys)) if kept is None else kept
        self._tally.add(Series.STORES, "filtered", len(job.keys) - len(offered), scope=job.scope)
        storing = self._storing.setdefault(job.scope, set())
        fresh = offered
        if not storing.isdisjoint(job.keys):
            fresh = [i for i in offered if job.keys[i] not in storing]
            self._tally.add(Series.STORES, "merged", len(offered) - len(fresh), scope=job.scope)
        admitted, refusal = self._admit(Direction.STORE, fresh, self._config.max_store_rows)
        self._tally.add(Series.STORES, refusal, len(fresh) - len(admitted), scope=job.scope)
        calls = self._cut(job, Direction.STORE, admitted)
        for call in calls:
            storing.update(call.keys)
        if not storing:
            del self._storing[job.scope]
        return self._start(job, Direction.STORE, calls)

    def load(self, job: Job) -> list[Call]:
        """Calls to make for a load, prefix first; keys that are refused fail at once."""
        admitted, refusal = self._admit(Direction.LOAD, range(len(job.keys)), self._config.max_load_rows)
        refused = job.keys[len(admitted) :]
        self._tally.add(Series.LOADS, refusal, len(refused), scope=job.scope)
        return self._start(job, Direction.LOAD, self._cut(job, Direction.LOAD, admitted), failed=refused)

    def settle(self, call: Call, outcomes: Sequence[Outcome] | None) -> None:
        """What became of a call, one outcome per key; None when the breaker refused it."""
        running = self._running[call.job]
        is_load = call.direction is Direction.LOAD
        results: Sequence[Outcome | None] = outcomes if outcomes is not None else (None,) * len(call.keys)
        good, failed, gone = _sorted(call.keys, results)
        self._tally.outcomes(Series.LOADS if is_load else Series.STORES, results, call.scope)
        num_bytes = len(good) * self._config.row_bytes
        self._tally.add(Series.BYTES, call.direction.value, num_bytes, scope=call.scope)
        if is_load:
            self._change(gone, present=False)
        else:
            self._stored(call)
        self._change(good, present=True)
        running.good += good
        running.failed += failed
        running.calls_left -= 1
        self._pinned[call.direction] -= len(call.rows)
        if running.calls_left == 0:
            del self._running[call.job]
            self._finish(running)

    def take_finished(self) -> list[Finished]:
        """Jobs that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def take_changes(self) -> list[Change]:
        """What became known of the store's content since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _stored(self, call: Call) -> None:
        storing = self._storing[call.scope]
        storing.difference_update(call.keys)
        if not storing:
            del self._storing[call.scope]

    def _admit(
        self, direction: Direction, indices: Sequence[int], max_rows: int
    ) -> tuple[Sequence[int], str]:
        """The leading indices that may be moved, and why the others may not."""
        if self._breaker.is_open():
            return [], "refused"
        return indices[: max(0, max_rows - self._pinned[direction])], "queue_full"

    def _cut(self, job: Job, direction: Direction, indices: Sequence[int]) -> list[Call]:
        keys, rows, saves_s = job.keys, job.rows, job.saves_s
        if len(indices) < len(keys):
            keys, rows = tuple([keys[i] for i in indices]), tuple([rows[i] for i in indices])
            saves_s = tuple([saves_s[i] for i in indices]) if saves_s else ()
        step = self._config.rows_per_call
        return [
            Call(job.id, direction, job.scope, keys[i : i + step], rows[i : i + step], saves_s[i : i + step])
            for i in range(0, len(keys), step)
        ]

    def _start(
        self, job: Job, direction: Direction, calls: list[Call], failed: Sequence[bytes] = ()
    ) -> list[Call]:
        running = _Running(job, direction, self._clock.now_s(), len(calls), failed=list(failed))
        if calls:
            self._running[job.id] = running
            self._pinned[direction] += sum(len(call.rows) for call in calls)
        else:
            self._finish(running)
        return calls

    def _finish(self, running: _Running) -> None:
        self._finished.append(
            Finished(
                job=running.job.id,
                request=running.job.request,
                direction=running.direction,
                ok=not running.failed,
                good=tuple(running.good),
                failed=tuple(running.failed),
                seconds=self._clock.now_s() - running.started_s,
                num_bytes=len(running.good) * self._config.row_bytes,
                scope=running.job.scope,
            )
        )

    def _change(self, keys: Sequence[bytes], *, present: bool) -> None:
        if keys:
            self._changes.append(Change(tuple(keys), present))


def _sorted(
    keys: tuple[bytes, ...], results: Sequence[Outcome | None]
) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]:
    """The keys that were moved, those that were not, and of these those that are not there. Mostly all were
    moved."""
    if len(keys) == len(results) == results.count(Outcome.HIT):
        return keys, (), ()
    pairs = list(zip(keys, results, strict=True))
    return (
        [key for key, result in pairs if result is Outcome.HIT],
        [key for key, result in pairs if result is not Outcome.HIT],
        [key for key, result in pairs if result in _GONE],
    )
