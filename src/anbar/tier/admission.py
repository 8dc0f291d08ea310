"""Whether loading a run of chunks from the store pays, and what came of it.

    load     = latency + (bytes queued before + bytes of the run) / bandwidth
    compute  = a n + b ((m + n)^2 - m^2)             for n tokens after the first m

A run is loaded when its load is predicted to take no longer than computing it. Both are learned in the
engine: the load from finished loads (`tier.load_speed`), the prefill from the engine's steps
(`tier.step_times`), unless the request says what its prefill costs. What is not known is loaded: only loads
teach what loads cost. Of the runs that do not pay one in `EXPLORE_EVERY` is loaded, so that a store that
became faster is noticed.

The more is to compute, the more loading pays: the difference `compute - load` is convex in n and not positive
at n = 0, so a run that pays still does when it is longer.

Everything is told both ways, so that the policy can be audited: what was predicted of computing and of
loading, by decision, and what loads gained or lost by what they were measured to take.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from anbar.core.cost import PrefillCost, PrefillWork, TierCost
from anbar.tier.load_speed import LoadSpeed
from anbar.tier.step_times import StepTimes
from anbar.tier.tally import LOAD_BANDWIDTH, LOAD_LATENCY, PREFILL, PREFILL2, Series, Tally
from anbar.tier.transfers import Finished

EXPLORE_EVERY = 50
"""Of so many runs that do not pay one is loaded all the same."""


class Decision(Enum):
    """Why a run is loaded, or is not. `value` is the metric's label."""

    LOAD = "load"
    """Loading takes no longer."""
    SKIP = "skip"
    """Computing is sooner."""
    EXPLORE = "explore"
    """Computing is predicted to be sooner, and this one finds out."""
    UNKNOWN = "unknown"
    """Not known what one of both takes: loaded."""
    UNWEIGHED = "unweighed"
    """Loaded because the request says that another engine has computed it, or because its layers' caches are
    no plain prefix."""

    @property
    def loads(self) -> bool:
        return self is not Decision.SKIP


@dataclass(frozen=True, slots=True)
class Run:
    """Chunks that the store holds: tokens `start`..`end` of a prompt, in `num_chunks` chunks. Fewer than
    those tokens make where some lie in host RAM."""

    start: int
    end: int
    num_chunks: int


def compute_s(run: Run, prefill: PrefillCost) -> float:
    """What computing a run takes longer than not computing it: no overhead, since the rest of the prompt is
    computed in any case."""
    return prefill.work_seconds(PrefillWork(run.end - run.start, run.end**2 - run.start**2))


def load_s(run: Run, cost: TierCost, chunk_bytes: int, queued_bytes: int = 0) -> float:
    """What loading a run takes, behind bytes that are queued already."""
    return cost.seconds(queued_bytes + run.num_chunks * chunk_bytes)


def pays(run: Run, prefill: PrefillCost, cost: TierCost, chunk_bytes: int, queued_bytes: int = 0) -> bool:
    """Whether loading takes no longer than computing."""
    return load_s(run, cost, chunk_bytes, queued_bytes) <= compute_s(run, prefill)


def cost_gauges(admission: "Admission") -> dict[str, float]:
    """What is known of loading and of computing, by the metric's name."""
    gauges: dict[str, float] = {}
    if admission.speed.is_known:
        cost = admission.speed.cost
        gauges |= {LOAD_LATENCY: cost.latency_s, LOAD_BANDWIDTH: cost.bytes_per_s}
    prefill = admission.steps.cost
    if prefill is not None:
        gauges |= {PREFILL: prefill.a_s_per_token, PREFILL2: prefill.b_s_per_token2}
    return gauges


@dataclass(slots=True)
class _Loading:
    """A load on its way, and what was expected of it."""

    decision: Decision
    num_rows: int
    queued_rows: int
    compute_s: float | None
    computing_s: float
    """`StepTimes.computing_s` when it began."""
    longest_s: float = 0.0
    """Of its calls on the store."""


