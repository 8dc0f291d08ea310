"""Removes what a dead launcher left: only what its state file names, and only where it is still the same.

Guards end their engines by themselves within seconds, so most often this only waits for them. It also holds
when a guard was killed too.
"""

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from anbar.adapters.process import proc
from anbar.adapters.process.proc import ProcessId
from anbar.adapters.process.state import STATE_FILE, PartState, StackState, current_boot, read_state

GRACE_S = 15.0
"""What guards need to end their engines after their launcher died: their grace and what the rest gets."""

_KILL_LIMIT_S = 10.0
"""What a process gets to be gone after SIGKILL: a loaded machine may be slow to let it go."""
_POLL_S = 0.1
_SCRATCH_PREFIX = "anbar-up-"
_MAX_ROOT_BYTES = 28
"""Leaves room in 107 bytes for the directory's own name, an engine's id of 51 and a suffix."""


def clean_stale(state: StackState, *, grace_s: float = GRACE_S) -> list[str]:
    """Remove the remains of `state`, whose launcher is dead; says what it did, a line each.

    Takes no time when nothing is left, else up to `grace_s` and a few seconds.
    """
    done: list[str] = []
    same_boot = state.boot == current_boot()
    records = {part.name: _read_record(Path(part.record)) for part in state.parts}
    if same_boot:
        remaining = [part.name for part in state.parts if _remains(part, records[part.name][0])]
        done += [f"stopped what was left of {name}" for name in remaining]
        _end(state, {name: members for name, (members, _) in records.items()}, grace_s)
    for part in state.parts:
        noted = records[part.name][1] | _read_record(Path(part.record))[1]
        removed = proc.remove_shm({*noted, *part.shm}) if same_boot else []
        done += [f"removed /dev/shm/{name} of {part.name}" for name in removed]
        with contextlib.suppress(FileNotFoundError):
            Path(part.record).unlink()
    if remove_scratch_dir(Path(state.scratch_dir)):
        done.append(f"removed {state.scratch_dir}")
    return done


def ending(state_dir: Path) -> tuple[StackState, list[PartState]] | None:
    """A stack whose launcher is dead while processes of it still live, and the parts that these belong to;
    None otherwise. It takes guards some seconds to end their engines."""
    state = read_state(state_dir / STATE_FILE) if state_dir.is_dir() else None
    if state is None or state.boot != current_boot() or proc.is_alive(state.launcher):
        return None
    parts = [part for part in state.parts if _remains(part, _read_record(Path(part.record))[0])]
    return (state, parts) if parts else None


def make_scratch_dir() -> Path:
    """A new private directory for the sockets and temporary files of one life of a stack.

    Not below the state directory: a socket's path may have 107 bytes at most (Linux, unix(7)), and state
    directories may be deep. Falls back to /tmp when even TMPDIR is deep.
    """
    root = tempfile.gettempdir()
    if len(root.encode()) > _MAX_ROOT_BYTES:
        root = "/tmp"
    return Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=root))


def remove_scratch_dir(path: Path) -> bool:
    """Remove a directory that `make_scratch_dir` made: named so, ours, private, not a link elsewhere."""
    try:
        info = path.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and not info.st_mode & 0o077
    if not private or not path.name.startswith(_SCRATCH_PREFIX):
        return False
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()


def _read_record(path: Path) -> tuple[set[ProcessId], set[str]]:
    try:
        data = json.loads(path.read_text())
        return {ProcessId(*member) for member in data["members"]}, set(data["shm"])
    except (OSError, ValueError, KeyError, TypeError):
        return set(), set()


def _remains(part: PartState, members: Iterable[ProcessId]) -> list[ProcessId]:
    """Processes of the part that still run.

    Beside the recorded ones (pid and start time), what is below them, and what is in their session: a session
    id cannot be given to others while one of its processes lives.
    """
    entries = {entry.id: entry for entry in proc.all_entries() if not entry.zombie}
    known = [member for member in {part.guard, *members} if member in entries]
    found = set(known)
    for member in known:
        found |= {entry.id for entry in proc.descendants(member.pid, entries.values())}
        if entries[member].session == part.guard.pid:
            found |= {entry.id for entry in entries.values() if entry.session == part.guard.pid}
    return sorted(found)


def _end(state: StackState, members: dict[str, set[ProcessId]], grace_s: float) -> None:
    def left() -> list[ProcessId]:
        return [one for part in state.parts for one in _remains(part, members[part.name])]

    for part in state.parts:
        if proc.is_alive(part.guard):
            continue  # it has seen its launcher's end
        for member in _remains(part, members[part.name]):
            proc.send_signal(member, signal.SIGTERM)
    if _until_empty(left, grace_s):
        return
    for part in state.parts:
        if proc.is_alive(part.guard):
            proc.send_signal(part.guard, signal.SIGUSR1)
    if _until_empty(left, 3.0):
        return
    last = left()
    for member in last:
        proc.send_signal(member, signal.SIGKILL)
    # Some are known by a parent only, which may be gone before them.
    _until_empty(lambda: [member for member in last if proc.is_alive(member)], _KILL_LIMIT_S)


def _until_empty(left: Callable[[], list[ProcessId]], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while left():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
