"""One part of a stack, an engine or the router: started, watched, started again, stopped."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from anbar.adapters.process.guarded import ChildSpec, GuardedProcess
from anbar.adapters.process.state import PartState
from anbar.adapters.vllm.launch import StartProgress, answers, root_cause
from anbar.apps.stack.reporter import Reporter
from anbar.config.models import Restart
from anbar.core.errors import StackError

_POLL_S = 0.25
_REPORT_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STEADY_S = 300.0
"""A part that served this long starts again without a pause of history."""


@dataclass(frozen=True, slots=True)
class PartSpec:
    """What a part is: `kind` is "engine", "emulated" or "router". It is ready when GET `url``ready_path`
    answers 200. `shm` are its names in /dev/shm."""

    kind: str
    child: ChildSpec
    url: str
    ready_path: str
    ready_timeout_s: float
    restart: Restart
    shm: tuple[str, ...] = ()


class Part:
    """Lives through several lives of its process. `on_change` is called when it has a guard, when its
    command runs and when it serves."""

    def __init__(self, spec: PartSpec, reporter: Reporter, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self._reporter = reporter
        self._on_change = on_change
        self._process: GuardedProcess | None = None
        self._ready = False

    @property
    def name(self) -> str:
        return self.spec.child.name

    def state(self) -> PartState | None:
        """For the state file; None while there is no process."""
        if self._process is None:
            return None
        spec, child = self.spec, self.spec.child
        return PartState(
            name=child.name,
            kind=spec.kind,
            pid=self._process.pid,
            port=urlsplit(spec.url).port or 80,
            guard=self._process.guard,
            record=str(child.record),
            log=str(child.log),
            url=spec.url,
            shm=spec.shm,
            ready=self._ready,
        )

    async def start(self) -> None:
        """Start and wait until it serves. Raises StackError with the end of its log when it does not."""
        begin = time.monotonic()
        process = GuardedProcess(self.spec.child)
        self._ready = False

        def guarded() -> None:  # known to `stop` and to the state file from now on
            self._process = process
            self._on_change()

        try:
            async with asyncio.timeout(self.spec.ready_timeout_s):
                await process.start(guarded)
        except TimeoutError:  # its program is on a disk that hangs, say
            raise await self._too_late(process, begin) from None
        self._on_change()
        await self._until_ready(process, begin)
        self._ready = True
        self._on_change()
        self._reporter.ready(self.name, time.monotonic() - begin)

    async def _until_ready(self, process: GuardedProcess, begin: float) -> None:
        progress = StartProgress(self.spec.child.log)
        reported = -_REPORT_S
        while True:
            if not process.is_running:
                raise StackError(self._failure(process, f"ended with status {await process.wait()}"))
            if await answers(self.spec.url, self.spec.ready_path):
                return
            elapsed = time.monotonic() - begin
            if elapsed > self.spec.ready_timeout_s:
                raise await self._too_late(process, begin)
            if elapsed - reported >= _REPORT_S:
                reported = elapsed
                self._reporter.phase(self.name, progress.phase(), elapsed)
            await asyncio.sleep(_POLL_S)

    async def _too_late(self, process: GuardedProcess, begin: float) -> StackError:
        elapsed = time.monotonic() - begin
        await process.stop()
        return StackError(self._failure(process, f"was not ready after {elapsed:.0f} s"))

    def _failure(self, process: GuardedProcess, what: str) -> str:
        log, end = self.spec.child.log, process.log_tail()
        tail = "\n".join(f"  | {line}" for line in end.splitlines())
        text = f"{self.name} {what} while starting; the end of {log}:\n{tail}"
        cause = root_cause(log)
        return f"{text}\n{self.name} failed by: {cause}" if cause is not None else text

    async def watch(self) -> None:
        """Keep it running. Returns when it ended and may not be started again."""
        pause = _FIRST_PAUSE_S
        while True:
            assert self._process is not None, "watch before start"
            begin = time.monotonic()
            status = await self._process.wait()
            died = f"{self.name} ended with status {status}; its log: {self.spec.child.log}"
            if self.spec.restart is Restart.NEVER:
                self._reporter.warn(f"{died}; it is not started again (restart: never)")
                return
            if time.monotonic() - begin > _STEADY_S:
                pause = _FIRST_PAUSE_S
            self._reporter.warn(f"{died}; starting it again in {pause:.0f} s")
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, 2 * pause)
            try:
                await self.start()
            except StackError as error:
                self._reporter.warn(str(error))

    def stop_now(self) -> None:
        """SIGKILL for all of its processes; `stop` still waits for their end."""
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        """Stop and wait until nothing of it is left."""
        if self._process is not None:
            await self._process.stop()
