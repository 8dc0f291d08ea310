"""What is left of a killed stack is removed; what only looks like it is not touched."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.process.cleanup import clean_stale, make_scratch_dir, remove_scratch_dir
from anbar.adapters.process.guarded import ChildSpec, GuardedProcess
from anbar.adapters.process.proc import ProcessId, entry_of, is_alive
from anbar.adapters.process.state import (
    PartState,
    StackState,
    StateLock,
    current_boot,
    read_state,
    self_id,
    write_state,
)
from anbar.core.errors import StackError
from tests.unit.stack.processes import CHILD, below, eventually


def part(record: Path, guard: ProcessId, **values: object) -> PartState:
    fields = {
        "name": "a-0",
        "kind": "engine",
        "pid": None,
        "port": 1,
        "log": "x",
        "url": "http://x:1",
        **values,
    }
    return PartState(record=str(record), guard=guard, **fields)  # type: ignore[arg-type]


def state_of(*parts: PartState, boot: str | None = None, scratch_dir: str = "/nonexistent") -> StackState:
    return StackState(ProcessId(1, 1), boot or current_boot(), scratch_dir, "http://x", parts)


@pytest.fixture
def bystander() -> Iterator[ProcessId]:
    """A process that has nothing to do with us."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    entry = entry_of(process.pid)
    assert entry is not None
    yield entry.id
    process.kill()
    process.wait()


async def test_killed_guard_with_stubborn_engine(tmp_path: Path) -> None:
    """Launcher and guard were killed, the engine ignores SIGTERM: ended through the guard's record, and its
    shared memory removed."""
    log, record = tmp_path / "log", tmp_path / "record.json"
    argv = [sys.executable, str(CHILD), "--ignore-term", "--shm", "--children", "1"]
    guarded = GuardedProcess(ChildSpec("a-0", argv, dict(os.environ), log, record))
    await guarded.start()
    await eventually(lambda: "started" in log.read_text())
    await eventually(lambda: record.exists() and "psm_" in record.read_text())
    processes = below(guarded.guard.pid)
    os.kill(guarded.guard.pid, signal.SIGKILL)
    await guarded.wait()
    assert any(is_alive(process) for process in processes)
    shm = log.read_text().split("shm ")[1].split()[0]

    done = clean_stale(state_of(part(record, guarded.guard)), grace_s=0.3)

    assert not any(is_alive(process) for process in processes)
    assert not (Path("/dev/shm") / shm).exists()
    assert not record.exists()
    assert done == ["stopped what was left of a-0", f"removed /dev/shm/{shm} of a-0"]


@pytest.mark.parametrize("boot", [None, "another boot"])
def test_recycled_pids_are_never_killed(tmp_path: Path, bystander: ProcessId, boot: str | None) -> None:
    """The state names a pid that now belongs to somebody else, as guard and as member."""
    recycled = ProcessId(bystander.pid, bystander.start - 1 if boot is None else bystander.start)
    record = tmp_path / "record.json"
    record.write_text(f'{{"members": [[{recycled.pid}, {recycled.start}]], "shm": []}}')
    assert clean_stale(state_of(part(record, recycled), boot=boot), grace_s=0.1) == []
    assert is_alive(bystander)


def test_only_named_shared_memory_of_our_kinds_goes(tmp_path: Path) -> None:
    """A name that engines never use is left alone even when a damaged record holds it."""
    ours = Path("/dev/shm") / f"vllm_offload_anbar-test-{os.getpid()}.mmap"
    other = Path("/dev/shm") / f"somebody-{os.getpid()}"
    for path in (ours, other):
        path.touch()
    try:
        record = tmp_path / "record.json"
        record.write_text(f'{{"members": [], "shm": ["{other.name}", "../etc/passwd"]}}')
        clean_stale(state_of(part(record, ProcessId(1 << 22, 1), shm=(ours.name,))), grace_s=0.1)
        assert not ours.exists()
        assert other.exists()
    finally:
        for path in (ours, other):
            path.unlink(missing_ok=True)


def test_damaged_record(tmp_path: Path) -> None:
    """A record cut off by a full disk counts as empty."""
    record = tmp_path / "record.json"
    record.write_text('{"members": [[1')
    assert clean_stale(state_of(part(record, ProcessId(1 << 22, 1))), grace_s=0.1) == []


def test_scratch_dirs(tmp_path: Path) -> None:
    """Ours goes with all that is in it; links, other people's and other names stay."""
    ours = make_scratch_dir()
    assert ours.stat().st_mode & 0o777 == 0o700
    assert len(str(ours).encode()) + 1 + 48 + 3 + len(".replay") <= 107
    (ours / "below").mkdir()
    (ours / "below" / "file").touch()
    link = ours.with_name(ours.name + "-link")
    link.symlink_to(ours)
    assert not remove_scratch_dir(link)
    link.unlink()
    other = tmp_path / "precious"
    other.mkdir(mode=0o700)
    assert not remove_scratch_dir(other)
    assert remove_scratch_dir(ours)
    assert not ours.exists()
    assert not remove_scratch_dir(ours)
    assert other.exists()


def test_deep_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR may be too deep for sockets."""
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    made = make_scratch_dir()
    assert made.parent == Path("/tmp")
    assert remove_scratch_dir(made)


def test_state_file_round_trip(tmp_path: Path) -> None:
    """What is written is read; a missing file is no state; rubbish is refused, not deleted."""
    path = tmp_path / "state.json"
    assert read_state(path) is None
    for pid in (self_id().pid, None):
        state = state_of(part(tmp_path / "r", self_id(), pid=pid, shm=("vllm_offload_x.mmap",)))
        write_state(path, state)
        assert read_state(path) == state
    path.write_text(path.read_text().replace('"pid": null', '"pid": 0'))  # as it was written once
    assert read_state(path) == state
    path.write_text('{"version": 99}')
    with pytest.raises(StackError, match="not a state file of this version"):
        read_state(path)
    assert path.exists()


def test_lock_is_exclusive_and_ends_with_its_holder(tmp_path: Path) -> None:
    """Two launchers on one state directory: the second sees the first's pid; kill -9 frees the lock."""
    code = (
        "import sys, time; from pathlib import Path; from anbar.adapters.process.state import StateLock\n"
        "print(StateLock(Path(sys.argv[1])).acquire() and 'held', flush=True); time.sleep(600)"
    )
    code = code.replace(
        "StateLock(Path(sys.argv[1])).acquire()", "(l := StateLock(Path(sys.argv[1]))).acquire()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        with holder.stdout as output:
            assert output.readline() == "held\n"
        lock = StateLock(tmp_path)
        assert not lock.acquire()
        assert lock.holder() == holder.pid
    finally:
        holder.kill()
        holder.wait()
    assert lock.acquire()
    lock.release()
    lock.release()
