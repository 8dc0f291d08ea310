"""Asks engines from time to time what they are busy with, and sets the router's books right by it.

An engine that does not tell, or not in time, is believed to have what it was sent: nothing waits for
this, and nothing is refused because of it."""

import asyncio

from anbar.adapters.http.fetch import fetch
from anbar.adapters.vllm.load_page import ReportedLoad, parse_load
from anbar.apps.router.engine import Engine, Fleet
from anbar.core.clock import Clock
from anbar.core.cost import NO_WORK, PrefillWork
from anbar.core.errors import UpstreamError
from anbar.core.outcome import Emit, LoadCorrected, SupervisorCaught
from anbar.route.load_check import NO_STRANGERS, IdleStep, LoadCheck

LOOK_TIMEOUT_S = 5.0
OFF_S = 1.0
"""Between two looks whether engines are to be asked, while they are not."""


class LoadWatch:
    """Looks at every engine of the fleet that is ready, every `interval_s` seconds; 0: never. One that has
    not answered yet is not asked again, and delays no other."""

    def __init__(self, fleet: Fleet, clock: Clock, emit: Emit, interval_s: float) -> None:
        self._fleet = fleet
        self._clock = clock
        self._emit = emit
        self.interval_s = interval_s
        """May be changed at any time."""
        self._checks: dict[Engine, LoadCheck] = {}
        self._looks: dict[Engine, asyncio.Task[None]] = {}
        """Those under way."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        tasks = [*self._looks.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self.interval_s:
                engines = list(self._fleet)
                self._checks = {engine: self._checks.get(engine, LoadCheck()) for engine in engines}
                for engine in engines:
                    if engine not in self._looks:
                        self._looks[engine] = loop.create_task(self._look(engine))
            elif not self._looks:
                self._forget()
            await asyncio.sleep(self.interval_s or OFF_S)

    def _forget(self) -> None:
        """Nobody is asked any more: all load is ours."""
        for engine in self._checks:
            self.take(engine, None, (0, 0))
        self._checks = {}

    async def _look(self, engine: Engine) -> None:
        load = engine.load
        try:
            before = load.num_believed, len(load.queue)
            self.take(engine, await self._told(engine), before)
        except Exception as error:  # noqa: BLE001 - the supervisor of the looks at one engine
            self._emit(SupervisorCaught.of("load", error))
        finally:
            self._looks.pop(engine, None)

    async def _told(self, engine: Engine) -> ReportedLoad | None:
        if not engine.is_ready:
            return None
        try:
            page = await fetch(engine.pool, "/metrics", headers=engine.auth, timeout_s=LOOK_TIMEOUT_S)
        except UpstreamError:
            return None  # whether an engine serves is the monitor's matter
        return parse_load(page.body) if page.status == 200 else None

    def take(self, engine: Engine, told: ReportedLoad | None, before: tuple[int, int]) -> None:
        """Take in a reading, None when there was none. `before`: requests that the engine was believed to
        have when it was asked, and those of them without a first token."""
        load, check = engine.load, self._checks.setdefault(engine, LoadCheck())
        load.reported = told
        if told is None:
            check.forget()
            load.meet(NO_STRANGERS, NO_WORK)
            return
        num_known = max(before[0], load.num_believed)
        num_queued = max(before[1], len(load.queue))
        found = check.strangers(told.num_running, told.num_waiting, num_known, num_queued)
        mean, cached = round(told.mean_prompt), round(told.mean_prompt * told.cached_share)
        one = PrefillWork.of(mean, cached)
        work = PrefillWork(one.tokens * found.num_waiting, one.pairs * found.num_waiting)
        load.meet(found, work)
        match check.idle(told.total, load.num_in_flight - load.num_ghosts, self._clock.now_s()):
            case IdleStep.MARK:
                load.mark()
            case IdleStep.DROP:
                if num_dropped := load.drop_marked(self._clock.now_s()):
                    self._emit(LoadCorrected(engine.id, num_dropped))
            case IdleStep.NOTHING:
                pass
