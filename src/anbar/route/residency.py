"""Which blocks are where, for engines whose block hashes mean the same.

Every place where a block can be has one bit, a *slot*: a cache group on one engine's device, in its host
memory, or in one store. A block's residency is an integer, the mask of its slots, so a block that ten
engines hold costs no more memory than one that a single engine holds, and asking «who has it» is one
lookup.

Blocks are named twice: by the engines' hash, in events, and by Anbar's own chain hash, in requests. The
low 64 bits stand for an engine's hash: that is what vLLM 0.32 publishes by default.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from anbar.core.ids import ChainHash, EngineHash

HashKey = int
"""The low 64 bits of an engine's block hash."""


def hash_key(engine_hash: EngineHash) -> HashKey:
    """The key of a hash published as bytes (whole digest) or as an integer (its low 64 bits): the same."""
    return int.from_bytes(engine_hash[-8:], "big")


@dataclass(frozen=True, slots=True)
class ResidencyLimits:
    """Bounds on what is remembered beyond the blocks that are somewhere."""

    max_parked: int = 100_000
    """Hashes that a host or storage event named and no device event has explained yet."""

    max_unheld: int = 100_000
    """Hashes that no place holds now. A block's store into host memory is reported after the device has
    dropped it, so its name must outlive the device's copy for a while."""


