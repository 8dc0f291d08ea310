"""A router as a process: its signals, its limits, its exit code; or several such processes."""

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import uvloop

from anbar.adapters.process.allocator import settle_allocator
from anbar.adapters.process.cleanup import remove_scratch_dir
from anbar.adapters.telemetry.request_log import LineSink
from anbar.apps.router.app import Router
from anbar.apps.router.reload import Source
from anbar.apps.router.worker import WholeLines, on_orphaned, worker_of
from anbar.apps.router.workers import WorkersPlan, run_workers
from anbar.core.errors import ConfigError

COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""When Python looks for garbage in cycles. What a request makes is freed without a look, and by default there
is one for every few requests, which finds nothing."""

FORCED_EXIT = 1
"""Exit code after a second signal: work was cut."""


async def serve(router: Router, started: Callable[[int], None] = lambda port: None) -> int:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends at once. SIGHUP reads the configuration
    again. Returns the exit code."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    loop.add_signal_handler(signal.SIGHUP, router.reloader.ask)
    orphaned = asyncio.Event()

    def on_parent_gone() -> None:
        orphaned.set()
        signals.put_nowait(signal.SIGTERM)

    if router.worker is not None:
        on_orphaned(on_parent_gone)
    try:
        stopping = asyncio.ensure_future(signals.get())
        starting = asyncio.ensure_future(router.start())
        await asyncio.wait((stopping, starting), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # a worker may wait for its engines
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        started(await starting)
        await stopping
        draining = asyncio.ensure_future(router.drain())
        again = asyncio.ensure_future(signals.get())
        await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
        forced = not draining.done()
        for task in (draining, again):
            task.cancel()
        await asyncio.gather(draining, again, return_exceptions=True)
        return FORCED_EXIT if forced else 0
    finally:
        await router.stop()
        if orphaned.is_set() and router.worker is not None:
            remove_scratch_dir(router.worker.directory)  # the parent cannot any more
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def allow_descriptors() -> None:
    """Raise this process's limit of open files to what it may be: each stream takes two, and the usual 1,024
    would end at some 500 streams."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS names a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(source: Source, environ: Mapping[str, str], sink: LineSink, command: Sequence[str] = ()) -> int:
    """Run a router with the configuration at `source`: in this process, or, if it is to have several, in
    processes that `command` starts. Returns its exit code. Raises ConfigError or StackError."""
    config, worker = source.read(), worker_of(environ)
    if worker is None and config.router.workers > 1:
        router = config.router
        count, drain_s = router.workers, router.drain_timeout_s
        return run_workers(WorkersPlan(count, router.host, router.port, command, environ, drain_s))
    allow_descriptors()
    settle_allocator(environ)
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    if worker is not None:
        sink = WholeLines(sys.stderr.fileno())
    try:
        one = Router(config, environ, sink, source, worker)
    except ConfigError as error:
        raise source.located(error) from error
    code: int = uvloop.run(serve(one))
    return code
