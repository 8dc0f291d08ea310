"""Bits for the places where blocks can be (`anbar.route.residency`)."""

from collections.abc import Iterable

from anbar.core.events import Tier

Place = tuple[str, Tier, int]
"""Holder (an engine's id, or a store's owner), tier, cache group."""


class Slots:
    """Gives each place the lowest free bit, so that masks stay small integers.

    A place whose blocks grow old has one bit for each *epoch*, a number that grows with time, in which some
    were announced: all that was last announced in one epoch ends together.
    """

    def __init__(self) -> None:
        self._slots: dict[Place, dict[int, int]] = {}
        """place → epoch → slot."""
        self._masks: dict[Place, int] = {}
        self._free: list[int] = []
        self._num_slots = 0
        self.version = 0
        """Another number whenever the bits of some place are others."""

    def slot(self, place: Place, epoch: int = 0) -> int:
        """The slot of a place, given out now if it has none."""
        epochs = self._slots.setdefault(place, {})
        known = epochs.get(epoch)
        if known is None:
            if self._free:
                known = self._free.pop()
            else:
                known, self._num_slots = self._num_slots, self._num_slots + 1
            epochs[epoch] = known
            self._masks[place] = self._masks.get(place, 0) | 1 << known
            self.version += 1
        return known

    def bits(self, place: Place) -> int:
        """The mask of one place, of all its epochs; 0 if nothing was ever put there."""
        return self._masks.get(place, 0)

    def mask(self, holder: str, tiers: Iterable[Tier]) -> int:
        """The mask of all groups of a holder on `tiers`."""
        wanted = set(tiers)
        mask = 0
        for (name, tier, _), bits in self._masks.items():
            if name == holder and tier in wanted:
                mask |= bits
        return mask

    def of(self, holder: str) -> list[tuple[Place, int, int]]:
        """All places of a holder with epoch and slot."""
        return [
            (place, epoch, slot)
            for place, epochs in self._slots.items()
            if place[0] == holder
            for epoch, slot in epochs.items()
        ]

    def ended(self, tier: Tier, first_epoch: int) -> int:
        """Take back the slots of epochs before `first_epoch` on a tier; their mask, to be cleared."""
        mask = 0
        self.version += 1
        for place, epochs in self._slots.items():
            if place[1] is tier:
                for epoch in [epoch for epoch in epochs if epoch < first_epoch]:
                    slot = epochs.pop(epoch)
                    self._free.append(slot)
                    self._masks[place] &= ~(1 << slot)
                    mask |= 1 << slot
        return mask

    def release(self, holder: str) -> None:
        """Give a holder's slots back; the caller has cleared them."""
        self.version += 1
        for place in [place for place in self._slots if place[0] == holder]:
            self._free.extend(self._slots.pop(place).values())
            del self._masks[place]
