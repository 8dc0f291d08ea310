"""A packed table of blocks: one row each, found by either of two 64-bit hashes.

A row takes 36 bytes and its share of two hash tables, 8: dicts of Python integers take five times as much.
Each hash table is a *linear hash* (Litwin 1980): rows with equal low bits are linked, and every new row adds
one bucket by splitting the oldest unsplit one. So there is never a rehash, and nothing that takes longer the
larger the table is; the columns themselves grow through `realloc`, which moves pages, not bytes.

Single rows are found with plain Python on `array`, many at once with numpy over the same memory.
"""

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

NONE = -1
"""No row."""

_UNLINKED = -2
_FIRST_BUCKETS = 64


class LinearHash:
    """Finds rows by the values in one column. A row is linked at most once at a time."""

    def __init__(self, hashes: "array[int]") -> None:
        self._hashes = hashes
        self._heads = array("i", [NONE]) * _FIRST_BUCKETS
        self.links = array("i")
        """row → the next one of its bucket, or NONE; `_UNLINKED` for a row that is in none."""
        self._low = _FIRST_BUCKETS
        """A power of two; the buckets from it on are split off those below: `low <= len(heads) < 2 * low`."""
        self._num_linked = 0

    def __len__(self) -> int:
        return self._num_linked

    def grow(self) -> None:
        """A row was added to the column; it is not linked."""
        self.links.append(_UNLINKED)

    def is_linked(self, row: int) -> bool:
        return self.links[row] != _UNLINKED

    def find(self, value: int) -> int:
        """The row of a value, or NONE."""
        heads = self._heads
        bucket = value & (2 * self._low - 1)
        if bucket >= len(heads):
            bucket -= self._low
        row = heads[bucket]
        while row >= 0 and self._hashes[row] != value:
            row = self.links[row]
        return row

    def link(self, row: int) -> None:
        """Make a row be found by its value, which no other linked row has."""
        assert self.links[row] == _UNLINKED, "the row is linked"
        self._num_linked += 1
        if self._num_linked > len(self._heads):
            self._split()
        bucket = self._bucket(self._hashes[row])
        self.links[row] = self._heads[bucket]
        self._heads[bucket] = row

    def unlink(self, row: int) -> None:
        """Make a linked row be found no more."""
        nexts = self.links
        bucket = self._bucket(self._hashes[row])
        at = self._heads[bucket]
        if at == row:
            self._heads[bucket] = nexts[row]
        else:
            while nexts[at] != row:
                at = nexts[at]
            nexts[at] = nexts[row]
        nexts[row] = _UNLINKED
        self._num_linked -= 1

    def find_many(self, values: Hashes) -> npt.NDArray[np.int64]:
        """The row of each value, NONE for those that are not there."""
        heads, nexts = np.frombuffer(self._heads, np.int32), np.frombuffer(self.links, np.int32)
        hashes = np.frombuffer(self._hashes, np.uint64)
        buckets = (values & np.uint64(2 * self._low - 1)).astype(np.int64)
        buckets[buckets >= len(heads)] -= self._low
        rows = heads[buckets].astype(np.int64)
        open_ = np.flatnonzero(rows >= 0)
        while open_.size:
            open_ = open_[hashes[rows[open_]] != values[open_]]
            rows[open_] = nexts[rows[open_]]
            open_ = open_[rows[open_] >= 0]
        return rows

    def check_integrity(self) -> None:
        """Raise AssertionError if a row is in a wrong bucket, or in none, or the buckets do not add up."""
        assert self._low <= len(self._heads) < 2 * self._low, "the number of buckets does not fit"
        seen: set[int] = set()
        for bucket, row in enumerate(self._heads):
            while row >= 0:
                assert row not in seen, "a row is linked twice"
                seen.add(row)
                assert self._bucket(self._hashes[row]) == bucket, "a row is in a wrong bucket"
                row = self.links[row]  # noqa: PLW2901
        linked = {row for row in range(len(self.links)) if self.is_linked(row)}
        assert seen == linked, "a row says that it is linked, and is not"
        assert len(seen) == self._num_linked
        assert len({self._hashes[row] for row in seen}) == len(seen), "two rows have one value"

    def _bucket(self, value: int) -> int:
        bucket = value & (2 * self._low - 1)
        return bucket if bucket < len(self._heads) else bucket - self._low

    def _split(self) -> None:
        """Add a bucket; the rows that belong there are in the one bucket `low` below it."""
        hashes, nexts = self._hashes, self.links
        new = len(self._heads)
        wide = 2 * self._low - 1
        row = self._heads[new - self._low]
        stay = go = NONE
        while row >= 0:
            following = nexts[row]
            if hashes[row] & wide == new:
                nexts[row] = go
                go = row
            else:
                nexts[row] = stay
                stay = row
            row = following
        self._heads[new - self._low] = stay
        self._heads.append(go)
        if new == wide:
            self._low *= 2


