"""Parts and the stack as objects in this process, where a test can stop them at any moment."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from anbar.adapters.process.guarded import ChildSpec
from anbar.apps.stack.part import Part, PartSpec
from anbar.apps.stack.plan import StackPlan
from anbar.apps.stack.stack import Stack
from anbar.config.models import Restart
from tests.unit.stack.processes import CHILD, below, eventually, free_ports


class Silent:
    """A reporter for nobody."""

    def phase(self, part: str, text: str, elapsed_s: float) -> None:
        return

    def ready(self, part: str, elapsed_s: float) -> None:
        return

    def note(self, text: str) -> None:
        return

    def warn(self, text: str) -> None:
        return


def spec_of(tmp_path: Path, name: str, port: int) -> PartSpec:
    argv = [sys.executable, str(CHILD), "--port", str(port)]
    log, record = tmp_path / "logs" / f"{name}.log", tmp_path / f"{name}-run" / "record.json"
    child = ChildSpec(name, argv, dict(os.environ), log, record, 1.0)
    return PartSpec("engine", child, f"http://127.0.0.1:{port}", "/health", 20.0, Restart.ON_FAILURE)


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
async def test_cancelled_while_its_process_starts(tmp_path: Path, pause_s: float) -> None:
    """Ctrl-C in the milliseconds between the start of the guard and its first note: `stop` knows it."""
    before = set(below(os.getpid()))
    part = Part(spec_of(tmp_path, "a-0", free_ports(1)), Silent(), lambda: None)
    assert part.state() is None
    starting = asyncio.create_task(part.start())
    while not set(below(os.getpid())) - before:  # noqa: ASYNC110 (no pause: the moment matters)
        await asyncio.sleep(0)
    await asyncio.sleep(pause_s)
    assert not starting.done()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await part.stop()
    assert set(below(os.getpid())) - before == set()


async def test_watcher_of_the_router_fails(tmp_path: Path) -> None:
    """The router dies and cannot be started again, for a reason that is no ordinary one (its directory is a
    file now): the stack ends with it, though all engines serve."""
    base = free_ports(2)
    engine, router = spec_of(tmp_path, "a-0", base), spec_of(tmp_path, "router", base + 1)
    stack = Stack(StackPlan(tmp_path, tmp_path / "scratch", (engine,), router, {}, ()), Silent())
    try:
        await stack.start()
        watching = asyncio.create_task(stack.watch())
        (guard,) = [process for process in below(os.getpid()) if "router-run" in _command(process.pid)]
        for process in below(guard.pid):
            os.kill(process.pid, 9)
        record = router.child.record
        await eventually(lambda: not record.exists())
        record.parent.rmdir()
        record.parent.touch()
        with pytest.raises(FileExistsError):
            await asyncio.wait_for(watching, 10)
    finally:
        await stack.stop()


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
