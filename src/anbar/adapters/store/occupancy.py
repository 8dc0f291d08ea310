"""How much a directory holds, known in parts: each part is as exact as the last look at it."""

import threading
from collections.abc import Mapping

from anbar.adapters.store.layout import NUM_PARTS


class Occupancy:
    """Bytes and entries by part (see `layout`). What this process writes is added at once, what others write
    at the next look; parts that were not looked at yet are taken to hold as much as the others.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = [0] * NUM_PARTS
        self._entries = [0] * NUM_PARTS
        self._is_counted = [False] * NUM_PARTS
        self._looking = dict[int, tuple[int, int]]()
        """What was written since the look began that runs, or was the last."""
        self._used_bytes = self._num_entries = 0

    def wrote(self, part: int, num_bytes: int, num_entries: int = 1) -> None:
        """An entry was added; with numbers below zero it turned out that it was not."""
        with self._lock:
            self._bytes[part] += num_bytes
            self._entries[part] += num_entries
            self._used_bytes += num_bytes
            self._num_entries += num_entries
            before = self._looking.get(part, (0, 0))
            self._looking[part] = before[0] + num_bytes, before[1] + num_entries

    def begin(self) -> None:
        """A look begins: what is written from now on it may or may not see."""
        with self._lock:
            self._looking = {}

    def counted(self, found: Mapping[int, tuple[int, int]]) -> None:
        """Bytes and entries of the parts that were looked at. What was written meanwhile is rather counted
        twice than not at all."""
        with self._lock:
            for part, (num_bytes, num_entries) in found.items():
                more = self._looking.get(part, (0, 0))
                self._bytes[part] = num_bytes + more[0]
                self._entries[part] = num_entries + more[1]
                self._is_counted[part] = True
            self._used_bytes = self._whole(self._bytes)
            self._num_entries = self._whole(self._entries)

    @property
    def used_bytes(self) -> int:
        """Bytes of entries; only what this process has written before the first look."""
        return self._used_bytes

    @property
    def num_entries(self) -> int | None:
        """None before the first look."""
        return self._num_entries if any(self._is_counted) else None

    def _whole(self, numbers: list[int]) -> int:
        num_counted = sum(self._is_counted)
        counted = sum(n for n, is_counted in zip(numbers, self._is_counted, strict=True) if is_counted)
        written = sum(numbers) - counted
        return counted + max(written, counted * (NUM_PARTS - num_counted) // num_counted)
