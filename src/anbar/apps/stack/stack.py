"""The running stack: engines, then the router, until somebody stops it or a part cannot start."""

import asyncio
import contextlib
import time

import yaml

from anbar.adapters.process.cleanup import remove_scratch_dir
from anbar.adapters.process.state import STATE_FILE, StackState, current_boot, self_id, write_state
from anbar.adapters.vllm.launch import ask
from anbar.apps.stack.part import Part
from anbar.apps.stack.plan import StackPlan
from anbar.apps.stack.reporter import Reporter
from anbar.core.errors import StackError

_ALL_SERVED_S = 15.0
_POLL_S = 0.1


class Stack:
    """Starts what the plan says. `stop` may be called at any time and leaves nothing."""

    def __init__(self, plan: StackPlan, reporter: Reporter) -> None:
        self._plan = plan
        self._reporter = reporter
        self._engines = [Part(spec, reporter, self._write_state) for spec in plan.engines]
        self._router = Part(plan.router, reporter, self._write_state)
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def endpoint(self) -> str:
        return self._plan.router.url

    async def start(self) -> float:
        """Engines side by side, then the router; seconds it took. Raises StackError for the first failure."""
        begin = time.monotonic()
        self._write_state()
        starts = [asyncio.create_task(engine.start()) for engine in self._engines]
        try:
            await _all_or_first_error(starts)
        finally:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        text = yaml.safe_dump(dict(self._plan.router_file), sort_keys=False, allow_unicode=True)
        self._plan.router_yaml.touch(mode=0o600)
        self._plan.router_yaml.write_text(text, encoding="utf-8")
        await self._router.start()
        await self._until_all_are_served()
        return time.monotonic() - begin

    async def _until_all_are_served(self) -> None:
        """The router is ready when one engine is; who is told that the stack is takes it for all of them. An
        engine that the router does not like is no reason to wait for ever: `anbar status` shows it."""
        wanted = {engine.name for engine in self._engines}
        deadline = time.monotonic() + _ALL_SERVED_S
        while time.monotonic() < deadline:
            found = await ask(self.endpoint, "/ready")
            served = found.get("engines") if isinstance(found, dict) else None
            if not isinstance(served, list) or wanted <= set(served):
                return
            await asyncio.sleep(_POLL_S)

    async def watch(self) -> None:
        """Runs until no launched engine is left: StackError. Parts that die are started again. What a part
        cannot bear is raised as it is."""
        router = asyncio.create_task(self._router.watch())
        engines = [asyncio.create_task(engine.watch()) for engine in self._engines]
        self._watchers = [router, *engines]
        left = set(engines)
        while left or not engines:
            done, _ = await asyncio.wait({router, *left}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if router in done:
                raise StackError("the router ended")
            left -= done
        raise StackError("no engine is left")

    async def stop(self) -> None:
        """The router first, which finishes what is running, then the engines; then the files go."""
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await self._router.stop()
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        remove_scratch_dir(self._plan.scratch_dir)
        self._plan.router_yaml.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self._plan.state_dir / "run").rmdir()

    def stop_now(self) -> None:
        """No more waiting: everything gets SIGKILL. `stop` must be running or follow."""
        for part in (self._router, *self._engines):
            part.stop_now()

    def _write_state(self) -> None:
        states = [part.state() for part in (*self._engines, self._router)]
        state = StackState(
            launcher=self_id(),
            boot=current_boot(),
            scratch_dir=str(self._plan.scratch_dir),
            endpoint=self.endpoint,
            parts=tuple(state for state in states if state is not None),
        )
        write_state(self._plan.state_dir / STATE_FILE, state)


async def _all_or_first_error(tasks: list[asyncio.Task[None]]) -> None:
    """Waits for all; raises the first failure without waiting for the others."""
    if not tasks:
        return
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
