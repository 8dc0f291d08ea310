"""The time by which a store dates its entries: close to the system's, but it never jumps.

Ages of entries span restarts and engines, so they need a wall clock; and a wall clock is set by people and by
NTP, a day forward or back. By it, a day forward would expire everything, a day back would keep everything a
day longer. So this clock runs by the kernel's time since boot, which nobody sets, and approaches the wall
clock by at most a tenth of the time that passes. A file in the store's root carries it on to other engines on
the machine and over their restarts. After a reboot, and on other machines, the wall clock is where it begins.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FILE = ".clock"
_MAX_SLEW = 0.1
_MAX_S = 2.0**33
"""The year 2242: what is later, or no number, is damage."""


def since_boot_s() -> float:
    """Seconds since the machine was booted, also while it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Name of this boot of this machine; empty where it cannot be told, which no other boot matches."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Where time comes from."""

    wall_s: Callable[[], float] = time.time
    steady_s: Callable[[], float] = since_boot_s
    boot: Callable[[], str] = boot_id


class StoreClock:
    """Thread-safe. Until the first `sync` it is the wall clock of when it was made, and goes on steadily."""

    def __init__(self, root: Path, source: TimeSource | None = None) -> None:
        self._path = root / _FILE
        self._source = source or TimeSource()
        self._boot = self._source.boot()
        self._lock = threading.Lock()
        self._joined = False
        self._at_s = self._source.steady_s()
        self._base_s = self._source.wall_s()

    def now_s(self) -> float:
        """Seconds since the epoch."""
        with self._lock:
            return self._base_s + (self._source.steady_s() - self._at_s)

    def age_s(self, mtime_s: float) -> float:
        """Age of what the *system's* clock has dated: the lesser one where the clocks differ, so that what is
        young is never taken for old."""
        return min(self.now_s(), self._source.wall_s()) - mtime_s

    def sync(self, *, write: bool) -> None:
        """Join the others' time at the first call, approach the wall clock, and tell others when `write`.
        What cannot be read or written costs only the agreement."""
        with self._lock:
            if not self._joined:
                self._join()
            steady_s = self._source.steady_s()
            passed_s = steady_s - self._at_s
            now_s = self._base_s + passed_s
            slew_s = _MAX_SLEW * passed_s
            self._base_s = now_s + min(slew_s, max(-slew_s, self._source.wall_s() - now_s))
            self._at_s = steady_s
            text = json.dumps({"boot": self._boot, "steady_s": self._at_s, "now_s": self._base_s})
        if write and self._boot:
            with suppress(OSError):
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "w") as file:
                    file.write(text)

    def _join(self) -> None:
        try:
            told = json.loads(self._path.read_text())
            at_s, base_s = float(told["steady_s"]), float(told["now_s"])
            is_ours = bool(self._boot) and told["boot"] == self._boot
        except FileNotFoundError:
            self._joined = True
            return
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._joined = True
        if is_ours and at_s <= self._source.steady_s() and 0.0 <= base_s < _MAX_S:
            self._at_s, self._base_s = at_s, base_s
