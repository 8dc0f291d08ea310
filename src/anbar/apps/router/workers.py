"""The parent of several router processes on one port: starts them, watches them, ends with them.

It takes no requests itself. Each worker listens with SO_REUSEPORT, and the kernel shares connections out. A
worker that dies takes no other with it; it is started again, with growing pauses. SIGTERM and SIGINT are
passed on as SIGTERM, and the parent ends when the last worker has drained; a second one makes them end at
once. SIGHUP is passed on. Workers whose parent was killed drain by themselves (`worker.py`).
"""

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anbar.adapters.peers.channel import Channel
from anbar.adapters.peers.connect import Address, Local
from anbar.adapters.process.cleanup import make_scratch_dir, remove_scratch_dir
from anbar.adapters.telemetry import EventLog
from anbar.adapters.telemetry.merged_pages import WorkersPage
from anbar.apps.router.exchange import Answers, ExchangeParts, PeerExchange
from anbar.apps.router.listening import reserve
from anbar.apps.router.sharing import PeerShare, Told
from anbar.apps.router.together import METRICS
from anbar.apps.router.worker import WholeLines, Worker

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A worker that ran so long starts again without a pause of history."""
METRICS_S = 2.0
"""A worker that hangs counts as it last did: in less than whoever asked us waits for the answer."""
MARGIN_S = 5.0
"""What workers get to end beyond their time to drain."""


@dataclass(frozen=True, slots=True)
class WorkersPlan:
    """`command` runs one worker, in `environ` and its own variable."""

    count: int
    host: str
    port: int
    command: Sequence[str]
    environ: Mapping[str, str]
    drain_timeout_s: float


class Workers:
    """See the module's text."""

    def __init__(self, plan: WorkersPlan, directory: Path, log: EventLog) -> None:
        self._plan = plan
        self._directory = directory
        self._log = log
        self._running: dict[int, Process] = {}
        self._is_over = asyncio.Event()
        self._code = 0
        self._page = WorkersPage()
        self._exchange = _exchange_of(Worker(0, plan.count, directory).parent, self._metrics)

    async def run(self) -> int:
        """Until a signal, or until a worker does not even start; the exit code."""
        await self._exchange.start()
        keepers = [asyncio.ensure_future(self._keep(place)) for place in range(self._plan.count)]
        ending = asyncio.ensure_future(self._is_over.wait())
        try:
            await asyncio.wait((ending, *keepers), return_when=asyncio.FIRST_COMPLETED)
            if not self._is_over.is_set():
                self.stop()
            _, late = await asyncio.wait(keepers, timeout=self._plan.drain_timeout_s + MARGIN_S)
            self._code = max(self._code, 1 if late else 0)
        finally:
            ending.cancel()
            for process in self._running.values():
                with suppress(ProcessLookupError):
                    process.kill()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(ending, *keepers, return_exceptions=True)
            await self._exchange.stop()
            await asyncio.gather(*(process.wait() for process in self._running.values()))
        for keeper in keepers:
            if not keeper.cancelled():
                keeper.result()
        return self._code

    def stop(self) -> None:
        """Have all workers drain; once more: have them end now."""
        self._is_over.set()
        self._signal_all(signal.SIGTERM)

    def reload(self) -> None:
        """Have all workers read their configuration again. One that does not listen yet reads it anyway, and
        would die of the signal."""
        self._signal_all(
            signal.SIGHUP, [place for place in self._running if self._worker(place).serves.exists()]
        )

    def _signal_all(self, number: signal.Signals, places: Iterable[int] | None = None) -> None:
        for place in list(self._running) if places is None else places:
            with suppress(ProcessLookupError):
                self._running[place].send_signal(number)

    async def _metrics(self, channel: Channel, body: bytes) -> None:
        """Answer with the metrics of all workers; one that does not answer counts as it last did."""
        running = dict(self._running)
        sockets = (Local(self._worker(place).socket) for place in running)
        asked = (self._exchange.ask(socket, METRICS, b"", METRICS_S) for socket in sockets)
        for (place, process), page in zip(running.items(), await asyncio.gather(*asked), strict=True):
            if page is not None and self._running.get(place) is process:  # and not its successor
                self._page.heard(place, page)
        channel.send(self._page.render())

    def _worker(self, place: int) -> Worker:
        return Worker(place, self._plan.count, self._directory)

    async def _keep(self, place: int) -> None:
        """Keep one worker running; returns when it has ended in its time, or has never served."""
        worker, has_served, pause_s = self._worker(place), False, FIRST_PAUSE_S
        while not self._is_over.is_set():
            begin_s = time.monotonic()
            try:
                code = await self._run_once(worker)
            except OSError as error:  # no memory, no process or no file to be had at this moment
                self._log.line("worker_not_started", {"place": place, "error": str(error)})
                code = 1
            if self._is_over.is_set():
                was_cut = code < 0 and worker.serves.exists()
                self._code = max(self._code, code, 1 if was_cut else 0)
                return
            has_served = has_served or worker.serves.exists()
            if not has_served:
                self._code = max(1, code)
                return
            pause_s = FIRST_PAUSE_S if time.monotonic() - begin_s > STEADY_S else pause_s
            self._log.line("worker_ended", {"place": place, "code": code, "again_in_s": pause_s})
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_over.wait()
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _run_once(self, worker: Worker) -> int:
        """One life of a worker; its exit code, -n for signal n."""
        worker.serves.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *self._plan.command,
            stdin=PIPE,  # its end of file tells a worker that we are gone
            env={**self._plan.environ, **worker.variable()},
            start_new_session=True,  # Ctrl-C is ours to pass on, once
        )
        self._running[worker.place] = process
        try:
            if self._is_over.is_set():  # it was not known yet when the others were told
                process.terminate()
            return await process.wait()
        finally:
            if process.returncode is not None:
                del self._running[worker.place]
                self._page.gone(worker.place)


def _exchange_of(path: Path, metrics: Answers) -> PeerExchange:
    """One that follows nobody and answers for all."""

    async def nobody() -> Sequence[Address]:
        return ()

    def not_followed() -> PeerShare:
        raise AssertionError("the parent follows nobody")

    parts = ExchangeParts(
        told=Told(),
        share=not_followed,
        listen=(Local(path),),
        resolve=nobody,
        drained=tuple,
        on_drains=lambda word: None,
        emit=lambda event: None,
    )
    return PeerExchange(parts, {METRICS: metrics})


def run_workers(plan: WorkersPlan) -> int:
    """Run until a signal says otherwise; the exit code. Raises StackError when the port cannot be had."""
    held = reserve(plan.host, plan.port)
    directory = make_scratch_dir()
    try:
        return asyncio.run(_supervise(plan, directory))
    finally:
        remove_scratch_dir(directory)
        for sock in held:
            sock.close()


async def _supervise(plan: WorkersPlan, directory: Path) -> int:
    workers = Workers(plan, directory, EventLog(WholeLines(sys.stderr.fileno()), time.time))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, workers.stop)
    loop.add_signal_handler(signal.SIGHUP, workers.reload)
    return await workers.run()
