"""How much was used since the last use of a key: distances in an LRU stack (Mattson et al. 1970)."""

_SLOTS = 1 << 12


class StackDistances:
    """For each key the weight of all keys used since its last use, itself included: with weights of 1 its
    place in an LRU stack, 1 for the same again.

    O(log n) for each use, n being the number of different keys: uses stand in a row of slots, a Fenwick tree
    (Fenwick 1994) sums the weights of those which are some key's last. When the row is full it is made anew
    without the others.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """Slot and weight of each key's last use."""
        self._tree = [0] * (_SLOTS + 1)
        self._next = 1
        self._total = 0

    def __len__(self) -> int:
        return len(self._last)

    def distance(self, key: int) -> int | None:
        """The distance of a use of `key` now; None: it was never used."""
        last = self._last.get(key)
        return None if last is None else self._total - self._up_to(last[0] - 1)

    def use(self, key: int, weight: int = 1) -> None:
        """`key` is used, and weighs `weight` from now on."""
        if self._next == len(self._tree):
            self._renumber()
        slot, before = self._last.get(key, (0, 0))
        if slot:
            self._add(slot, -before)
        self._add(self._next, weight)
        self._total += weight - before
        self._last[key] = (self._next, weight)
        self._next += 1

    def _renumber(self) -> None:
        keys = sorted(self._last.items(), key=lambda item: item[1])
        size = max(_SLOTS, 2 * len(keys))
        tree = [0] * (size + 1)
        for slot, (key, (_, weight)) in enumerate(keys, 1):
            self._last[key] = (slot, weight)
            tree[slot] = weight
        for slot in range(1, size + 1):
            parent = slot + (slot & -slot)
            if parent <= size:
                tree[parent] += tree[slot]
        self._tree, self._next = tree, len(keys) + 1

    def _add(self, slot: int, weight: int) -> None:
        tree, size = self._tree, len(self._tree)
        while slot < size:
            tree[slot] += weight
            slot += slot & -slot

    def _up_to(self, slot: int) -> int:
        tree, total = self._tree, 0
        while slot:
            total += tree[slot]
            slot &= slot - 1
        return total
