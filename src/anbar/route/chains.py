"""The hash chains of prompts: computed once for all who ask, and not again for what earlier prompts began
with."""

from array import array
from collections import OrderedDict
from typing import cast

import xxhash

from anbar.core.blocks import extend_packed, prompt_chain
from anbar.core.ids import ChainHash
from anbar.core.request import RouteQuery

SEGMENT_BLOCKS = 64
"""Blocks that are remembered together: 1,024 tokens of a prompt, at 16 a block. What is left at the end, half
of that on the average, is hashed block by block."""

MAX_SEGMENTS = 8_192
"""Segments remembered: 8 million tokens of prompts, in 7 MB."""


class Segments:
    """Chains of runs of blocks that were hashed lately. A conversation sends all its turns again with each
    new one; hashing a run at once, to find its chain, takes a sixtieth of hashing it block by block.

    A run is known by its parent's chain hash and its own bytes, as a block is.
    """

    def __init__(self, max_segments: int = MAX_SEGMENTS) -> None:
        self._max = max_segments
        self._known: OrderedDict[tuple[int, int], array[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def extend(self, parent: ChainHash, data: bytes, width: int) -> list[ChainHash]:
        """As `extend_packed`."""
        size = SEGMENT_BLOCKS * width
        whole = len(data) // size * size
        chain: list[ChainHash] = []
        for start in range(0, whole, size):
            run = self._run(parent, data[start : start + size], width)
            parent = run[-1]
            chain += run
        return chain + extend_packed(parent, data[whole:], width)

    def _run(self, parent: ChainHash, data: bytes, width: int) -> list[ChainHash]:
        key = xxhash.xxh3_64_intdigest(data, parent), width
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return cast("list[ChainHash]", known.tolist())
        run = extend_packed(parent, data, width)
        self._known[key] = array("Q", run)
        if len(self._known) > self._max:
            self._known.popitem(last=False)
        return run


class PromptChains:
    """Remembers the chains of the query it was asked about last, and segments of those before.

    A request is matched, decided and sent without a pause between, so the last is enough. Not thread-safe.
    """

    def __init__(self) -> None:
        self._query: RouteQuery | None = None
        self._chains: dict[tuple[str, int], list[ChainHash]] = {}
        self._segments = Segments()

    def of(self, query: RouteQuery, model: str, block_size: int) -> list[ChainHash]:
        """`prompt_chain`; the list is shared, nobody may change it."""
        if self._query is not query:
            self._query, self._chains = query, {}
        key = model, block_size
        known = self._chains.get(key)
        if known is None:
            known = prompt_chain(model, query, block_size, self._segments.extend)
            self._chains[key] = known
        return known
