"""The parent of several workers, with scripts in their place."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from test_peer_exchange import exchange_at
from tests.waiting import PATIENCE_S, until, within

from anbar.adapters.peers.channel import Channel
from anbar.adapters.peers.connect import Local
from anbar.adapters.process.cleanup import make_scratch_dir, remove_scratch_dir
from anbar.adapters.telemetry import EventLog
from anbar.apps.router.exchange import ASK_S
from anbar.apps.router.sharing import Told
from anbar.apps.router.together import METRICS
from anbar.apps.router.worker import Worker
from anbar.apps.router.workers import METRICS_S, Workers, WorkersPlan

SCRIPT = f"""#!{sys.executable}
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
places, _, directory = os.environ["ANBAR_ROUTER_WORKER"].partition(" ")
served = pathlib.Path(directory, places.partition("/")[0] + ".serves")
served.write_text(str(os.getpid()))
sys.stdin.read()
"""


class Parent:
    """A parent of one worker that runs."""

    def __init__(self, directory: Path, script: Path) -> None:
        self.script = script
        self.worker = Worker(0, 1, directory)
        self.log = io.BytesIO()
        plan = WorkersPlan(1, "127.0.0.1", 0, [str(script)], os.environ, PATIENCE_S)
        self.workers = Workers(plan, directory, EventLog(self.log, lambda: 0.0))
        self.running = asyncio.ensure_future(self.workers.run())

    def pid(self) -> int:
        """Of the worker that serves; 0 while there is none."""
        with suppress(FileNotFoundError):
            return int(self.worker.serves.read_text() or 0)
        return 0

    async def serves(self) -> int:
        await until(lambda: self.pid() > 0)
        return self.pid()


@asynccontextmanager
async def parent_of(tmp_path: Path) -> AsyncIterator[Parent]:
    script = tmp_path / "worker"
    script.write_text(SCRIPT)
    script.chmod(0o700)
    directory = make_scratch_dir()
    parent = Parent(directory, script)
    try:
        yield parent
    finally:
        parent.running.cancel()
        await asyncio.gather(parent.running, return_exceptions=True)
        remove_scratch_dir(directory)


async def test_a_start_that_fails_is_tried_again(tmp_path: Path) -> None:
    """A worker dies and cannot be started, as when the machine is out of processes for a moment: that is in
    the log, and the router goes on until it can. SIGTERM ends it with 0."""
    async with parent_of(tmp_path) as parent:
        pid = await parent.serves()
        away = parent.script.rename(tmp_path / "away")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: parent.log.getvalue().count(b'"worker_not_started"') >= 2)
        assert not parent.running.done()
        away.rename(parent.script)
        assert await parent.serves() != pid
        parent.workers.stop()
        assert await within(parent.running) == 0


async def test_a_first_start_that_fails_ends_all(tmp_path: Path) -> None:
    """What cannot even be started once is an error that somebody sees at once: a line, and exit code 1."""
    async with parent_of(tmp_path) as parent:
        parent.script.unlink()
        assert await within(parent.running) == 1
        assert b'"worker_not_started"' in parent.log.getvalue()


async def test_work_that_was_cut_is_told(tmp_path: Path) -> None:
    """A worker that dies of a signal while it should drain has cut what it had: not exit code 0."""
    async with parent_of(tmp_path) as parent:
        pid = await parent.serves()
        os.kill(pid, signal.SIGSTOP)
        parent.workers.stop()
        os.kill(pid, signal.SIGKILL)
        assert await within(parent.running) == 1


async def test_a_dead_workers_page_is_not_its_successors(tmp_path: Path) -> None:
    """A worker is asked for its numbers and dies; its answer arrives when another one has taken its place,
    which begins at zero: counted as that one's, it would be counted twice when it ends. Whoever asks the
    parent gets an answer all the same, in less time than it waits for one."""
    assert METRICS_S < ASK_S
    async with parent_of(tmp_path) as parent:
        pid = await parent.serves()
        come = asyncio.Event()

        async def metrics(channel: Channel, body: bytes) -> None:
            come.set()
            await until(lambda: parent.pid() not in (0, pid))
            channel.send(b"# TYPE a_total counter\na_total 7.0\n")

        own = exchange_at(parent.worker.socket, Told(), {METRICS: metrics})
        await own.start()
        page = asyncio.ensure_future(own.ask(Local(parent.worker.parent), METRICS, b"", PATIENCE_S))
        await within(come.wait())
        os.kill(pid, signal.SIGKILL)
        assert await within(page) == b""
        await own.stop()
