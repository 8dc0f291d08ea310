"""Which blocks are where, for engines whose block hashes mean the same.

Every place where a block can be has one bit, a *slot*: a cache group on one engine's device, in its host
memory, or in one store. A block's residency is a set of slots, and blocks share these sets
(`anbar.route.masks`), so a block that ten engines hold costs no more memory than one that a single engine
holds, and asking «who has it» is one lookup.

Blocks are named twice: by the engines' hash, in events, and by Anbar's own chain hash, in requests. The low
64 bits stand for an engine's hash: that is what vLLM 0.32 publishes by default. A row (`anbar.route.rows`) is

- *held*: its set of slots is not empty. It has a chain, or is *parked*: no device event has explained its
  hash yet;
- *unheld*: it has a chain and is nowhere. Its name is remembered for a while;
- *emptied*: all its slots were cleared at once. `sweep` visits such rows a few at a time and makes them
  unheld, or frees those that were parked, so that no restart of an engine stops the router.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anbar.core.ids import ChainHash, EngineHash
from anbar.route.masks import EMPTY, Masks
from anbar.route.match import Run, runs_of
from anbar.route.rows import NONE, BlockRows, Hashes

HashKey = int
"""The low 64 bits of an engine's block hash."""

VECTOR_BLOCKS = 64
"""From how many blocks on numpy is faster than a loop."""

SWEEP_ROWS = 512
"""Rows that one call of `sweep` tidies up at most: about a millisecond."""

_SWEEP_SLICE = 4096
"""Rows that are looked at together."""


def hash_key(engine_hash: EngineHash) -> HashKey:
    """The key of a hash published as bytes (whole digest) or as an integer (its low 64 bits): the same."""
    return int.from_bytes(engine_hash[-8:], "big")


@dataclass(frozen=True, slots=True)
class ResidencyLimits:
    """Bounds on what is remembered."""

    max_blocks: int = 4_000_000
    """Blocks in all, wherever they are: what is new beyond is not taken in, which predicts too little and
    never too much. About 46 bytes each."""

    max_parked: int = 100_000
    """Hashes that a host or storage event named and no device event has explained yet."""

    max_unheld: int = 100_000
    """Hashes that no place holds now. A block's store into host memory is reported after the device has
    dropped it, so its name must outlive the device's copy for a while."""


@dataclass(slots=True)
class Room:
    """What all residencies of an index may take together."""

    max_rows: int
    num_rows: int = 0


