"""Which chunks a modelled store holds."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from anbar.core.errors import ConfigError
from anbar.tier.store import Scope


class Chunks(Protocol):
    """Which chunks a store holds, by scope and key; the longest unused go when it is full.

    Calls may raise OSError where the store is more than a table of this process: such a call failed.
    """

    def has(self, scope: Scope, key: bytes) -> bool:
        """Whether a chunk is there; it does not become more recently used."""
        ...

    def use(self, scope: Scope, key: bytes) -> bool:
        """Whether a chunk is there; if so, it becomes the most recently used."""
        ...

    def add(self, scope: Scope, key: bytes) -> Sequence[bytes]:
        """Put a chunk there; the keys of those that had to go for it."""
        ...

    def drop(self, scope: Scope, key: bytes) -> None:
        """A chunk is there no longer."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...


class ChunkTable:
    """Chunks in this process."""

    def __init__(self, num_chunks: int) -> None:
        """Raises ConfigError when nothing fits."""
        if num_chunks < 1:
            raise ConfigError(f"num_chunks is {num_chunks}: the shared tier must hold at least one chunk")
        self._num_chunks = num_chunks
        self._chunks: OrderedDict[tuple[Scope, bytes], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def has(self, scope: Scope, key: bytes) -> bool:
        return (scope, key) in self._chunks

    def use(self, scope: Scope, key: bytes) -> bool:
        entry = (scope, key)
        if entry not in self._chunks:
            return False
        self._chunks.move_to_end(entry)
        return True

    def add(self, scope: Scope, key: bytes) -> Sequence[bytes]:
        if self.use(scope, key):
            return ()
        self._chunks[scope, key] = None
        if len(self._chunks) <= self._num_chunks:
            return ()
        (_, gone), _ = self._chunks.popitem(last=False)
        return (gone,)

    def drop(self, scope: Scope, key: bytes) -> None:
        self._chunks.pop((scope, key), None)
