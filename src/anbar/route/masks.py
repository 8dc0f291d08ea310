"""Small numbers for the sets of places where blocks are.

Few sets are in use at a time, and most blocks share them, so a row of the table holds a set's number. A place
that is emptied at once (an engine restarted) is taken out of the sets themselves, not of the rows: that takes
time in proportion to the sets, not to the blocks.
"""

from collections.abc import Iterator

EMPTY = 0
"""The number of the empty set that rows are given. A set that `clear` emptied keeps its number until its rows
were visited, and is `is_emptied`."""


class Masks:
    """Sets of slots as integers, numbered, with the count of rows that have each number."""

    def __init__(self) -> None:
        self.sets = [0]
        """number → the set. Others may look, not change it."""
        self._counts = [0]
        self._numbers = {0: EMPTY}
        """mask → its number; `clear` can give two numbers one mask, then only one of them is here."""
        self._free: list[int] = []
        self.stale: set[int] = set()
        """Numbers whose rows want another one: `clear` emptied the set, or made it equal to another one's."""
        self.num_emptied = 0
        """Rows whose set was emptied by `clear`."""

    def __getitem__(self, number: int) -> int:
        return self.sets[number]

    def __len__(self) -> int:
        """Numbers in use or reserved."""
        return len(self.sets)

    def is_emptied(self, number: int) -> bool:
        return number != EMPTY and not self.sets[number]

    def move(self, number: int, mask: int) -> int:
        """A row leaves the set of `number` for `mask`: the number to give it."""
        new = self._numbers.get(mask)
        if new is None:
            new = self._number(mask)
        if new:
            self._counts[new] += 1
        if number:
            self._leave(number)
        return new

    def refresh(self, number: int) -> int:
        """The number to give a row whose number is stale."""
        mask = self.sets[number]
        if mask and self._numbers.setdefault(mask, number) == number:
            self.stale.discard(number)
            return number
        return self.move(number, mask)

    def clear(self, slots: int) -> None:
        """Take slots out of every set."""
        for number, mask in enumerate(self.sets):
            if not mask & slots:
                continue
            if self._numbers.get(mask) == number:
                del self._numbers[mask]
            left = mask & ~slots
            self.sets[number] = left
            if not left:
                self.num_emptied += self._counts[number]
            if left and self._numbers.setdefault(left, number) == number:
                self.stale.discard(number)
            else:
                self.stale.add(number)

    def containing(self, slots: int) -> Iterator[int]:
        """The numbers of all sets that hold one of `slots`."""
        return (number for number, mask in enumerate(self.sets) if mask & slots)

    def counts(self) -> dict[int, int]:
        """number → rows, of those in use; for tests."""
        return {number: count for number, count in enumerate(self._counts) if count}

    def check_integrity(self) -> None:
        """Raise AssertionError if numbers, sets and counts do not fit."""
        for mask, number in self._numbers.items():
            assert self.sets[number] == mask, "a set is found under a number that is not its own"
        emptied = sum(count for number, count in enumerate(self._counts) if number and not self.sets[number])
        assert emptied == self.num_emptied, "emptied rows are miscounted"
        free = set(self._free)
        for number, count in enumerate(self._counts[1:], start=1):
            assert (count == 0) == (number in free), "a number is in use without rows, or free with some"
            known = self._numbers.get(self.sets[number]) == number
            assert count == 0 or known != (number in self.stale), (
                "a number is neither found nor stale, or both"
            )
        assert self.stale.isdisjoint(free), "a free number is stale"

    def _number(self, mask: int) -> int:
        if self._free:
            new = self._free.pop()
            self.sets[new] = mask
        else:
            new = len(self.sets)
            self.sets.append(mask)
            self._counts.append(0)
        self._numbers[mask] = new
        return new

    def _leave(self, number: int) -> None:
        self._counts[number] -= 1
        mask = self.sets[number]
        if not mask:
            self.num_emptied -= 1
        if not self._counts[number]:
            if mask and self._numbers.get(mask) == number:
                del self._numbers[mask]
            self.sets[number] = 0
            self.stale.discard(number)
            self._free.append(number)
