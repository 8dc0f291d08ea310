"""Parts and the stack as objects in this process, where a test can stop them at any moment."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anbar.adapters.process.guarded import ChildSpec
from anbar.apps.stack.part import Part, PartSpec
from anbar.apps.stack.plan import StackPlan
from anbar.apps.stack.stack import Stack
from anbar.config.models import Restart
from tests.ports import free_port, free_ports
from tests.unit.stack.processes import CHILD, below, eventually


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


def spec_of(tmp_path: Path, name: str, port: int, *options: str) -> PartSpec:
    argv = [sys.executable, str(CHILD), "--port", str(port), *options]
    log, record = tmp_path / "logs" / f"{name}.log", tmp_path / f"{name}-run" / "record.json"
    child = ChildSpec(name, argv, dict(os.environ), log, record, 1.0)
    return PartSpec("engine", child, f"http://127.0.0.1:{port}", "/health", 20.0, Restart.ON_FAILURE)


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
async def test_cancelled_while_its_process_starts(tmp_path: Path, pause_s: float) -> None:
    """Ctrl-C in the milliseconds between the start of the guard and its first note: `stop` knows it."""
    before = set(below(os.getpid()))
    never_ready = spec_of(tmp_path, "a-0", free_port(), "--delay-s", "60")
    part = Part(never_ready, Silent(), lambda: None)
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


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """One engine and a router, both `fake_child.py`, and started."""
    engine_port, router_port = free_ports(2)
    engine, router = spec_of(tmp_path, "a-0", engine_port), spec_of(tmp_path, "router", router_port)
    made = Stack(StackPlan(tmp_path, tmp_path / "scratch", (engine,), router, {}, ()), Silent())
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def kill_router(tmp_path: Path) -> None:
    record = tmp_path / "router-run" / "record.json"
    os.kill(json.loads(record.read_text())["main"], signal.SIGKILL)
    await eventually(lambda: not record.exists())


async def test_router_that_cannot_be_started_for_a_while(tmp_path: Path, stack: Stack) -> None:
    """Its log cannot be opened, as when the disk is full: tried again until it can."""
    watching = asyncio.create_task(stack.watch())
    logs = tmp_path / "logs"
    logs.rename(tmp_path / "aside")
    logs.touch()
    await kill_router(tmp_path)
    await asyncio.sleep(1.5)  # the first pause is 1 s
    logs.unlink()
    await eventually((tmp_path / "router-run" / "record.json").exists)
    assert not watching.done()


async def test_watcher_of_the_router_fails(tmp_path: Path, stack: Stack) -> None:
    """The router's restart ends in an error that nobody foresaw (the state file cannot be written): it ends
    the stack, though all engines serve, instead of leaving it without a router."""
    watching = asyncio.create_task(stack.watch())
    (tmp_path / "state.new").mkdir()
    await kill_router(tmp_path)
    with pytest.raises(IsADirectoryError):
        await asyncio.wait_for(watching, 10)
