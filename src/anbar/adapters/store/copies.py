"""Copies that are written afterwards: repairs, promotions, and what a write-back store owes its lower layers.

They wait in memory, bounded in bytes, one thread for each part writes them, and nobody waits for that. What
waits is lost when the process is killed.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NewType

from anbar.tier.store import PutItem, Scope

Moment = NewType("Moment", int)
"""Between which two removals something was read."""

Entry = tuple[Scope, bytes]
Write = Callable[[int, Scope, list[PutItem]], None]

_BATCH_BYTES = 16 * 1024 * 1024
"""Moved by one call on a part: enough to keep its threads busy."""


class Copies:
    """Thread-safe. `write` writes items into a part, within a deadline of its own."""

    def __init__(self, num_parts: int, write: Write, max_bytes: int) -> None:
        self._write = write
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: list[OrderedDict[Entry, PutItem]] = [OrderedDict() for _ in range(num_parts)]
        self._running: list[Collection[Entry]] = [()] * num_parts
        self._num_bytes = 0
        self._num_removals = 0
        self._num_removing = 0
        self._closing = False

    def start(self) -> None:
        """Start the threads; daemons, since nothing waits for what they do."""
        for part in range(len(self._waiting)):
            threading.Thread(
                target=self._work, args=(part,), name=f"anbar-copies-{part}", daemon=True
            ).start()

    def now(self) -> Moment:
        """To be taken before something is read that may be offered."""
        with self._changed:
            return Moment(self._num_removals)

    def offer(self, scope: Scope, item: PutItem, parts: Collection[int], since: Moment) -> bool:
        """Copy the value and write it into `parts` some time; False, and nothing is done, when too much waits
        already, or something was removed after `since`: it could be this."""
        num_bytes = item.data.nbytes * len(parts)
        with self._changed:
            if not self._may_take(since) or self._num_bytes + num_bytes > self._max_bytes:
                return False
            self._num_bytes += num_bytes
        entry, copy = (scope, item.key), replace(item, data=memoryview(bytes(item.data)))
        with self._changed:
            may_take = self._may_take(since)
            for part in parts:
                if may_take and entry not in self._waiting[part]:
                    self._waiting[part][entry] = copy
                else:
                    self._num_bytes -= copy.data.nbytes
            self._changed.notify_all()
        return may_take

    @contextmanager
    def removing(self, scope: Scope, keys: Collection[bytes] | None, timeout_s: float) -> Iterator[bool]:
        """While something of a scope (`keys` None: all of it) is removed from the parts: what waits of it is
        dropped, and nothing is taken. Yields whether what was just being written has ended in time."""
        wanted = None if keys is None else set(keys)

        def is_meant(entry: Entry) -> bool:
            return entry[0] == scope and (wanted is None or entry[1] in wanted)

        with self._changed:
            self._num_removals += 1
            self._num_removing += 1
            for waiting in self._waiting:
                for entry in [entry for entry in waiting if is_meant(entry)]:
                    self._num_bytes -= waiting.pop(entry).data.nbytes
            has_ended = self._changed.wait_for(
                lambda: not any(is_meant(entry) for running in self._running for entry in running), timeout_s
            )
        try:
            yield has_ended
        finally:
            with self._changed:
                self._num_removals += 1  # what was read meanwhile may be gone as well
                self._num_removing -= 1

    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        with self._changed:
            return not any(self._waiting) and not any(self._running)

    def close(self, flush_s: float) -> int:
        """Take no more, give the threads so long to write what waits, and end them. Returns how many copies
        were not written."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(self._waiting) and not any(self._running), flush_s)
            num_left = sum(map(len, self._waiting)) + sum(map(len, self._running))
            for waiting in self._waiting:
                waiting.clear()
            return num_left

    def _may_take(self, since: Moment) -> bool:
        return not self._closing and not self._num_removing and since == self._num_removals

    def _work(self, part: int) -> None:
        waiting = self._waiting[part]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: waiting or self._closing)
                if not waiting:
                    return
                scope, items = self._take(waiting)
                self._running[part] = [(scope, item.key) for item in items]
            try:
                self._write(part, scope, items)
            finally:
                with self._changed:
                    self._running[part] = ()
                    self._num_bytes -= sum(item.data.nbytes for item in items)
                    self._changed.notify_all()

    @staticmethod
    def _take(waiting: OrderedDict[Entry, PutItem]) -> tuple[Scope, list[PutItem]]:
        """The entries that wait longest, of one scope."""
        items: list[PutItem] = []
        scope, num_bytes = next(iter(waiting))[0], 0
        while waiting and num_bytes < _BATCH_BYTES and next(iter(waiting))[0] == scope:
            _, item = waiting.popitem(last=False)
            items.append(item)
            num_bytes += item.data.nbytes
        return scope, items
