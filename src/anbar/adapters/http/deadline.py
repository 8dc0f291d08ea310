"""A timer that is cheap to move: each connection has one and moves it with almost every read."""

import asyncio
from collections.abc import Callable


class Deadline:
    """Calls `expired` once, `set` seconds after the last `set`, unless cleared or moved before.

    Moving it later is an assignment; the loop's timer is re-armed only when it fires too early.
    """

    __slots__ = ("_at_s", "_expired", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._at_s: float | None = None
        self._handle: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        """Expire `delay_s` seconds from now."""
        at_s = self._loop.time() + delay_s
        self._at_s = at_s
        handle = self._handle
        if handle is not None and handle.when() > at_s:
            handle.cancel()
            handle = None
        if handle is None:
            self._handle = self._loop.call_at(at_s, self._fire)

    def put_off(self, delay_s: float) -> None:
        """As `set`, where it is set already and not for later than that."""
        self._at_s = self._loop.time() + delay_s

    def clear(self) -> None:
        """Do not expire until set again. The loop's timer stays and finds nothing to do."""
        self._at_s = None

    def close(self) -> None:
        """Release the loop's timer."""
        self._at_s = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        if self._at_s is None:
            return
        if self._loop.time() < self._at_s - 1e-3:
            self._handle = self._loop.call_at(self._at_s, self._fire)
            return
        self._at_s = None
        self._expired()
