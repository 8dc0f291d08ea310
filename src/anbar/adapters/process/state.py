"""What a running stack leaves on disk, so that the next launcher can tell, and remove, what is left of it."""

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from anbar.adapters.process.proc import ProcessId, entry_of, is_alive
from anbar.core.errors import StackError

STATE_FILE = "state.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class PartState:
    """One child of the launcher. `kind` is "engine", "emulated" or "router"; `pid` leads the command's
    process group, None until that runs, or when it could not be run. `record` is the guard's own note of
    processes and shared memory; `shm` are the names in /dev/shm that the part has by agreement. `ready`: it
    has served since it was started."""

    name: str
    kind: str
    pid: int | None
    port: int
    guard: ProcessId
    record: str
    log: str
    url: str
    shm: tuple[str, ...] = ()
    ready: bool = False


@dataclass(frozen=True, slots=True)
class StackState:
    """A running stack. `boot` tells apart the pids of different boots of the machine; `scratch_dir` holds the
    sockets and temporary files of its parts."""

    launcher: ProcessId
    boot: str
    scratch_dir: str
    endpoint: str
    parts: tuple[PartState, ...] = field(default=())


def current_boot() -> str:
    """An id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def self_id() -> ProcessId:
    """This process."""
    entry = entry_of(os.getpid())
    assert entry is not None, "a process sees itself in /proc"
    return entry.id


def write_state(path: Path, state: StackState) -> None:
    """Atomically: a reader sees the old state or the new one."""
    parts = [
        {
            "name": part.name,
            "kind": part.kind,
            "pid": part.pid,
            "port": part.port,
            "guard": list(part.guard),
            "record": part.record,
            "log": part.log,
            "url": part.url,
            "shm": list(part.shm),
            "ready": part.ready,
        }
        for part in state.parts
    ]
    data = {
        "version": _VERSION,
        "launcher": list(state.launcher),
        "boot": state.boot,
        "scratch_dir": state.scratch_dir,
        "endpoint": state.endpoint,
        "parts": parts,
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=2) + "\n")
    fresh.replace(path)


def read_state(path: Path) -> StackState | None:
    """None when there is no state. Raises StackError for a file that is not one: then nothing is touched."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    try:
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']}")
        parts = tuple(
            PartState(
                name=part["name"],
                kind=part["kind"],
                pid=part["pid"] or None,  # a process that was not known was 0 once
                port=part["port"],
                guard=ProcessId(*part["guard"]),
                record=part["record"],
                log=part["log"],
                url=part["url"],
                shm=tuple(part["shm"]),
                ready=part.get("ready", False),
            )
            for part in data["parts"]
        )
        return StackState(
            launcher=ProcessId(*data["launcher"]),
            boot=data["boot"],
            scratch_dir=data["scratch_dir"],
            endpoint=data["endpoint"],
            parts=parts,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(
            f"{path} is not a state file of this version ({error}); if no stack of it runs, remove the file"
        ) from error


def running(state_dir: Path) -> StackState | None:
    """The stack that runs on this state directory; None when none does."""
    if not state_dir.is_dir():
        return None
    state = read_state(state_dir / STATE_FILE)
    if state is None or state.boot != current_boot() or not is_alive(state.launcher):
        return None
    return state


class StateLock:
    """Held by the launcher for its whole life; the kernel releases it whatever ends the launcher."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "lock"
        self._file: TextIO | None = None

    def acquire(self) -> bool:
        """False when another launcher holds it."""
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        return True

    def holder(self) -> int | None:
        """The pid in the lock's file: for a message only."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._path.read_text())
        return None

    def release(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