class Residency:
    """See the module's text. Not thread-safe. Every operation on one block takes constant time."""

    def __init__(self, limits: ResidencyLimits, room: Room | None = None) -> None:
        self._limits = limits
        self._room = room if room is not None else Room(limits.max_blocks)
        self._rows = BlockRows()
        self._masks = Masks()
        self._copies: dict[int, dict[int, int]] = {}
        """slot → row → copies beyond the first: device blocks and offload events may repeat a hash."""
        self._unheld = self._rows.queue()
        self._parked = self._rows.queue()
        self._cursor = 0
        """The row at which `sweep` goes on."""
        self.num_conflicts = 0
        """Device events whose hash already stands for other content."""
        self.num_parked_dropped = 0
        self.num_unknown_removed = 0
        """Removals of blocks that were not known to be there."""
        self.num_refused = 0
        """Blocks that there was no room for."""

    @property
    def num_rows(self) -> int:
        """Blocks that take memory: held, parked, unheld and emptied."""
        return len(self._rows)

    @property
    def num_blocks(self) -> int:
        """Distinct blocks that are somewhere."""
        return max(0, len(self._rows) - len(self._unheld) - len(self._parked) - self._masks.num_emptied)

    @property
    def num_parked(self) -> int:
        return len(self._parked)

    def chain_of(self, key: HashKey) -> ChainHash | None:
        """What `key` stands for, if a device event has said so."""
        row = self._rows.by_key.find(key)
        named = row >= 0 and self._rows.is_named(row)
        return ChainHash(self._rows.chains[row]) if named else None

    def runs(self, chain: Sequence[ChainHash]) -> list[Run]:
        """The slots that hold each block of a chain, in runs."""
        if len(chain) < VECTOR_BLOCKS or not self._rows.num_allocated:
            return runs_of(self._masks_of(chain))
        rows = self._rows.by_chain.find_many(np.array(chain, np.uint64))
        marks = np.where(rows >= 0, self._rows.marks_view(0, self._rows.num_allocated)[rows], EMPTY)
        ends = [*(np.flatnonzero(marks[1:] != marks[:-1]) + 1).tolist(), len(chain)]
        return [
            Run(end, self._masks[number])
            for end, number in zip(ends, marks[np.array(ends) - 1].tolist(), strict=True)
        ]

    def num_leading(self, chain: Sequence[ChainHash], slots: int) -> int:
        """How many blocks, from the first on, all of `slots` (a mask) hold. For short chains: from
        `VECTOR_BLOCKS` on `runs` is faster."""
        find, marks, masks = self._rows.by_chain.find, self._rows.marks, self._masks
        for place, block in enumerate(chain):
            row = find(block)
            if row < 0 or masks[marks[row]] & slots != slots:
                return place
        return len(chain)

    def _masks_of(self, chain: Sequence[ChainHash]) -> list[int]:
        """`mask_of` each block."""
        marks, sets = self._rows.marks, self._masks.sets
        return [sets[marks[row]] if row >= 0 else 0 for row in map(self._rows.by_chain.find, chain)]

    def mask_of(self, block: ChainHash) -> int:
        """The slots that hold a block."""
        row = self._rows.by_chain.find(block)
        return self._masks[self._rows.marks[row]] if row >= 0 else 0

    def store(self, keys: Sequence[HashKey], chain: Sequence[ChainHash], slot: int) -> None:
        """A device event: what the hashes stand for, and one copy of each in `slot`. Ends at the first that
        contradicts what is known (counted), or for which there is no room."""
        for key, block in zip(keys, chain, strict=True):
            row = self._learn(key, block)
            if row < 0:
                return
            self._put(row, slot)

    def add(self, key: HashKey, slot: int) -> None:
        """One more copy in `slot`; parked when the hash is not known."""
        row = self._find_or_park(key)
        if row >= 0:
            self._put(row, slot)

    def hint(self, key: HashKey, slot: int, older: int) -> None:
        """The store of `slot` holds the block; `older` is the mask of the slots of the same store that
        stand for earlier times. Repetitions count once."""
        row = self._find_or_park(key)
        if row >= 0:
            mask = self._masks[self._rows.marks[row]]
            self._set(row, mask & ~older | 1 << slot)

    def remove(self, key: HashKey, slot: int) -> None:
        """One copy less in `slot`; the removal of what is not there is counted."""
        row = self._rows.by_key.find(key)
        mask = self._masks[self._rows.marks[row]] if row >= 0 else 0
        if not mask >> slot & 1:
            self.num_unknown_removed += 1
        elif not self._take_copy(row, slot):
            self._set(row, mask & ~(1 << slot))

    def remove_hint(self, key: HashKey, slots: int) -> None:
        """The store whose slots are the mask `slots` does not hold the block any more."""
        row = self._rows.by_key.find(key)
        mask = self._masks[self._rows.marks[row]] if row >= 0 else 0
        if mask & slots:
            self._set(row, mask & ~slots)
        else:
            self.num_unknown_removed += 1

    def refute(self, chain: Iterable[ChainHash], slots: int) -> int:
        """Take blocks out of the stores in `slots` (a mask) because they turned out not to be there. Returns
        how many blocks changed."""
        changed = 0
        for block in chain:
            row = self._rows.by_chain.find(block)
            mask = self._masks[self._rows.marks[row]] if row >= 0 else 0
            if mask & slots:
                self._set(row, mask & ~slots)
                changed += 1
        return changed

    def clear(self, slots: int) -> None:
        """Empty all slots of a mask, at once. What this leaves behind is for `sweep`."""
        self._masks.clear(slots)
        for slot in [slot for slot in self._copies if slots >> slot & 1]:
            del self._copies[slot]

    def sweep(self, max_rows: int = SWEEP_ROWS) -> None:
        """Tidy up after `clear`, a bounded number of rows at a time; nothing if there is nothing left."""
        while max_rows > 0 and self._masks.stale:
            first = self._cursor if self._cursor < self._rows.num_allocated else 0
            marks = self._rows.marks_view(first, first + _SWEEP_SLICE)
            found = np.flatnonzero(np.isin(marks, list(self._masks.stale)))
            self._cursor = first + len(marks)
            if len(found) > max_rows:
                found = found[:max_rows]
                self._cursor = first + int(found[-1]) + 1
            del marks
            for row in (found + first).tolist():
                self._tidy(row)
            max_rows -= len(found) + _SWEEP_SLICE // SWEEP_ROWS

    def rows_in(self, slots: int) -> tuple[Hashes, Hashes, npt.NDArray[np.int64]]:
        """The blocks that have one of `slots`, as the keys of all, the chains of those that have one, which
        come first, and their rows, good until something changes."""
        if not len(self._rows):
            none = np.empty(0, np.uint64)
            return none, none, np.empty(0, np.int64)
        marks = self._rows.marks_view(0, self._rows.num_allocated)
        found = np.flatnonzero(np.isin(marks, list(self._masks.containing(slots))))
        rows, num_named = self._rows.named_first(found)
        keys, chains = (np.frombuffer(column, np.uint64) for column in (self._rows.keys, self._rows.chains))
        return keys[rows], chains[rows[:num_named]], rows

    def within(self, rows: npt.NDArray[np.int64], slot: int) -> tuple[npt.NDArray[np.int64], dict[int, int]]:
        """Which of `rows` have `slot`, as indices into them, and index → copies beyond the first."""
        if not len(rows):
            return rows, {}
        marks = self._rows.marks_view(0, self._rows.num_allocated)[rows]
        indices = np.flatnonzero(np.isin(marks, list(self._masks.containing(1 << slot))))
        copies = self._copies.get(slot, {})
        at = {row: index for index, row in enumerate(rows.tolist()) if row in copies} if copies else {}
        return indices, {at[row]: count for row, count in copies.items()}

    def restore(self, key: HashKey, chain: ChainHash | None, slot: int, copies: int, place: int) -> None:
        """A block in `slot`, as a snapshot has it, unless it is in a slot of the mask `place` already."""
        row = self._find_or_park(key) if chain is None else self._learn(key, chain)
        if row < 0:
            return
        mask = self._masks[self._rows.marks[row]]
        if mask & place:
            return
        self._set(row, mask | 1 << slot)
        if copies:
            self._copies.setdefault(slot, {})[row] = copies

    def release(self) -> None:
        """Give back the room taken; the residency is of no more use."""
        self._room.num_rows -= len(self._rows)

    def count(self, slots: int) -> int:
        """How many blocks have one of `slots`, parked ones included."""
        counts = self._masks.counts()
        return sum(counts.get(number, 0) for number in self._masks.containing(slots))

    def check_integrity(self) -> None:
        """Raise AssertionError if the tables contradict each other; for tests, it walks everything."""
        rows, masks = self._rows, self._masks
        unheld_rows, parked_rows = set(self._unheld), set(self._parked)
        assert len(unheld_rows) == len(self._unheld), "a queue is broken"
        assert len(parked_rows) == len(self._parked), "a queue is broken"
        rows.check_integrity()
        masks.check_integrity()
        counts: dict[int, int] = {}
        for row in rows.rows():
            mark = rows.marks[row]
            counts[mark] = counts.get(mark, 0) + bool(mark)
            assert rows.is_named(row) != (row in parked_rows), (
                "a row is neither explained nor parked, or both"
            )
            assert (row in unheld_rows) == (mark == EMPTY), "a row is lost, or both held and not"
        counts.pop(EMPTY, None)
        assert counts == masks.counts(), "the rows of a set are miscounted"
        for slot, copies in self._copies.items():
            for row, count in copies.items():
                assert count > 0, "a count of no copies is kept"
                assert masks[rows.marks[row]] >> slot & 1, "copies are counted where there is none"
        assert len(self._parked) <= self._limits.max_parked
        assert len(self._unheld) <= self._limits.max_unheld
        assert len(rows) <= self._room.num_rows <= self._room.max_rows

    def _learn(self, key: HashKey, chain: ChainHash) -> int:
        """The row of a hash that a device event explains, to be held at once; NONE if that contradicts what
        is known (counted) or there is no room. What was parked under it is then where it said."""
        rows = self._rows
        row = rows.by_key.find(key)
        if row >= 0 and rows.is_named(row):
            if rows.chains[row] == chain:
                return row
            self.num_conflicts += 1
            return NONE
        other = rows.by_chain.find(chain)
        if other >= 0:
            if self._masks[rows.marks[other]]:
                self.num_conflicts += 1
                return NONE
            self._drop(other)  # a name of a former life
        if row < 0:
            row = self._new_row(key)
            if row < 0:
                return NONE
        else:
            self._parked.discard(row)
        rows.name(row, chain)
        return row

    def _find_or_park(self, key: HashKey) -> int:
        row = self._rows.by_key.find(key)
        if row >= 0:
            return row
        row = self._new_row(key)
        if row < 0:
            return NONE
        self._parked.append(row)
        if len(self._parked) > self._limits.max_parked:
            oldest = self._parked.first
            self._drop(oldest)
            self.num_parked_dropped += 1
            if oldest == row:
                return NONE
        return row

    def _put(self, row: int, slot: int) -> None:
        mask = self._masks[self._rows.marks[row]]
        if mask >> slot & 1:
            copies = self._copies.setdefault(slot, {})
            copies[row] = copies.get(row, 0) + 1
        else:
            self._set(row, mask | 1 << slot)

    def _set(self, row: int, mask: int) -> None:
        """Give a row its set of slots, with all that follows when it becomes empty or not."""
        marks = self._rows.marks
        before = marks[row]
        marks[row] = self._masks.move(before, mask)
        if not mask:
            self._let_go(row)
        elif before == EMPTY and self._rows.is_named(row):
            self._unheld.discard(row)

    def _let_go(self, row: int) -> None:
        """Remember a row that nothing holds for a while, then forget it; one that is parked at once."""
        if not self._rows.is_named(row):
            self._drop(row)
            return
        self._unheld.append(row)
        if len(self._unheld) > self._limits.max_unheld:
            self._drop(self._unheld.first)

    def _take_copy(self, row: int, slot: int) -> bool:
        copies = self._copies.get(slot, {})
        left = copies.pop(row, 0) - 1
        if left > 0:
            copies[row] = left
        return left >= 0

    def _tidy(self, row: int) -> None:
        mark = self._rows.marks[row]
        if self._masks.is_emptied(mark):
            self._set(row, 0)
        elif mark in self._masks.stale:
            self._rows.marks[row] = self._masks.refresh(mark)

    def _new_row(self, key: HashKey) -> int:
        room = self._room
        if room.num_rows >= room.max_rows and not self._make_room():
            self.num_refused += 1
            return NONE
        room.num_rows += 1
        return self._rows.add(key)

    def _make_room(self) -> bool:
        """Forget the name of a block that is nowhere, if there is one."""
        if not len(self._unheld):
            self.sweep()
        if len(self._unheld):
            self._drop(self._unheld.first)
        return self._room.num_rows < self._room.max_rows

    def _drop(self, row: int) -> None:
        """Forget a row and all that was said of it."""
        rows = self._rows
        (self._unheld if rows.is_named(row) else self._parked).discard(row)
        if rows.marks[row]:
            for copies in self._copies.values():
                copies.pop(row, None)
            rows.marks[row] = self._masks.move(rows.marks[row], 0)
        rows.drop(row)
        self._room.num_rows -= 1
