"""Keeps the last damaged entries aside in the server, so that someone can see what damaged them.

Best effort, within the deadline of the call that found them. What is not kept is removed.
"""

import threading
from collections import deque
from collections.abc import Sequence

from anbar.adapters.store.quarantine import MAX_AGE_S, MAX_BYTES, MAX_FILES
from anbar.adapters.store.valkey.commands import KeepAside, Read, remove, renew
from anbar.adapters.store.valkey.exchange import Exchange
from anbar.core.clock import Clock
from anbar.tier.store import Outcome

_DEPTH = 256
"""These commands and their replies are short."""


class Allowance:
    """What one engine may keep aside: `MAX_FILES` entries of `MAX_BYTES` together in `MAX_AGE_S`.
    Thread-safe. An entry counts when it is to be kept, whether or not that is done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[tuple[float, int]] = deque()

    def admit(self, num_bytes: int) -> bool:
        """Whether one more may be kept."""
        now_s = self._clock.now_s()
        with self._lock:
            while self._kept and now_s - self._kept[0][0] >= MAX_AGE_S:
                self._kept.popleft()
            total_bytes = num_bytes + sum(size for _, size in self._kept)
            if len(self._kept) >= MAX_FILES or total_bytes > MAX_BYTES:
                return False
            self._kept.append((now_s, num_bytes))
            return True


class Damaged:
    """Of one store."""

    def __init__(self, exchange: Exchange, clock: Clock) -> None:
        self._exchange = exchange
        self._allowance = Allowance(clock)

    def take(self, reads: Sequence[Read], scope_ttl_s: int | None, deadline_s: float) -> None:
        """Keep what `reads` found to be damaged, a week or as long as the scope lets anything live, or remove
        it. A time to live comes first: nothing is ever kept without one."""
        if not reads:
            return
        age_s = int(MAX_AGE_S if scope_ttl_s is None else min(MAX_AGE_S, scope_ttl_s))
        kept = [read.name for read in reads if self._allowance.admit(read.num_bytes)]
        timed = self._exchange.run([renew(name, age_s) for name in kept], deadline_s, _DEPTH)
        kept = [name for name, found in zip(kept, timed, strict=True) if found is Outcome.HIT]
        moved = self._exchange.run([KeepAside(name) for name in kept], deadline_s, _DEPTH)
        aside = {name for name, found in zip(kept, moved, strict=True) if found is Outcome.HIT}
        rest = [remove(read.name) for read in reads if read.name not in aside]
        self._exchange.run(rest, deadline_s, _DEPTH)
