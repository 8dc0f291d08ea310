"""Which engines are drained by a call: the same in all routers of an exchange, by the latest word.

A word is about an engine for as long as that is in the fleet. Once it has left, what comes back under its
name is another one: nobody would look for a reason why it gets nothing.
"""

from collections.abc import Callable

from anbar.apps.router.changes import Drains
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.engine_admin import set_draining
from anbar.apps.router.sharing import Tell
from anbar.core.outcome import Emit

LATER_S = 1e-3


class DrainWords:
    """`wall_s` gives seconds since 1970: the machines' clocks decide between words of several machines."""

    def __init__(self, wall_s: Callable[[], float], tell: Tell) -> None:
        self._wall_s = wall_s
        self._tell = tell
        self._latest: dict[str, Drains] = {}

    def all(self) -> list[Drains]:
        """For a router that comes late."""
        return list(self._latest.values())

    def told(self, engine: Engine) -> None:
        """Somebody has drained an engine here, or ended that."""
        known, at_s = self._latest.get(engine.id), self._wall_s()
        if known is not None:  # it comes after what was heard, also where another machine's clock is ahead
            at_s = max(at_s, known.at_s + LATER_S)
        word = Drains(engine.id, engine.draining, at_s)
        self._latest[engine.id] = word
        self._tell(word)

    def heard(self, word: Drains, fleet: Fleet, emit: Emit) -> None:
        """Another router tells; an older word than the one that is known is passed over."""
        known = self._latest.get(word.engine)
        if known is not None and known.at_s >= word.at_s:
            return
        self._latest[word.engine] = word
        for engine in fleet:
            if engine.id == word.engine:
                set_draining(engine, word.draining, emit, "by an admin call at another router")

    def left(self, engine: str) -> None:
        """It is not in the fleet any more."""
        self._latest.pop(engine, None)

    def is_drained(self, engine: str) -> bool:
        known = self._latest.get(engine)
        return known is not None and known.draining