class Admission:
    """Owned by the scheduler's thread. `queued_rows`: rows that unfinished loads wait for."""

    def __init__(
        self, speed: LoadSpeed, steps: StepTimes, tally: Tally, queued_rows: Callable[[], int], row_bytes: int
    ) -> None:
        self.speed = speed
        self.steps = steps
        self._tally = tally
        self._queued_rows = queued_rows
        self._row_bytes = row_bytes
        self._promised_rows = 0
        """Of runs that were admitted in this step and are no loads yet."""
        self._num_skipped = 0
        self._loading: dict[int, _Loading] = {}

    def decide(self, run: Run, given: PrefillCost | None, *, is_whole: bool) -> Decision | None:
        """Load or skip a run. None: not `is_whole`, more of it may be there, and as far as it is known it
        does not pay. `given`: what the request says of its prefill."""
        prefill = given or self.steps.cost
        if prefill is None or not self.speed.is_known:
            return self._admit(run, Decision.UNKNOWN)
        queued = (self._queued_rows() + self._promised_rows) * self._row_bytes
        if pays(run, prefill, self.speed.cost, self._row_bytes, queued):
            return self._admit(run, Decision.LOAD)
        if not is_whole:
            return None
        self._num_skipped += 1
        if self._num_skipped % EXPLORE_EVERY == 0:
            return self._admit(run, Decision.EXPLORE)
        self._tally.add(Series.DECISIONS, Decision.SKIP.value)
        self._predicted(
            Decision.SKIP,
            compute_s(run, prefill),
            load_s(run, self.speed.cost, self._row_bytes, queued),
        )
        return Decision.SKIP

    def step_ended(self) -> None:
        """What was admitted has been submitted, or never will be."""
        self._promised_rows = 0

    def started(self, job: int, decision: Decision, run: Run, given: PrefillCost | None = None) -> None:
        """A load begins; call before its rows count as queued."""
        prefill, queued = given or self.steps.cost, self._queued_rows()
        predicted_s = None
        if prefill is not None:
            predicted_s = compute_s(run, prefill)
            cost_s = load_s(run, self.speed.cost, self._row_bytes, queued * self._row_bytes)
            self._predicted(decision, predicted_s, cost_s)
        self._loading[job] = _Loading(decision, run.num_chunks, queued, predicted_s, self.steps.computing_s)

    def called(self, job: int, seconds: float) -> None:
        """A call of a load has ended after so many seconds."""
        loading = self._loading.get(job)
        if loading is not None:
            loading.longest_s = max(loading.longest_s, seconds)

    def ended(self, finished: Finished) -> None:
        """A load has ended. Time in which the engine computed other prompts is no part of what it took: who
        computes shares the steps with those, too."""
        loading = self._loading.pop(finished.job, None)
        if loading is None:
            return
        hidden_s = self.steps.computing_s - loading.computing_s
        took_s = max(finished.seconds - hidden_s, loading.longest_s)
        num_good = len(finished.good)
        if 2 * num_good >= loading.num_rows:
            self.speed.observe((loading.queued_rows + num_good) * self._row_bytes, took_s)
        if loading.compute_s is None:
            return
        gained_s = loading.compute_s * num_good / max(1, loading.num_rows) - took_s
        series = Series.SECONDS_SAVED if gained_s > 0 else Series.SECONDS_FORGONE
        self._tally.add(series, loading.decision.value, abs(gained_s), scope=finished.scope)

    def saves_s(self, work: PrefillWork, num_chunks: int, given: PrefillCost | None) -> float:
        """What loading so many chunks would have saved of computing `work`, with nothing queued; 0.0 where it
        would not have paid, or one of both is not known."""
        prefill = given or self.steps.cost
        if prefill is None or not self.speed.is_known:
            return 0.0
        return max(0.0, prefill.work_seconds(work) - self.speed.cost.seconds(num_chunks * self._row_bytes))

    def _admit(self, run: Run, decision: Decision) -> Decision:
        self._promised_rows += run.num_chunks
        self._tally.add(Series.DECISIONS, decision.value)
        return decision

    def _predicted(self, decision: Decision, computing_s: float, loading_s: float) -> None:
        self._tally.add(Series.COMPUTE_SECONDS, decision.value, computing_s)
        self._tally.add(Series.LOAD_SECONDS, decision.value, loading_s)
