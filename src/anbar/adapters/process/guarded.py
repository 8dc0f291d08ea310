"""A child process behind a guard, as the launcher sees it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anbar.adapters.process
from anbar.adapters.process.proc import ProcessId, entry_of
from anbar.core.errors import StackError

_GUARD = Path(anbar.adapters.process.__file__).with_name("guard.py")
_GUARD_MARGIN_S = 20.0
"""What a guard may need beyond the grace: see its limits for the rest and for SIGKILL."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run. `env` is the whole environment. Output goes to `log`; what was there moves to `log`.1.
    The guard notes processes and shared memory in `record`. `grace_s` is between SIGTERM and SIGKILL."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    record: Path
    grace_s: float = 10.0


def _nothing() -> None:
    """No listener."""


class GuardedProcess:
    """One life of a child. `start`, then `wait` for its end or `stop` it."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._process: asyncio.subprocess.Process | None = None
        self._id: ProcessId | None = None
        self.pid: int | None = None
        """Leader of the command's process group; None before `start`, and when it could not be started."""

    @property
    def guard(self) -> ProcessId:
        """The guard's pid and start time; only after `start`."""
        if self._id is None:
            raise RuntimeError(f"{self.spec.name} was not started")
        return self._id

    async def start(self, on_guard: Callable[[], None] = _nothing) -> None:
        """Start the guard and, through it, the command: returns when the command runs, or could not be run.
        `on_guard` is called in between, as soon as there is a guard.

        Raises StackError if there can be no guard. May be cancelled; then `stop` ends what was started, if
        `on_guard` was called. If not, it knows of nothing: asyncio has killed the guard that it was about to
        hand over, and a command which that had started already gets SIGTERM, as ever when a guard is killed.
        """
        with contextlib.ExitStack() as open_ends:
            try:
                told, tell = os.pipe()
                open_ends.callback(os.close, told)
                try:
                    self._process = await self._start_guard(tell)
                finally:
                    os.close(tell)
            except OSError as error:
                raise StackError(f"{self.spec.name} could not be started: {error}") from error
            entry = entry_of(self._process.pid)
            self._id = entry.id if entry is not None else ProcessId(self._process.pid, 0)
            on_guard()
            text = await _first_of(told)
            self.pid = int(text) if text else None

    async def _start_guard(self, tell: int) -> asyncio.subprocess.Process:
        spec = self.spec
        for file in (spec.log, spec.record):
            file.parent.mkdir(parents=True, exist_ok=True)
        spec.record.unlink(missing_ok=True)
        if spec.log.exists():
            spec.log.replace(spec.log.with_name(spec.log.name + ".1"))
        options = ["--record", str(spec.record), "--grace-s", str(spec.grace_s), "--tell", str(tell)]
        with spec.log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_GUARD), *options, "--", *spec.argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=dict(spec.env),
                start_new_session=True,
                pass_fds=(tell,),
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> int:
        """Its exit status (128 + n for signal n) when all of its processes have ended."""
        assert self._process is not None, "wait before start"
        code = await self._process.wait()
        return code if code >= 0 else 128 - code

    def begin_stop(self) -> None:
        """SIGTERM for the command, SIGKILL for all of its processes after the grace."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for all of its processes at once."""
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Stop and wait until nothing is left; bounded by the grace and a margin."""
        if self._process is None:
            return
        self.begin_stop()
        try:
            await asyncio.wait_for(self._process.wait(), self.spec.grace_s + _GUARD_MARGIN_S)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()

    def log_tail(self, num_lines: int = 12) -> str:
        """The last lines of the log, for an error message."""
        return tail(self.spec.log, num_lines)


async def _first_of(fd: int) -> bytes:
    """What is first written into a pipe; b"" when its last writer ends without a word."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(fd)
    return os.read(fd, 64)


def tail(path: Path, num_lines: int) -> str:
    """The last lines of a text file, at most 16 KiB; "" when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-num_lines:])
