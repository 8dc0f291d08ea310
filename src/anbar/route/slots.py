"""Bits for the places where blocks can be (`anbar.route.residency`)."""

from collections.abc import Iterable

from anbar.core.events import Tier

Place = tuple[str, Tier, int]
"""Holder (an engine's id, or a store's owner), tier, cache group."""


class Slots:
    """Gives each place the lowest free bit, so that masks stay small integers."""

    def __init__(self) -> None:
        self._slots: dict[Place, int] = {}
        self._free: list[int] = []

    def slot(self, place: Place) -> int:
        """The slot of a place, given out now if it has none."""
        known = self._slots.get(place)
        if known is None:
            known = self._free.pop() if self._free else len(self._slots)
            self._slots[place] = known
        return known

    def bit(self, place: Place) -> int:
        """The mask of one place; 0 if nothing was ever put there."""
        slot = self._slots.get(place)
        return 1 << slot if slot is not None else 0

    def mask(self, holder: str, tiers: Iterable[Tier]) -> int:
        """The mask of all groups of a holder on `tiers`."""
        wanted = set(tiers)
        mask = 0
        for (name, tier, _), slot in self._slots.items():
            if name == holder and tier in wanted:
                mask |= 1 << slot
        return mask

    def release(self, holder: str) -> None:
        """Give a holder's slots back; the caller has cleared them."""
        for place in [place for place in self._slots if place[0] == holder]:
            self._free.append(self._slots.pop(place))
