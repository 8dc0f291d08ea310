"""Keeps the last damaged entries aside in the server, so that someone can see what damaged them.

Best effort, within the deadline of the call that found them. What is not kept is removed.
"""

from collections.abc import Sequence

from anbar.adapters.store.allowance import Allowance
from anbar.adapters.store.quarantine import MAX_AGE_S
from anbar.adapters.store.valkey.commands import KeepAside, Read, remove, renew
from anbar.adapters.store.valkey.exchange import Exchange
from anbar.core.clock import Clock
from anbar.tier.store import Outcome

_DEPTH = 256
"""These commands and their replies are short."""


class Damaged:
    """Of one store."""

    def __init__(self, exchange: Exchange, clock: Clock) -> None:
        self._exchange = exchange
        self._allowance = Allowance(clock.now_s)

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
