"""The guard: whatever ends, and however, nothing of a guarded command is left."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anbar.adapters.process import proc
from anbar.adapters.process.guarded import ChildSpec, GuardedProcess
from tests.unit.stack.processes import CHILD, below, eventually


def spec_of(tmp_path: Path, *options: str, grace_s: float = 5.0) -> ChildSpec:
    return ChildSpec(
        name="child",
        argv=[sys.executable, str(CHILD), *options],
        env=dict(os.environ),
        log=tmp_path / "child.log",
        record=tmp_path / "child.json",
        grace_s=grace_s,
    )


async def started(spec: ChildSpec, num_processes: int) -> tuple[GuardedProcess, list[proc.ProcessId]]:
    guarded = GuardedProcess(spec)
    await guarded.start()
    await eventually(lambda: "started" in spec.log.read_text())
    await eventually(lambda: len(below(guarded.guard.pid)) == num_processes)
    return guarded, below(guarded.guard.pid)


@pytest.fixture
async def no_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Whatever a test does, it may not leave a process of its own: known by a variable that all inherit."""
    mark = f"TEST_PLACE={tmp_path}"
    monkeypatch.setenv(*mark.split("=", 1))
    yield

    def ours() -> list[int]:
        found = []
        for entry in proc.all_entries():
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{entry.id.pid}/environ").read_bytes().split(b"\0")
                if mark.encode() in environ and not entry.zombie:
                    found.append(entry.id.pid)
        return found

    await eventually(lambda: not ours())


pytestmark = pytest.mark.usefixtures("no_leftovers")


async def test_exit_status_and_log_pass_through(tmp_path: Path) -> None:
    """A command that fails by itself: its status and its words reach the launcher."""
    guarded = GuardedProcess(spec_of(tmp_path, "--exit-code", "7"))
    await guarded.start()
    assert await guarded.wait() == 7
    assert "something went wrong" in guarded.log_tail()
    assert not (tmp_path / "child.json").exists()


async def test_stop_ends_stubborn_grandchildren(tmp_path: Path) -> None:
    """SIGTERM ends the command; its children ignore SIGTERM and one generation left the session."""
    guarded, processes = await started(spec_of(tmp_path, "--children", "2", "--own-session"), 3)
    (main,) = (process for process in processes if process.pid == guarded.pid)
    guarded.begin_stop()
    await eventually(lambda: not proc.is_alive(main))
    guarded.kill()  # do not wait for the grace
    assert await guarded.wait() == 128 + signal.SIGTERM
    assert not any(proc.is_alive(process) for process in processes)


async def test_grace_ends_with_sigkill(tmp_path: Path) -> None:
    """The command itself ignores SIGTERM: it gets SIGKILL after the grace, not before."""
    guarded, _ = await started(spec_of(tmp_path, "--ignore-term", grace_s=0.5), 1)
    begin = time.monotonic()
    await guarded.stop()
    assert time.monotonic() - begin >= 0.5
    assert await guarded.wait() == 128 + signal.SIGKILL


async def test_kill_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    """The command ignores SIGTERM and has ten minutes; asked to end at once, it does not get them."""
    guarded, processes = await started(spec_of(tmp_path, "--ignore-term", "--children", "1", grace_s=600), 2)
    guarded.begin_stop()
    await eventually(lambda: "stopping: SIGTERM" in guarded.log_tail())
    guarded.kill()
    assert await guarded.wait() == 128 + signal.SIGKILL
    assert not any(proc.is_alive(process) for process in processes)


async def test_memory_made_just_before_the_end(tmp_path: Path) -> None:
    """A segment that the guard had no occasion to see is found when the command is told to end."""
    spec = spec_of(tmp_path, "--shm")
    guarded = GuardedProcess(spec)
    await guarded.start()
    os.kill(guarded.guard.pid, signal.SIGSTOP)
    await eventually(lambda: "started" in spec.log.read_text())
    guarded.begin_stop()
    os.kill(guarded.guard.pid, signal.SIGCONT)
    assert await guarded.wait() == 128 + signal.SIGTERM
    assert not (Path("/dev/shm") / spec.log.read_text().split("shm ")[1].split()[0]).exists()


async def test_pid_is_the_commands(tmp_path: Path) -> None:
    """Known when `start` returns, however long the guard took, and never that of somebody else's group."""
    guarded = GuardedProcess(spec_of(tmp_path))
    assert guarded.pid is None
    await guarded.start()
    assert guarded.pid is not None
    assert os.getpgid(guarded.pid) == guarded.pid != os.getpgid(0)
    assert guarded.pid in [process.pid for process in below(guarded.guard.pid)]
    guarded.kill()
    await guarded.wait()