class Residency:
    """See the module's text. Not thread-safe. Every operation on one block takes constant time."""

    def __init__(self, limits: ResidencyLimits) -> None:
        self._limits = limits
        self._chains: dict[HashKey, ChainHash] = {}
        self._masks: dict[ChainHash, int] = {}
        self._copies: dict[tuple[ChainHash, int], int] = {}
        """Copies in one slot beyond the first: device blocks and offload events may repeat a hash."""
        self._unheld: dict[HashKey, None] = {}
        self._parked: dict[HashKey, dict[int, int]] = {}
        """hash → slot → copies, oldest hash first."""
        self._expiries: dict[int, dict[HashKey, float]] = {}
        """slot of a store → hash → time of expiry, soonest first, for parked hashes too."""
        self._interned: dict[int, int] = {}
        self.num_conflicts = 0
        """Device events whose hash already stands for other content."""
        self.num_parked_dropped = 0
        self.num_unknown_removed = 0
        """Removals of blocks that were not known to be there."""

    @property
    def num_blocks(self) -> int:
        return len(self._masks)

    @property
    def num_parked(self) -> int:
        return len(self._parked)

    def chain_of(self, key: HashKey) -> ChainHash | None:
        """What `key` stands for, if a device event has said so."""
        return self._chains.get(key)

    def masks(self, chain: Iterable[ChainHash]) -> list[int]:
        """The slots that hold each block of a chain; 0 for a block that is nowhere."""
        get = self._masks.get
        return [get(block, 0) for block in chain]

    def learn(self, key: HashKey, chain: ChainHash) -> bool:
        """Note what a hash stands for and place what was parked under it; False (counted) if it contradicts
        what is known, in which case nothing changes."""
        known = self._chains.get(key)
        if known is not None:
            if known != chain:
                self.num_conflicts += 1
            return known == chain
        if chain in self._masks:
            self.num_conflicts += 1
            return False
        self._chains[key] = chain
        self._release(key, chain)
        for slot, copies in self._parked.pop(key, {}).items():
            for _ in range(copies):
                self.add(key, slot)
        return True

    def add(self, key: HashKey, slot: int) -> None:
        """One more copy in `slot`; parked when the hash is not known."""
        chain = self._chains.get(key)
        if chain is None:
            self._park(key, slot)
            return
        mask = self._masks.get(chain, 0)
        bit = 1 << slot
        if mask & bit:
            self._copies[chain, slot] = self._copies.get((chain, slot), 0) + 1
            return
        if not mask:
            self._unheld.pop(key, None)
        self._set_mask(chain, mask | bit)

    def hint(self, key: HashKey, slot: int, expires_s: float) -> None:
        """The store of `slot` holds the block until it says otherwise, or until `expires_s`.

        Repetitions count once. Times given for one slot must not go back.
        """
        expiries = self._expiries.setdefault(slot, {})
        expiries.pop(key, None)
        chain = self._chains.get(key)
        known = self._masks.get(chain, 0) >> slot & 1 if chain is not None else self._is_parked(key, slot)
        expiries[key] = expires_s
        if not known:
            self.add(key, slot)

    def remove(self, key: HashKey, slot: int) -> None:
        """One copy less in `slot`; the removal of what is not there is counted."""
        self._expiries.get(slot, {}).pop(key, None)
        if not self._take(key, slot):
            self.num_unknown_removed += 1

    def refute(self, chain: Iterable[ChainHash], slots: int) -> int:
        """Take blocks out of the stores in `slots` (a mask) because they turned out not to be there.

        The hashes themselves are let go when their hints expire. Returns how many blocks changed.
        """
        changed = 0
        for block in chain:
            mask = self._masks.get(block, 0)
            if mask & slots:
                self._set_mask(block, mask & ~slots)
                changed += 1
        return changed

    def expire(self, now_s: float) -> None:
        """Drop the hints whose time has come; constant time for each."""
        for slot, expiries in self._expiries.items():
            due = []
            for key, expires_s in expiries.items():
                if expires_s > now_s:
                    break
                due.append(key)
            for key in due:
                del expiries[key]
                self._take(key, slot)

    def clear(self, slots: int) -> None:
        """Empty all slots of a mask; takes time in proportion to everything known."""
        for chain, mask in list(self._masks.items()):
            if mask & slots:
                self._set_mask(chain, mask & ~slots)
        for chain, slot in [entry for entry in self._copies if slots >> entry[1] & 1]:
            del self._copies[chain, slot]
        for key, places in list(self._parked.items()):
            for slot in [slot for slot in places if slots >> slot & 1]:
                del places[slot]
            if not places:
                del self._parked[key]
        for slot in [slot for slot in self._expiries if slots >> slot & 1]:
            del self._expiries[slot]
        for key, chain in list(self._chains.items()):
            self._release(key, chain)

    def check_integrity(self) -> None:
        """Raise AssertionError if the tables contradict each other."""
        hinted = {key for expiries in self._expiries.values() for key in expiries}
        named = set(self._chains.values())
        assert self._masks.keys() <= named, "a block is held under no hash"
        assert all(self._masks.values()), "a block without holders is kept"
        assert self._unheld.keys() <= self._chains.keys(), "an unknown hash is remembered"
        assert not self._parked.keys() & self._chains.keys(), "a known hash is parked"
        assert all(self._parked.values()), "a parked hash without places is kept"
        assert len(self._parked) <= self._limits.max_parked
        assert len(self._unheld) <= self._limits.max_unheld
        for (chain, slot), copies in self._copies.items():
            assert copies > 0, "a count of no copies is kept"
            assert self._masks.get(chain, 0) >> slot & 1, "copies are counted where there is none"
        if len(named) == len(self._chains):
            for key, chain in self._chains.items():
                kept = chain in self._masks or key in hinted
                assert kept != (key in self._unheld), "a hash is lost, or both held and not"
        for expiries in self._expiries.values():
            assert expiries.keys() <= self._chains.keys() | self._parked.keys(), "a hint of nothing is kept"
            times = list(expiries.values())
            assert times == sorted(times), "hints are out of order"

    def _set_mask(self, chain: ChainHash, mask: int) -> int:
        """Few masks are in use at a time, so blocks share them; the table of shared ones stays small."""
        if not mask:
            self._masks.pop(chain, None)
            return 0
        if len(self._interned) > 4096:
            self._interned.clear()
        self._masks[chain] = self._interned.setdefault(mask, mask)
        return mask

    def _take(self, key: HashKey, slot: int) -> bool:
        """Take one copy out of `slot`; False if there was none."""
        chain = self._chains.get(key)
        if chain is None:
            return self._unpark(key, slot)
        mask = self._masks.get(chain, 0)
        bit = 1 << slot
        copies = self._copies.pop((chain, slot), 0)
        if copies > 1:
            self._copies[chain, slot] = copies - 1
        if not copies:
            self._set_mask(chain, mask & ~bit)
            self._release(key, chain)
        return bool(mask & bit)

    def _release(self, key: HashKey, chain: ChainHash) -> None:
        """Remember a hash that nothing holds for a while, then forget it."""
        if chain in self._masks or any(key in expiries for expiries in self._expiries.values()):
            return
        self._unheld[key] = None
        if len(self._unheld) > self._limits.max_unheld:
            oldest = next(iter(self._unheld))
            del self._unheld[oldest], self._chains[oldest]

    def _is_parked(self, key: HashKey, slot: int) -> bool:
        return slot in self._parked.get(key, {})

    def _park(self, key: HashKey, slot: int) -> None:
        places = self._parked.setdefault(key, {})
        places[slot] = places.get(slot, 0) + 1
        if len(self._parked) > self._limits.max_parked:
            oldest = next(iter(self._parked))
            for lost in self._parked.pop(oldest):
                self._expiries.get(lost, {}).pop(oldest, None)
            self.num_parked_dropped += 1

    def _unpark(self, key: HashKey, slot: int) -> bool:
        places = self._parked.get(key)
        if places is None or slot not in places:
            return False
        places[slot] -= 1
        if not places[slot]:
            del places[slot]
        if not places:
            del self._parked[key]
        return True
