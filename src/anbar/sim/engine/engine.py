"""One engine: told the time, it says what its next step does and when that ends.

    engine = Engine(shape, cost)
    engine.add(request)
    while (running := engine.start_step(now_s)) is not None:
        now_s = running.ends_s          # adds and aborts may come in between
        result = engine.finish_step()

It has no clock of its own: whoever drives it, on real time or on simulated time, says what time it is.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from anbar.core.errors import ConfigError
from anbar.core.ids import RequestId
from anbar.sim.engine.connector import Connector
from anbar.sim.engine.counters import Counters
from anbar.sim.engine.pool import BlockPool
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.scheduler import Loading, Scheduler
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.step import Step, StepResult

IDLE_STEP_S = 0.001
"""How long vLLM waits after a step that computed nothing while requests or transfers are unfinished
(`EngineCoreProc._process_engine_step`)."""

MAX_IDLE_S = 0.010
"""Longest time without a look at the shared tier: so much later may a lookup be given up."""


class Cost(Protocol):
    """What prices steps: `StepCost`, or one that an engine's driver can change."""

    def seconds(self, step: Step, shape: EngineShape) -> float:
        """How long `step` takes, all `num_repeats` of it; no step of a stride is shorter than one before."""
        ...


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where KV goes when it leaves the device."""

    host: HostShape | None = None
    shared: SharedTier | None = None
    """The same object in every engine that shares it; needs a host tier, through which everything goes."""

    def __post_init__(self) -> None:
        if self.shared is not None and self.host is None:
            raise ConfigError("a shared tier needs a host tier: chunks go through host RAM")


NO_TIERS = Tiers()


@dataclass(frozen=True, slots=True)
class Running:
    """A step under way."""

    step: Step
    ends_s: float


class Engine:
    """A model of one vLLM engine (0.32, one full-attention cache group, synchronous scheduling).

    `pool`, `scheduler` and `connector` are there to be looked at, not to be used.
    """

    def __init__(self, shape: EngineShape, cost: Cost, tiers: Tiers = NO_TIERS) -> None:
        """Raises ConfigError when the longest request would not fit on the device."""
        usable = (shape.num_blocks - 1) * shape.block_size
        if usable < shape.max_model_len:
            raise ConfigError(
                f"num_blocks is {shape.num_blocks}: the device holds {usable} tokens, less than "
                f"max_model_len, which is {shape.max_model_len}"
            )
        self.shape = shape
        self.counters = Counters()
        self._cost = cost
        self.pool = BlockPool(shape.num_blocks, prefix_caching=shape.prefix_caching)
        self.connector = (
            Connector(shape, tiers.host, self.counters, tiers.shared) if tiers.host is not None else None
        )
        self._link = self.connector.link if self.connector is not None else None
        self.scheduler = Scheduler(shape, self.pool, self.counters, self.connector)
        self._running: Running | None = None
        self._starts_s: list[float] = []
        """Of a stride while chunks are stored: when its steps began, but for the first."""

    @property
    def num_running(self) -> int:
        """Requests that are being served."""
        return self.scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that are queued, or whose blocks are being loaded."""
        return self.scheduler.num_waiting

    @property
    def num_deferred(self) -> int:
        """Of those that wait: for a tier, not for room."""
        return self.scheduler.num_deferred

    @property
    def usage(self) -> float:
        """Share of the device's blocks that requests hold, 0..1."""
        return self.pool.usage

    @property
    def loading(self) -> Loading:
        """Requests whose blocks are loaded, by how far that is."""
        return self.scheduler.loading

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestError when it cannot be served."""
        self.scheduler.add(request)

    def abort(self, request_id: RequestId) -> None:
        """The client is gone: end the request, if it is here, without a further output."""
        self.scheduler.abort(request_id)

    def start_step(
        self, now_s: float, until_s: float = math.inf, unseen_s: float = -math.inf
    ) -> Running | None:
        """Plan a step; None when there is nothing to do.

        Decode steps that are alike are taken in one stride, of which each ends by `until_s` (the next
        arrival, say), unless it is the first. Until `unseen_s` nobody looks at this engine or at its events:
        by then, they may be taken at once also while chunks are stored, and tell of that when all is over.
        """
        assert self._running is None, "the last step has not been finished"
        if not self.scheduler.has_work:
            self.scheduler.rest()
            return None
        self._tell_time(now_s)
        step = self.scheduler.schedule()
        seconds = self._cost.seconds(step, self.shape)
        count = self._repeats(step, seconds, until_s - now_s)
        if count == 1 and until_s > now_s and unseen_s > now_s:
            self._starts_s = self._while_storing(step, now_s, min(until_s, unseen_s))
            count += len(self._starts_s)
        if count > 1:
            self.scheduler.repeat(step, count)
            seconds = self._cost.seconds(step, self.shape)
        if not step.pieces:
            seconds = max(seconds, self._idle_s(step, now_s, until_s))
        self._running = Running(step, now_s + seconds)
        return self._running

    def finish_step(self) -> StepResult:
        """The step is over: what it did becomes visible."""
        assert self._running is not None, "no step is under way"
        running, self._running = self._running, None
        for at_s in self._starts_s:
            assert self._link is not None, "something is stored"
            self._link.look(at_s)
        self._starts_s = []
        self._tell_time(running.ends_s)
        return self.scheduler.finish(running.step)

    def clear_cache(self, *, preempts: bool = False, tiers: bool = False) -> bool:
        """Forget what the device caches; False, and nothing done, while a request holds blocks.

        With `preempts` those that run give their blocks back first (`reset_running_requests`), which is only
        possible between steps; those that load keep theirs. With `tiers` host RAM is emptied too
        (`reset_external`), also when the device is not.
        """
        assert self._running is None or not (preempts or tiers), "a step is under way"
        return self.scheduler.clear_cache(preempts=preempts, tiers=tiers)

    def check_integrity(self) -> None:
        """AssertionError unless every block, key and request is accounted for."""
        self.scheduler.check_integrity()

    def _tell_time(self, now_s: float) -> None:
        if self.connector is not None:
            self.connector.set_time(now_s)

    def _idle_s(self, step: Step, now_s: float, until_s: float) -> float:
        """How long a step without work takes. vLLM looks every millisecond whether the shared tier is ready;
        the looks that find nothing are taken at once."""
        link, scheduler = self._link, self.scheduler
        is_still = not step.preempted and scheduler.is_quiet and scheduler.has_work
        if link is None or not (is_still and link.is_awaited):
            return IDLE_STEP_S
        wait_s = min(link.next_s - now_s, until_s - now_s, MAX_IDLE_S)
        return max(1, math.ceil(wait_s / IDLE_STEP_S - 1e-6)) * IDLE_STEP_S

    def _repeats(self, step: Step, seconds: float, limit_s: float) -> int:
        """The most repeats that end within `limit_s`; at least one."""
        most = self.scheduler.max_repeats(step)
        if seconds * most > limit_s:  # no step of a stride is shorter than its first
            most = int(limit_s / seconds) if limit_s > 0 else 1
        while most > 1:
            step.num_repeats = most
            if self._cost.seconds(step, self.shape) <= limit_s:
                break
            most -= 1
        step.num_repeats = 1
        return max(1, most)

    def _while_storing(self, step: Step, now_s: float, until_s: float) -> list[float]:
        """When those repeats of a step begin that end by `until_s`, up to the first that begins when all
        stores that are under way are over."""
        most = self.scheduler.max_repeats(step, storing=True)
        starts_s: list[float] = []
        begins_s, last_s = now_s, self._link.last_s if self._link is not None else now_s
        while begins_s < last_s and step.num_repeats < most:
            begins_s = now_s + self._cost.seconds(step, self.shape)
            step.num_repeats += 1
            if now_s + self._cost.seconds(step, self.shape) > until_s:
                break
            starts_s.append(begins_s)
        step.num_repeats = 1
        return starts_s
