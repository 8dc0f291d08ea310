"""How often keys were seen lately, in bounded memory: a count-min sketch with conservative update, and
ageing.

Cormode and Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications"
(2005): `DEPTH` rows of counters; a key has one in each row, and was seen at most as often as the least of
them says. Conservative update (Estan and Varghese, 2002) raises only those that are least, which keeps the
counts of others from growing. Einziger, Friedman and Manes, "TinyLFU" (2017): after so many sightings all
counters are halved, so that what was popular once is not for ever.
"""

from collections.abc import Iterable

import numpy as np
import xxhash

DEPTH = 4
"""Rows: what a hash of 128 bits has in 32-bit parts."""

MOST = 255
"""Where a counter stays: a byte."""


class ReuseSketch:
    """`DEPTH * width` bytes. Not thread-safe."""

    def __init__(self, width: int = 1 << 18, sample: int | None = None) -> None:
        """`width`: counters in a row, a power of two; with the default one it takes 1 MiB. `sample`:
        sightings after which all counts are halved, and what was seen once is forgotten; None: half of a row,
        when one in forty keys that nobody has seen looks as if."""
        if width < 1 or width & (width - 1):
            raise ValueError(f"width is {width}, must be a power of two")
        self._mask = width - 1
        self._width = width
        self._sample = sample if sample is not None else max(1, width // 2)
        self._counts = bytearray(DEPTH * width)
        self._num_seen = 0

    @property
    def num_bytes(self) -> int:
        """Memory of the counters."""
        return len(self._counts)

    def see(self, key: bytes) -> int:
        """Count a sighting; how often the key was seen before, or more."""
        return self.see_all((key,))[0]

    def see_all(self, keys: Iterable[bytes], prefix: bytes = b"") -> list[int]:
        """Count a sighting of `prefix` and each key; how often each was seen before, or more. Written out,
        for every chunk that is stored comes here: 1 to 2 us each, twice that with a call for each."""
        counts, mask, digest = self._counts, self._mask, xxhash.xxh3_128_intdigest
        second, third, fourth = self._width, 2 * self._width, 3 * self._width
        seen = []
        for key in keys:
            bits = digest(prefix + key)
            a, b = bits & mask, second + (bits >> 32 & mask)
            c, d = third + (bits >> 64 & mask), fourth + (bits >> 96 & mask)
            before = min(counts[a], counts[b], counts[c], counts[d])
            seen.append(before)
            if before < MOST:
                for place in (a, b, c, d):
                    if counts[place] == before:
                        counts[place] = before + 1
        self._num_seen += len(seen)
        if self._num_seen >= self._sample:
            self._age()
        return seen

    def count(self, key: bytes) -> int:
        """How often a key was seen since the beginning, halved at each ageing; or more."""
        return min([self._counts[place] for place in self._places(key)])

    def _places(self, key: bytes) -> tuple[int, int, int, int]:
        bits, mask, width = xxhash.xxh3_128_intdigest(key), self._mask, self._width
        return (
            bits & mask,
            width + (bits >> 32 & mask),
            2 * width + (bits >> 64 & mask),
            3 * width + (bits >> 96 & mask),
        )

    def _age(self) -> None:
        view = np.frombuffer(self._counts, dtype=np.uint8)
        np.right_shift(view, 1, out=view)
        self._num_seen //= 2
