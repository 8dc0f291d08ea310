"""An event loop as far as servers and pools use it, with timers that go by a clock which stands still."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class Timer:
    """Stands for asyncio.TimerHandle."""

    at_s: float
    callback: Callable[[], None]
    cancelled: bool = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.cancelled = True


class ManualTimers:
    """The running loop, but time passes only by `advance`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now_s = 1000.0
        self._timers: list[Timer] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now_s

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(at_s, callback)
        self._timers.append(timer)
        return timer

    def advance(self, delay_s: float) -> None:
        """Let time pass, and call what is due in its order."""
        until_s = self._now_s + delay_s
        while due := [t for t in self._timers if not t.cancelled and t.at_s <= until_s]:
            timer = min(due, key=Timer.when)
            self._timers.remove(timer)
            self._now_s = max(self._now_s, timer.at_s)
            timer.callback()
        self._now_s = until_s
