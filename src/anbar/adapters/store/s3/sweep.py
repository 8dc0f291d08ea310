"""Removes from a bucket what is too old, of every namespace: also what models that nobody runs any more left,
and earlier format versions.

A pass lists all entries: a request for every thousand. Each engine makes its own, some hours apart and at
random times, so that one usually finds nothing to do. Where that is too much, a lifecycle rule does the same.
Where no entry becomes too old, it lists only the damaged ones that are kept aside.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from anbar.adapters.store.layout import VERSION_DIR, Layout, key_of, version_of
from anbar.adapters.store.quarantine import MAX_AGE_S
from anbar.adapters.store.s3.client import S3_ERRORS
from anbar.adapters.store.s3.objects import DAMAGED_DIR, Limits, Objects, is_damaged
from anbar.tier.store import StoreStats

_PASSES_PER_TTL = 8
_SHORTEST_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 6 * 3600.0
_MAX_TOLD = 100_000
"""Removed keys that are kept to be told; 4 MB."""


class Sweep:
    """Passes over one prefix. `run` is for the store's event loop, the rest for any thread."""

    def __init__(self, layout: Layout, rng: random.Random | None = None) -> None:
        self._layout = layout
        self._rng = rng or random.Random()
        self._evicted: deque[bytes] = deque(maxlen=_MAX_TOLD)
        self._stats = StoreStats(None, None, None)

    def take_evicted(self) -> list[bytes]:
        """Keys of this namespace that were removed since the last call."""
        return [self._evicted.popleft() for _ in range(len(self._evicted))]

    def removed(self, paths: Iterable[str]) -> None:
        """Objects were removed, to be told if they are of this namespace."""
        own = f"{self._layout.namespace_dir}/"
        keys = (key_of(path.rpartition("/")[2]) for path in paths if path.startswith(own))
        self._evicted.extend(key for key in keys if key is not None)

    def stats(self) -> StoreStats:
        """What the last pass left; unknown until there was one."""
        return self._stats

    async def run(self, objects: Objects, limits: Limits) -> None:
        """Pass after pass, until cancelled. One that fails is given up: the next one comes."""
        shortest_s = MAX_AGE_S if limits.shortest_s is None else limits.shortest_s
        pause_s = min(max(shortest_s / _PASSES_PER_TTL, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        while True:
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
            with suppress(*S3_ERRORS):
                await self.once(objects, limits)

    async def once(self, objects: Objects, limits: Limits) -> None:
        """One pass. Raises what the client raises."""
        num_entries = used_bytes = 0
        entries_end = limits.shortest_s is not None
        parent = self._layout.root if entries_end else self._layout.version_dir / DAMAGED_DIR
        async for listed in objects.pages(str(parent)):
            page = [meta for meta in listed if self._is_known(meta["path"])]
            old = [meta["path"] for meta in page if limits.is_expired(meta)]
            if old:
                await objects.delete_all(old)
            self.removed(old)
            left = [m["size"] for m in page if not (is_damaged(m["path"]) or limits.is_expired(m))]
            num_entries += len(left)
            used_bytes += sum(left)
        if entries_end:
            self._stats = StoreStats(num_entries, used_bytes, None)

    def _is_known(self, path: str) -> bool:
        """Whether an object is an entry of this format version or an earlier one."""
        ours = version_of(VERSION_DIR)
        assert ours is not None
        version = version_of(path.removeprefix(f"{self._layout.root}/").partition("/")[0])
        return version is not None and version <= ours