async def test_a_guard_that_is_slow_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`start` waits for the command without a limit of its own, and can be cancelled; then `stop` ends what
    was started."""
    fifo = tmp_path / "guard.py"
    os.mkfifo(fifo)  # Python waits for its program
    monkeypatch.setattr("anbar.adapters.process.guarded._GUARD", fifo)
    guarded = GuardedProcess(spec_of(tmp_path))
    there_is_one = asyncio.Event()
    starting = asyncio.create_task(guarded.start(there_is_one.set))
    await there_is_one.wait()
    guard = guarded.guard
    assert proc.is_alive(guard)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert starting.cancelled()
    assert guarded.pid is None
    await guarded.stop()
    assert not proc.is_alive(guard)


LAUNCHER = """
import asyncio, os, sys
from pathlib import Path
from anbar.adapters.process.guarded import ChildSpec, GuardedProcess
from tests.unit.stack.processes import CHILD, below, eventually

async def main(log, record, *command):
    guarded = GuardedProcess(ChildSpec("child", command, dict(os.environ), Path(log), Path(record), 0.5))
    await guarded.start()
    print(guarded.guard.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


def launch(tmp_path: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """A launcher in its own process, and the pid of its guard."""
    places = [str(tmp_path / "child.log"), str(tmp_path / "child.json")]
    command = [sys.executable, str(CHILD), *options]
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *places, *command], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        return process, int(output.readline())


async def test_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of the launcher, with a command and grandchildren that ignore SIGTERM and shared memory."""
    launcher, guard = launch(tmp_path, "--ignore-term", "--shm", "--children", "2")
    try:
        log = tmp_path / "child.log"
        await eventually(lambda: "started" in log.read_text() and len(below(guard)) >= 3)
        entry = proc.entry_of(guard)
        assert entry is not None
        guard_id = entry.id
        shm = Path("/dev/shm") / log.read_text().split("shm ")[1].split()[0]
        assert shm.exists()
        processes = [guard_id, *below(guard)]
    finally:
        launcher.kill()
        launcher.wait()
    await eventually(lambda: not any(proc.is_alive(one) for one in processes))
    assert not shm.exists()


async def test_killed_command_leaves_no_shared_memory(tmp_path: Path) -> None:
    """SIGKILL of the command alone, as the kernel does when memory is short: its segment is removed."""
    spec = spec_of(tmp_path, "--shm")
    guarded, _ = await started(spec, 2)  # the second is Python's resource tracker
    await eventually(lambda: spec.record.exists() and "psm_" in spec.record.read_text())
    (name,) = json.loads(spec.record.read_text())["shm"]
    assert guarded.pid is not None
    os.kill(guarded.pid, signal.SIGKILL)
    assert await guarded.wait() == 128 + signal.SIGKILL
    assert not (Path("/dev/shm") / name).exists()


async def test_killed_guard_takes_the_command_along(tmp_path: Path) -> None:
    """Even the guard may be killed: the command gets SIGTERM from the kernel."""
    guarded, processes = await started(spec_of(tmp_path), 1)
    os.kill(guarded.guard.pid, signal.SIGKILL)
    await guarded.wait()
    await eventually(lambda: not any(proc.is_alive(process) for process in processes))


@pytest.mark.parametrize(
    ("name", "reason"), [("missing", "No such file or directory"), ("directory", "Permission denied")]
)
async def test_what_cannot_be_run(tmp_path: Path, name: str, reason: str) -> None:
    """A command that does not exist, or is none: status 127 and a reason in the log."""
    (tmp_path / "directory").mkdir()
    command = str(tmp_path / name)
    guarded = GuardedProcess(ChildSpec("child", [command], {}, tmp_path / "log", tmp_path / "record", 1.0))
    await guarded.start()
    assert guarded.pid is None
    assert await guarded.wait() == 127
    assert guarded.log_tail().endswith(f"cannot run {command}: {reason}")


async def test_log_is_rotated(tmp_path: Path) -> None:
    """The log of the life before stays readable as `.1`."""
    for _ in range(2):
        guarded = GuardedProcess(spec_of(tmp_path, "--exit-code", "1"))
        await guarded.start()
        await guarded.wait()
    assert (tmp_path / "child.log.1").read_text() == (tmp_path / "child.log").read_text() != ""
