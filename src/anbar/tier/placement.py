"""Which of several stores an entry belongs in, and in which order they are asked for it."""

from collections.abc import Collection, Sequence
from typing import Protocol

import xxhash


class Places(Protocol):
    """Where entries belong. A part is told by its position in the list of parts."""

    def of(self, key: bytes, absent: Collection[int] = ()) -> Sequence[int]:
        """Parts that hold the key's entry when all is well, the one to be asked first in front; and for each
        of them that is `absent` another one that stands in for it, where there is one left."""
        ...


class Layers:
    """Every part holds every entry; the nearest is asked first."""

    def __init__(self, num_parts: int) -> None:
        self._every = tuple(range(num_parts))

    def of(self, key: bytes, absent: Collection[int] = ()) -> Sequence[int]:
        return self._every


class Rendezvous:
    """Each key has its own order of the parts, by hashes of key and id; the first `copies` hold it.

    Rendezvous hashing (Thaler and Ravishankar, 1998). It needs no table, and depends on the parts' ids alone,
    not on their positions: when one goes, only keys that it held move, and of each just that copy; when one
    comes, it takes an even share of all. While one is absent, the next in a key's order stands in for it.
    """

    def __init__(self, ids: Sequence[str], copies: int) -> None:
        assert len(set(ids)) == len(ids), "ids tell parts apart"
        assert 1 <= copies <= len(ids)
        self._copies = copies
        named = sorted((id, index) for index, id in enumerate(ids))
        self._seeds = [(xxhash.xxh3_64_intdigest(id.encode()), index) for id, index in named]

    def of(self, key: bytes, absent: Collection[int] = ()) -> Sequence[int]:
        weigh = xxhash.xxh3_64_intdigest
        weights = [(weigh(key, seed), index) for seed, index in self._seeds]
        weights.sort(key=lambda weight: weight[0], reverse=True)  # stable: equal weights in the order of ids
        num = left = self._copies
        if absent:
            num = 0
            while left and num < len(weights):
                left -= weights[num][1] not in absent
                num += 1
        return tuple(index for _, index in weights[:num])
