"""Which engines one entry of the configuration has, as its source tells them look by look. Pure.

- Whatever a good look names is there, and is taken in at once.
- An engine leaves when it was missing in `leave_after` good looks in a row: one that flaps stays.
- A look that fails, or tells only a part, takes nobody away.
- A look that says that nobody is there is believed of a file, whose author means it. In the DNS it is more
  often a mistake than the truth: an engine stays for as long as it answers its health checks, and
  `empty_grace_s` longer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from anbar.config.discover import DiscoverConfig
from anbar.config.found import FoundEngine, Place, Sighting, place_of


@dataclass(slots=True)
class Held:
    """One engine of the entry."""

    found: FoundEngine
    num_missing: int = 0
    """Good looks in a row that did not name it."""
    silent_since_s: float | None = None
    """When it was first seen to fail its health checks while nobody is named; None: it does not."""


class Presence:
    """The engines of one entry, by where they listen."""

    def __init__(self, limits: DiscoverConfig) -> None:
        self.limits = limits
        self._held: dict[Place, Held] = {}
        self.left_out: tuple[Place, ...] = ()
        """Engines that the last good look named beyond `max_engines`."""

    @property
    def held(self) -> Mapping[Place, Held]:
        return self._held

    def saw(self, sighting: Sighting) -> None:
        """A look has succeeded."""
        named = {place_of(found.url): found for found in sighting.engines}
        for place in [place for place in self._held if place not in named]:
            if not sighting.untold:
                self._missing(place)
        known = {place: found for place, found in named.items() if place in self._held}
        for place, found in known.items():
            self._held[place] = Held(found)
        fresh = sorted((place for place in named if place not in known), key=str)
        room = max(0, self.limits.max_engines - len(self._held))
        for place in fresh[:room]:
            self._held[place] = Held(named[place])
        self.left_out = tuple(fresh[room:])

    def saw_nobody(self, now_s: float, answers: Callable[[Place], bool]) -> None:
        """The DNS says that there is no engine. `answers`: does one answer its health checks?"""
        for place, held in list(self._held.items()):
            if answers(place):
                held.silent_since_s = None
            elif held.silent_since_s is None:
                held.silent_since_s = now_s
            elif now_s - held.silent_since_s >= self.limits.empty_grace_s:
                del self._held[place]

    def engines(self) -> Sequence[FoundEngine]:
        """What is known of each."""
        return [held.found for held in self._held.values()]

    def _missing(self, place: Place) -> None:
        held = self._held[place]
        held.silent_since_s = None
        held.num_missing += 1
        if held.num_missing >= self.limits.leave_after:
            del self._held[place]
