"""Runs one command and sees to it that nothing of it is left when the launcher or the command ends.

    python guard.py --record FILE --grace-s SECONDS --tell FD -- COMMAND…

- Its standard input is a pipe from the launcher. End of file means that the launcher is gone, whatever ended
  it. Then, and on SIGTERM, the command gets SIGTERM; after the grace, or at once on SIGUSR1, everything
  below the guard gets SIGKILL.
- It writes the command's pid to the descriptor FD and closes it; when it cannot start it, it only closes it.
- It is a subreaper: processes that lose their parent become its children, so none escapes.
- It notes in FILE who the processes are and which shared memory they mapped, and removes what a killed one
  left there. If the guard itself is killed, the command gets SIGTERM, and the next launcher reads FILE.
- It exits with the command's status (128 + n for signal n) when all have ended.

Standard library only, and run by path: it must start in milliseconds and cannot depend on an environment.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import proc  # type: ignore[import-not-found]
else:
    from anbar.adapters.process import proc

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_SCAN_S = 0.05
_SCAN_GROWTH = 1.25
_SCAN_INTERVAL_S = 10.0
"""Engines create shared memory while they start, so scans become rarer: one costs 5 to 10 ms of a core."""
_REST_GRACE_S = 5.0
"""What the rest gets when the command itself ended by itself: vLLM's workers notice within that time."""
_ORPHAN_GRACE_S = 10.0
"""The longest grace when the launcher is gone: nobody waits for answers that still run."""
_KILL_LIMIT_S = 10.0
"""SIGKILL takes effect at once unless a process hangs in the kernel; then waiting longer would not help."""


class Guard:
    """One command, from start to the last of its processes."""

    def __init__(self, command: list[str], record: Path, grace_s: float) -> None:
        self._command = command
        self._record = record
        self._grace_s = grace_s
        self._shm: set[str] = set()
        self._members: set[proc.ProcessId] = set()
        self._noted = ""
        self._status: int | None = None
        self._main = 0
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._scan_pause = _FIRST_SCAN_S

    def run(self, wake: int, tell: int) -> int:
        """Returns the exit status; `wake` is readable after a signal, `tell` is told the command's pid."""
        self._main = _start(self._command)
        with contextlib.suppress(OSError):  # the launcher is gone: it is noticed below
            os.write(tell, str(self._main).encode())
        os.close(tell)
        try:
            ended = self._watch(wake)
        finally:
            self._kill()
        if not ended:
            _say("some processes did not end on SIGKILL")
            return 1
        removed = proc.remove_shm(self._shm)
        if removed:
            _say(f"removed what was left in /dev/shm: {' '.join(removed)}")
        self._record.unlink(missing_ok=True)
        return self._status if self._status is not None else 1

    def _watch(self, wake: int) -> bool:
        """Until no process is left (True) or some cannot be killed (False)."""
        launcher: list[int] = [0]
        while self._reap():
            now = time.monotonic()
            self._scan()
            if self._kill_at is not None and now >= self._kill_at:
                self._kill()
                if self._give_up_at is None:
                    self._give_up_at = now + _KILL_LIMIT_S
                elif now >= self._give_up_at:
                    return False
            readable, _, _ = select.select([*launcher, wake], [], [], self._pause(now))
            arrived = os.read(wake, 4096) if wake in readable else b""
            if signal.SIGUSR1 in arrived:
                self._stop("SIGUSR1", 0.0)
            elif signal.SIGTERM in arrived:
                self._stop("SIGTERM", self._grace_s)
            if 0 in readable and not os.read(0, 4096):
                launcher = []
                self._stop("the launcher is gone", min(self._grace_s, _ORPHAN_GRACE_S))
        return True

    def _pause(self, now: float) -> float:
        if self._give_up_at is not None:
            return 0.05
        self._scan_pause = min(_SCAN_INTERVAL_S, _SCAN_GROWTH * self._scan_pause)
        until = self._scan_pause if self._kill_at is None else max(0.0, self._kill_at - now)
        return min(self._scan_pause, until)

    def _stop(self, reason: str, grace_s: float) -> None:
        limit = time.monotonic() + grace_s
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, limit)
            return
        _say(f"stopping: {reason}")
        self._kill_at = limit
        self._scan()  # what was made since the last one would stay behind
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._main, signal.SIGTERM)

    def _reap(self) -> bool:
        """Collect the ended; False when none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                self._status = code if code >= 0 else 128 - code
                self._end_rest()

    def _end_rest(self) -> None:
        self._scan()
        rest = proc.descendants(os.getpid(), proc.all_entries())
        for entry in rest:
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.id.pid, signal.SIGTERM)
        limit = time.monotonic() + _REST_GRACE_S
        self._kill_at = limit if self._kill_at is None else min(self._kill_at, limit)

    def _scan(self) -> None:
        for entry in proc.descendants(os.getpid(), proc.all_entries()):
            if not entry.zombie:
                self._members.add(entry.id)
                self._shm |= proc.shm_of(entry.id.pid)
        self._members = {member for member in self._members if proc.is_alive(member)}
        noted = {"main": self._main, "members": sorted(self._members), "shm": sorted(self._shm)}
        text = json.dumps(noted)
        if text != self._noted:
            with contextlib.suppress(OSError):  # a full disk must not end what we guard
                fresh = self._record.with_suffix(".new")
                fresh.write_text(text)
                fresh.replace(self._record)
                self._noted = text

    def _kill(self) -> None:
        for entry in proc.descendants(os.getpid(), proc.all_entries()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.id.pid, signal.SIGKILL)


def _start(command: list[str]) -> int:
    guard = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")

    def die_with_guard() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)

    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=die_with_guard,  # noqa: PLW1509 (the guard has one thread)
    )
    child.returncode = 0  # Popen only starts it: `Guard` reaps all children itself
    return child.pid


def _say(what: str) -> None:
    sys.stderr.write(f"anbar guard {os.getpid()}: {what}\n")
    sys.stderr.flush()


def main() -> int:
    """Parse the command line, become the guard."""
    parser = argparse.ArgumentParser(description="run a command that cannot outlive its launcher")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument("--tell", type=int, required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGCHLD,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
    ):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the command would inherit
    try:
        return Guard(options.command, options.record, options.grace_s).run(read, options.tell)
    except OSError as error:
        if error.filename != options.command[0]:
            raise
        _say(f"cannot run {options.command[0]}: {error.strerror}")
        return 127


if __name__ == "__main__":
    sys.exit(main())