class RowQueue:
    """Some rows in the order in which they were put here; each operation takes constant time, and never
    longer because there are many. A row is in at most one of the queues over the same columns."""

    def __init__(self, before: "array[int]", after: "array[int]") -> None:
        self._before = before
        self._after = after
        self._last = NONE
        self._num_rows = 0
        self.first = NONE
        """The row that has been here longest, or NONE."""

    def __len__(self) -> int:
        return self._num_rows

    def __iter__(self) -> Iterator[int]:
        row = self.first
        while row >= 0:
            yield row
            row = self._after[row]

    def append(self, row: int) -> None:
        """Put a row that is in no queue behind all others."""
        assert self._before[row] == _UNLINKED, "the row is in a queue"
        self._before[row], self._after[row] = self._last, NONE
        if self._last >= 0:
            self._after[self._last] = row
        else:
            self.first = row
        self._last = row
        self._num_rows += 1

    def discard(self, row: int) -> None:
        """Take a row out if it is in a queue, which is then this one."""
        before, after = self._before[row], self._after[row]
        if before == _UNLINKED:
            return
        if before >= 0:
            self._after[before] = after
        else:
            self.first = after
        if after >= 0:
            self._before[after] = before
        else:
            self._last = before
        self._before[row] = _UNLINKED
        self._num_rows -= 1


class BlockRows:
    """Rows with two names and a number: an engine's hash of a block (`keys`), Anbar's chain hash of it
    (`chains`), and `marks`, whose meaning is the caller's. A row is found by its key from the start, and by
    its chain once it was named."""

    def __init__(self) -> None:
        self.keys = array("Q")
        self.chains = array("Q")
        self.marks = array("I")
        self.by_key = LinearHash(self.keys)
        self.by_chain = LinearHash(self.chains)
        self._free = array("i")
        self._before = array("i")
        self._after = array("i")

    def __len__(self) -> int:
        """Rows in use."""
        return len(self.by_key)

    @property
    def num_allocated(self) -> int:
        """Rows that there is memory for; those that are not in use are used again first."""
        return len(self.keys)

    def add(self, key: int) -> int:
        """A row for a key that has none, with the mark 0 and no chain."""
        if self._free:
            row = self._free.pop()
            self.keys[row] = key
        else:
            row = len(self.keys)
            self.keys.append(key)
            self.chains.append(0)
            self.marks.append(0)
            self._before.append(_UNLINKED)
            self._after.append(NONE)
            self.by_key.grow()
            self.by_chain.grow()
        self.by_key.link(row)
        return row

    def name(self, row: int, chain: int) -> None:
        """Say what an unnamed row stands for; no other row may stand for it."""
        self.chains[row] = chain
        self.by_chain.link(row)

    def is_named(self, row: int) -> bool:
        return self.by_chain.is_linked(row)

    def queue(self) -> RowQueue:
        """A new queue of rows of this table."""
        return RowQueue(self._before, self._after)

    def drop(self, row: int) -> None:
        """Free a row; its mark must be 0, and it is in no queue."""
        assert self._before[row] == _UNLINKED, "the row is in a queue"
        assert not self.marks[row], "the row is still marked"
        self.by_key.unlink(row)
        if self.by_chain.is_linked(row):
            self.by_chain.unlink(row)
        self._free.append(row)

    def marks_view(self, first: int, last: int) -> npt.NDArray[np.uint32]:
        """The marks of rows `first`..`last` (exclusive) as they are in memory. Must be let go before a row is
        added."""
        return np.frombuffer(self.marks, np.uint32)[first:last]

    def named_first(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
        """The same rows, those that have a chain before the others, and how many these are."""
        named = np.frombuffer(self.by_chain.links, np.int32)[rows] != _UNLINKED
        return np.concatenate((rows[named], rows[~named])), int(named.sum())

    def rows(self) -> Iterator[int]:
        """The rows in use; for tests, it walks everything."""
        return (row for row in range(len(self.keys)) if self.by_key.is_linked(row))

    def check_integrity(self) -> None:
        """Raise AssertionError if the table contradicts itself; for tests, it walks everything."""
        self.by_key.check_integrity()
        self.by_chain.check_integrity()
        free = set(self._free)
        assert len(free) == len(self._free), "a row is free twice"
        assert free.isdisjoint(self.rows()), "a free row is found"
        assert len(free) + len(self) == len(self.keys), "a row is neither free nor in use"
        assert all(self.marks[row] == 0 for row in free), "a free row is marked"
        assert not any(self.by_chain.is_linked(row) for row in free), "a free row has a chain"
