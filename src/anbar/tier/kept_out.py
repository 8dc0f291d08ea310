"""What the reuse filter kept out of the store, remembered for a while, and what of it was asked for
afterwards: what the other choice, to store everything, would have gained.

The memory is a table of fixed size in which a new key takes the place of an older one (direct-mapped): 12
bytes for a place, `NUM_PLACES` of them, made when the first key is kept out. After n further keys an older
one is still there with a chance of exp(-n / NUM_PLACES): nine in ten after a tenth of the places, one in
three after as many keys as there are places. So what is counted is rather too little.

A key counts as asked for when nothing before it in its prompt is missing for another reason: a prefix is of
use up to its first gap. That the store would still have had it is taken for granted: storing everything would
have pushed out other entries, and nobody knows which.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

import xxhash

from anbar.core.cost import PrefillCost, PrefillWork
from anbar.tier.admission import Admission
from anbar.tier.pressure import Reason
from anbar.tier.store import Scope
from anbar.tier.tally import Series, Tally

NUM_PLACES = 1 << 17
"""1.5 MiB: as many keys as the sketch of `tier.reuse` counts before it forgets half."""

_REASONS = tuple(Reason)
_REASON_BITS = 2
_MAX_END = (1 << 30) - 1


class Place(NamedTuple):
    """Why a key was kept out, and where it ends in its prompt, in tokens; 0: not known."""

    reason: Reason
    end: int


class KeptOut:
    """Keys by 64-bit digest. Not thread-safe."""

    def __init__(self, num_places: int = NUM_PLACES) -> None:
        """`num_places`: a power of two."""
        if num_places < 1 or num_places & (num_places - 1):
            raise ValueError(f"num_places is {num_places}, must be a power of two")
        self._mask = num_places - 1
        self._digests = array("Q")
        self._places = array("I")
        self._num_keys = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered: then nobody need ask."""
        return not self._num_keys

    def note(self, scope: Scope, key: bytes, place: Place) -> None:
        """A key was kept out."""
        if not self._digests:
            self._digests = array("Q", bytes(8 * (self._mask + 1)))
            self._places = array("I", bytes(4 * (self._mask + 1)))
        digest = _digest(scope, key)
        index = digest & self._mask
        self._num_keys += not self._digests[index]
        self._digests[index] = digest
        end = min(place.end, _MAX_END)
        self._places[index] = end << _REASON_BITS | _REASONS.index(place.reason)

    def forget(self, scope: Scope, keys: Iterable[bytes]) -> None:
        """Keys that are stored: should they be missing later, the filter is not why."""
        if not self._num_keys:
            return
        for key in keys:
            digest = _digest(scope, key)
            index = digest & self._mask
            if self._digests[index] == digest:
                self._digests[index] = 0
                self._num_keys -= 1

    def find(self, scope: Scope, key: bytes) -> Place | None:
        """None: it was not kept out, as far as is remembered."""
        if not self._num_keys:
            return None
        digest = _digest(scope, key)
        index = digest & self._mask
        if self._digests[index] != digest:
            return None
        packed = self._places[index]
        return Place(_REASONS[packed & (1 << _REASON_BITS) - 1], packed >> _REASON_BITS)


class Shadow:
    """Counts what requests missed because it had been kept out. Owned by the scheduler's thread."""

    def __init__(
        self, kept_out: KeptOut, admission: Admission, tally: Tally, tokens_of: Callable[[bytes], int]
    ) -> None:
        """`tokens_of`: how many tokens a key's chunk stands for."""
        self.kept_out = kept_out
        self._admission = admission
        self._tally = tally
        self._tokens_of = tokens_of

    def asked(
        self,
        keys: Iterable[bytes],
        answered: Container[bytes],
        missing: Mapping[bytes, Place | None],
        given: PrefillCost | None,
    ) -> None:
        """A request has ended that asked for `keys`, in the order of its prompt. `missing`: those that the
        store did not have, and why if they had been kept out. `given`: what the request says of its
        prefill. Where an end is not known a key is counted, and its seconds are not."""
        counts: Counter[Reason] = Counter()
        tokens = pairs = end = 0
        for key in keys:
            place = missing.get(key)
            if place is not None:
                counts[place.reason] += 1
                start, end = max(end, place.end - self._tokens_of(key)), max(end, place.end)
                if start < end:
                    tokens, pairs = tokens + end - start, pairs + end**2 - start**2
            elif key in missing or key not in answered:
                break
        num = counts.total()
        saved_s = self._admission.saves_s(PrefillWork(tokens, pairs), num, given) if num else 0.0
        for reason, num_keys in counts.items():
            self._tally.add(Series.FILTERED_ASKED, reason.value, num_keys)
            self._tally.add(Series.FILTERED_SECONDS, reason.value, saved_s * num_keys / num)


def _digest(scope: Scope, key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(scope.encode() + key) or 1
