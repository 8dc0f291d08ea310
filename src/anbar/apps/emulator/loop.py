"""The engine model on the real clock: steps begin when there is work, and end when their time has passed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from anbar.apps.emulator.pacing import ModelClock
from anbar.apps.emulator.sequence import SequenceRun
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine
from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.step import Output, Step, StepResult

_MAX_LAG_S = 0.05
"""Loop seconds that a step's end may be noticed late and still count as in time: timers have a resolution of
a millisecond, and without this each of a thousand steps of 5 ms would take a millisecond more."""


class Observer(Protocol):
    """Who hears of what the engine does."""

    def published(self, events: Sequence[EngineEvent]) -> None:
        """One batch of KV events."""

    def step_ended(self, step: Step, result: StepResult) -> None:
        """A step is over."""

    def tokens(self, run: SequenceRun, at_s: float) -> None:
        """A sequence got tokens, at that time of the model's clock."""

    def supervise(self, act: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Do something for one request; when it fails, `give_up` that one alone."""


class EngineLoop:
    """Drives one engine model. Everything happens on the event loop; a step that takes no time still leaves
    the loop once, so that requests that came together are scheduled together."""

    def __init__(
        self,
        engine: Engine,
        clock: ModelClock,
        observer: Observer,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._runs: dict[RequestId, SequenceRun] = {}
        self._wake: asyncio.Handle | None = None
        """The next `_start` or `_end`."""
        self._step: Step | None = None
        self._step_ends_s = 0.0
        self._paused = False
        self._is_pausing = False
        """It is paused as soon as what it has is done; what comes is held back."""
        self._held: list[SequenceRun] = []
        self._actions: list[Callable[[], None]] = []
        """For the end of the step."""
        self._when_done: list[Callable[[], None]] = []
        """For when nothing is left."""
        self._stopped = False

    @property
    def is_idle(self) -> bool:
        """Nothing is under way, so that nothing will be said either."""
        return self._wake is None and self._step is None

    def adapters(self) -> tuple[str, str]:
        """Of requests that run and that wait, by name, with commas between."""
        running: set[str] = set()
        waiting: set[str] = set()
        for run in self._runs.values():
            request, name = run.request, run.keys.identity.lora
            if name is not None and request.num_generated < request.num_answer_tokens:
                (running if run.times.scheduled_s >= 0 else waiting).add(name)
        return ",".join(sorted(running)), ",".join(sorted(waiting))

    def submit(self, run: SequenceRun) -> None:
        """A sequence joins the waiting queue."""
        if self._is_pausing:
            self._held.append(run)
            return
        self._runs[run.id] = run
        self.engine.add(run.request)
        self._arouse()

    def withdraw(self, run: SequenceRun) -> None:
        """Its client is gone: its blocks are free at once. Nothing for one that has ended."""
        if run in self._held:
            self._held.remove(run)
        elif self._runs.pop(run.id, None) is not None and not self._stopped:
            self.engine.abort(run.id)
            self._arouse()
            self._tell_if_done()

    def abort_all(self) -> None:
        """The engine gives up everything it has, and says so to each."""
        runs, self._runs = self._runs, {}
        for run in runs.values():
            self.engine.abort(run.id)
            self._observer.supervise(run.on_abort, run.give_up)
            run.forget()
        self._arouse()
        self._tell_if_done()

    def clear_cache(self, *, preempts: bool = False, tiers: bool = False) -> bool:
        """Drop the device cache; False while requests hold blocks. `preempts` and `tiers` are those of
        `Engine.clear_cache`, and possible only `between_steps`."""
        cleared = self.engine.clear_cache(preempts=preempts, tiers=tiers)
        self._arouse()
        return cleared

    def between_steps(self, action: Callable[[], None]) -> None:
        """Do it now, or when the step that runs has ended."""
        if self._step is None:
            action()
        else:
            self._actions.append(action)

    def pause(self) -> None:
        """Start no more steps."""
        self._paused = True

    def pause_when_done(self, on_done: Callable[[], None]) -> None:
        """Finish what there is, and start no more steps; `on_done` is called when nothing is left."""
        self._is_pausing = True
        self._when_done.append(on_done)
        self._tell_if_done()

    def resume(self) -> None:
        """Go on."""
        self._paused = self._is_pausing = False
        held, self._held = self._held, []
        for run in held:
            self.submit(run)
        self._arouse()

    def stop(self) -> None:
        """The engine's process is gone: nothing is said to anybody."""
        self._stopped = True
        self._runs.clear()
        self._held.clear()
        self._actions.clear()
        self._when_done.clear()
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def _arouse(self) -> None:
        """There may be work: look after this turn of the event loop, unless a step is running."""
        if self._wake is None and self._step is None and not self._stopped:
            self._wake = self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._wake = None
        self._begin(self.clock.now_s())

    def _begin(self, now_s: float) -> None:
        if self._paused:
            return
        # A stride would hold back tokens that clients wait for: one step at a time.
        running = self.engine.start_step(now_s, now_s)
        if running is None:
            return
        self._step, self._step_ends_s = running.step, running.ends_s
        for piece in running.step.pieces:
            run = self._runs.get(piece.request.id)
            if run is not None and run.times.scheduled_s < 0:
                run.times.scheduled_s = now_s
        if running.ends_s <= now_s:
            self._wake = self._loop.call_soon(self._end)
        else:
            self._wake = self._loop.call_at(self.clock.loop_time_s(running.ends_s), self._end)

    def _end(self) -> None:
        self._wake = None
        assert self._step is not None, "a step is running"
        step, self._step = self._step, None
        result = self.engine.finish_step()
        ended_s = self._step_ends_s
        try:
            if result.events:
                self._observer.published(result.events)
            self._observer.step_ended(step, result)
            for output in result.outputs:
                self._deliver(output, ended_s)
            actions, self._actions = self._actions, []
            for action in actions:
                action()
            self._tell_if_done()
        finally:
            if not self._stopped and self._step is None:
                self._follow(ended_s)

    def _follow(self, ended_s: float) -> None:
        """Begin the next step where the last one ended, if that is not long ago."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        now_s = self.clock.now_s()
        self._begin(ended_s if now_s - ended_s < _MAX_LAG_S * self.clock.speed else now_s)

    def _tell_if_done(self) -> None:
        if self._runs or self._step is not None:
            return
        told, self._when_done = self._when_done, []
        for on_done in told:
            on_done()

    def _deliver(self, output: Output, at_s: float) -> None:
        run = self._runs.get(output.request.id)
        if run is None:
            return
        if output.finished:
            del self._runs[run.id]

        def tell() -> None:
            self._observer.tokens(run, at_s)
            run.on_tokens(output.num_tokens, output.finished)

        self._observer.supervise(tell, run.give_up)
        if output.finished:
            run.forget()
