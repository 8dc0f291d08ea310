"""Parts and the stack as objects in this process, where a test can stop them at any moment."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.adapters.process.guarded import ChildSpec
from anbar.adapters.process.proc import is_alive
from anbar.adapters.process.state import PartState
from anbar.apps.stack.part import Part, PartSpec
from anbar.apps.stack.plan import StackPlan
from anbar.apps.stack.stack import Stack
from anbar.config.models import Restart
from anbar.core.errors import StackError
from tests.ports import free_port, free_ports
from tests.unit.stack.processes import CHILD, below, eventually


class Quiet:
    """A reporter that only notes warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def phase(self, part: str, text: str, elapsed_s: float) -> None:
        return

    def ready(self, part: str, elapsed_s: float) -> None:
        return

    def note(self, text: str) -> None:
        return

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def spec_of(tmp_path: Path, name: str, port: int, *options: str, grace_s: float = 1.0) -> PartSpec:
    argv = [sys.executable, str(CHILD), "--port", str(port), *options]
    log, record = tmp_path / "logs" / f"{name}.log", tmp_path / f"{name}-run" / "record.json"
    child = ChildSpec(name, argv, dict(os.environ), log, record, grace_s)
    return PartSpec("engine", child, f"http://127.0.0.1:{port}", "/health", 120.0, Restart.ON_FAILURE)


@pytest.mark.parametrize("pause_s", [0.0, 0.01])
async def test_cancelled_while_its_process_starts(tmp_path: Path, pause_s: float) -> None:
    """Ctrl-C in the milliseconds between the start of the guard and its first note: `stop` knows it."""
    before = set(below(os.getpid()))
    never_ready = spec_of(tmp_path, "a-0", free_port(), "--delay-s", "600")
    part = Part(never_ready, Quiet(), lambda: None)
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


async def test_guard_that_does_not_get_to_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that hangs: the limit for getting ready holds for this too, and nothing is left."""
    os.mkfifo(tmp_path / "guard.py")  # Python waits for its program
    monkeypatch.setattr("anbar.adapters.process.guarded._GUARD", tmp_path / "guard.py")
    before = set(below(os.getpid()))
    spec = replace(spec_of(tmp_path, "a-0", free_port()), ready_timeout_s=0.2)
    with pytest.raises(StackError, match=r"a-0 was not ready after \d+ s"):
        await Part(spec, Quiet(), lambda: None).start()
    assert set(below(os.getpid())) - before == set()


async def test_guard_is_known_before_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher may be killed while a guard has not come to its command: the state file names it."""
    os.mkfifo(tmp_path / "guard.py")  # Python waits for its program
    monkeypatch.setattr("anbar.adapters.process.guarded._GUARD", tmp_path / "guard.py")
    states: list[PartState | None] = []
    part = Part(spec_of(tmp_path, "a-0", free_port()), Quiet(), lambda: states.append(part.state()))
    starting = asyncio.create_task(part.start())
    await eventually(lambda: states)
    assert states[0] is not None
    assert states[0].pid is None
    assert is_alive(states[0].guard)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await part.stop()
    assert not is_alive(states[0].guard)


async def test_no_guard_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part died, and starting it again takes too long before there is a guard: tried again, until one
    comes up."""
    monkeypatch.setattr("anbar.apps.stack.part._FIRST_PAUSE_S", 0.01)
    before = set(below(os.getpid()))
    reporter = Quiet()
    part = Part(spec_of(tmp_path, "a-0", free_port()), reporter, lambda: None)
    await part.start()
    first = part.state()
    in_time, part.spec = part.spec, replace(part.spec, ready_timeout_s=0.0)
    part.stop_now()
    watching = asyncio.create_task(part.watch())
    await eventually(lambda: watching.done() or any("not ready" in text for text in reporter.warnings))
    assert not watching.done()
    assert part.state() == replace(first, ready=False)
    part.spec = in_time
    await eventually(lambda: part.state().ready)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await part.stop()
    assert set(below(os.getpid())) - before == set()


async def test_stop_now_does_not_wait(tmp_path: Path) -> None:
    """An engine that ignores SIGTERM and has ten minutes to end: stopping takes them, unless it is to end
    now."""
    engine_port, router_port = free_ports(2)
    engine = spec_of(tmp_path, "a-0", engine_port, "--ignore-term", grace_s=600.0)
    router = spec_of(tmp_path, "router", router_port)
    stack = Stack(StackPlan(tmp_path, tmp_path / "scratch", (engine,), router, {}, ()), Quiet())
    before = set(below(os.getpid()))
    await stack.start()
    stopping = asyncio.create_task(stack.stop())
    await eventually(lambda: "stopping: SIGTERM" in engine.child.log.read_text())
    assert not stopping.done()
    stack.stop_now()
    await stopping
    assert set(below(os.getpid())) - before == set()


@pytest.fixture
def reporter() -> Quiet:
    return Quiet()


@pytest.fixture
async def stack(tmp_path: Path, reporter: Quiet) -> AsyncIterator[Stack]:
    """One engine and a router, both `fake_child.py`, and started."""
    engine_port, router_port = free_ports(2)
    engine, router = spec_of(tmp_path, "a-0", engine_port), spec_of(tmp_path, "router", router_port)
    made = Stack(StackPlan(tmp_path, tmp_path / "scratch", (engine,), router, {}, ()), reporter)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def kill_router(tmp_path: Path) -> None:
    record = tmp_path / "router-run" / "record.json"
    await eventually(record.exists)
    os.kill(json.loads(record.read_text())["main"], signal.SIGKILL)


async def test_router_that_cannot_be_started_for_a_while(
    tmp_path: Path, stack: Stack, reporter: Quiet
) -> None:
    """Its log cannot be opened, as when the disk is full: tried again until it can."""
    watching = asyncio.create_task(stack.watch())
    logs = tmp_path / "logs"
    logs.rename(tmp_path / "aside")
    logs.touch()
    await kill_router(tmp_path)
    await eventually(lambda: any("router could not be started" in text for text in reporter.warnings))
    assert not (tmp_path / "router-run" / "record.json").exists()
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
        await watching
