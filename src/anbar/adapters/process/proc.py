"""Processes and shared memory as /proc tells of them. Standard library only: the guard imports this.

A process is named by its pid *and* its start time, so that a pid that the kernel gave to another process is
never taken for ours.
"""

import contextlib
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
SHM = Path("/dev/shm")

_OURS = re.compile(r"(?:psm_|sem\.mp-|vllm_offload_|vllm_dist_|torch_)[\w.:\[\]\-]+$")
"""Names under which Python's multiprocessing, torch and vLLM create shared memory."""


class ProcessId(NamedTuple):
    """One life of a pid: `start` is in clock ticks since boot (field 22 of /proc/PID/stat)."""

    pid: int
    start: int


class ProcessEntry(NamedTuple):
    """A line of the process table; `zombie` has ended and waits for its parent."""

    id: ProcessId
    parent: int
    session: int
    zombie: bool


def entry_of(pid: int) -> ProcessEntry | None:
    """The process table's entry of `pid`; None if there is none."""
    try:
        # The name in it may hold anything: a bracket, or half a letter where the kernel cut it at 15 bytes.
        text = (_PROC / str(pid) / "stat").read_text("ascii", "replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessEntry(ProcessId(pid, int(fields[19])), int(fields[1]), int(fields[3]), fields[0] in "ZX")


def all_entries() -> list[ProcessEntry]:
    """All processes that can be seen."""
    pids = (int(name) for name in os.listdir(_PROC) if name.isdigit())
    return [entry for entry in map(entry_of, pids) if entry is not None]


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs (a zombie does not)."""
    entry = entry_of(process.pid)
    return entry is not None and entry.id == process and not entry.zombie


def send_signal(process: ProcessId, number: int) -> None:
    """Send a signal to this very process: a pid handle opened before the check cannot move to another. Does
    nothing when it has ended."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def descendants(pid: int, entries: Iterable[ProcessEntry]) -> list[ProcessEntry]:
    """Children of `pid`, their children, and so on."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry)
    found: list[ProcessEntry] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [entry.id.pid for entry in below]
    return found


def shm_of(pid: int) -> set[str]:
    """Names in /dev/shm of what `pid` has mapped now, where they are of the kinds that engines create.

    Compared by inode: the C library makes a semaphore under a temporary name and links it to its own, so the
    maps of the process that made it show a name that is gone.
    """
    try:
        with (_PROC / str(pid) / "maps").open(encoding="utf-8", errors="replace") as maps:
            inodes = {int(line.split(None, 5)[4]) for line in maps if "/dev/shm/" in line}
        if not inodes:
            return set()
        with os.scandir(SHM) as entries:
            return {
                entry.name
                for entry in entries
                if entry.inode() in inodes and _OURS.match(entry.name) is not None
            }
    except OSError:
        return set()


def remove_shm(names: Iterable[str]) -> list[str]:
    """Remove these names from /dev/shm where they are ours by owner and kind; the removed ones."""
    removed = []
    for name in names:
        path = SHM / name
        if _OURS.match(name) is None:
            continue
        try:
            if path.lstat().st_uid == os.getuid():
                path.unlink()
                removed.append(name)
        except OSError:
            continue
    return removed
