"""The host-RAM tier: which chunks are in it, which are being written or read, which goes next.

Models vLLM 0.32 `v1/kv_offload/cpu/manager.py` with its LRU policy. Recency is set when a chunk comes in and
when a request ends (for all chunks that it used, the beginning of its prompt last, so that the end goes
first), not when a copy begins or ends; chunks that are being copied stay where they are in that order, but
cannot go.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from enum import Enum

from anbar.core.errors import ConfigError
from anbar.core.events import Tier
from anbar.sim.engine.events import EngineEvent, TierRemoved, TierStored
from anbar.sim.engine.request import BlockKey

_COMING = -1
"""Readers of a chunk that is not complete yet."""


class Found(Enum):
    """Answer to the question where a chunk is."""

    HIT = "hit"
    COMING = "coming"
    """It is on its way into host RAM: ask again (HIT_PENDING)."""
    UNKNOWN = "unknown"
    """A tier has not answered yet: ask again (RETRY)."""
    MISS = "miss"


class HostTier:
    """Chunks by key. A place is reserved for a chunk, then it is written, then it may be read and evicted."""

    def __init__(self, num_chunks: int) -> None:
        """Raises ConfigError when nothing fits."""
        if num_chunks < 1:
            raise ConfigError(f"num_chunks is {num_chunks}: the host tier must hold at least one chunk")
        self.num_chunks = num_chunks
        self._readers: OrderedDict[BlockKey, int] = OrderedDict()
        """By chunk, the longest unused first."""
        self._num_idle = 0
        self._num_coming = 0
        self._allocations: list[int] = []
        self._events: list[EngineEvent] = []

    def lookup(self, key: BlockKey) -> Found:
        """HIT, COMING or MISS."""
        readers = self._readers.get(key)
        if readers is None:
            return Found.MISS
        return Found.COMING if readers == _COMING else Found.HIT

    def reserve(self, keys: Sequence[BlockKey], used: set[BlockKey]) -> list[BlockKey] | None:
        """Make places for those of `keys` that are not there: these; None when too few chunks can go, and
        then nothing has changed. What the request can count on, or wanted to write, is added to `used`.

        What was offered now does not give way to the rest of the same offer.
        """
        readers = self._readers
        missing = [key for key in keys if key not in readers]
        used.update(key for key in keys if readers.get(key) != _COMING)
        if missing:
            self._allocations.append(len(missing))
        num_over = len(readers) + len(missing) - self.num_chunks
        if num_over > 0 and not self._evict(num_over, set(keys)):
            return None
        readers.update(dict.fromkeys(missing, _COMING))
        self._num_coming += len(missing)
        return missing

    def written(self, keys: Iterable[BlockKey]) -> None:
        """Reserved chunks are complete."""
        for key in keys:
            self._readers[key] = 0
            self._num_idle += 1
            self._num_coming -= 1
            self._events.append(TierStored((key,), Tier.HOST))

    def not_written(self, keys: Iterable[BlockKey]) -> None:
        """Reserved chunks will not come: their places are free."""
        for key in keys:
            del self._readers[key]
            self._num_coming -= 1

    def pin(self, keys: Iterable[BlockKey]) -> None:
        """Complete chunks are read from: they must stay."""
        for key in keys:
            self._num_idle -= self._readers[key] == 0
            self._readers[key] += 1

    def unpin(self, keys: Iterable[BlockKey]) -> None:
        """One reader fewer."""
        for key in keys:
            self._readers[key] -= 1
            self._num_idle += self._readers[key] == 0

    def refresh(self, keys: Iterable[BlockKey]) -> None:
        """These were used last, each a little later than the one before; what is not there stays so."""
        for key in keys:
            if key in self._readers:
                self._readers.move_to_end(key)

    def clear(self) -> None:
        """Forget everything, also what is being copied."""
        self._readers.clear()
        self._num_idle = self._num_coming = 0

    @property
    def num_taken(self) -> int:
        """Places that are taken, also by chunks that are not complete."""
        return len(self._readers)

    @property
    def write_usage(self) -> float:
        """Share of the places whose chunks are on their way, 0..1."""
        return self._num_coming / self.num_chunks

    @property
    def read_usage(self) -> float:
        """Share of the places whose chunks are being read, 0..1."""
        return (len(self._readers) - self._num_idle - self._num_coming) / self.num_chunks

    def take_allocations(self) -> list[int]:
        """How many places were wanted since the last call, each time that any were."""
        allocations, self._allocations = self._allocations, []
        return allocations

    @property
    def has_events(self) -> bool:
        """Whether `take_events` would give any."""
        return bool(self._events)

    def take_events(self) -> list[EngineEvent]:
        """What came and went since the last call, in order."""
        if not self._events:
            return []
        events, self._events = self._events, []
        return events

    def keys(self) -> list[BlockKey]:
        """All chunks, the longest unused first, those that are not complete too."""
        return list(self._readers)

    def check_integrity(self) -> None:
        """AssertionError unless counts and content agree."""
        assert len(self._readers) <= self.num_chunks, "more chunks than fit"
        assert all(readers >= _COMING for readers in self._readers.values()), "fewer readers than none"
        assert self._num_idle == sum(not readers for readers in self._readers.values()), (
            "idle chunks miscounted"
        )
        assert self._num_coming == sum(readers == _COMING for readers in self._readers.values()), (
            "coming chunks miscounted"
        )

    def _evict(self, count: int, offered: set[BlockKey]) -> bool:
        if count > self._num_idle:
            return False
        victims = []
        for key, readers in self._readers.items():
            if not readers and key not in offered:
                victims.append(key)
                if len(victims) == count:
                    break
        else:
            return False
        for key in victims:
            del self._readers[key]
        self._num_idle -= count
        self._events.append(TierRemoved(tuple(victims), Tier.HOST))
        return True
