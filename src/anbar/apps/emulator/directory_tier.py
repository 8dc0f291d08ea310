"""A shared store that engines in several processes see: a directory with an empty file per chunk.

Nothing is ever evicted: it lives as long as the stack that made it.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from anbar.core.errors import StoreError
from anbar.sim.engine.shared import AnyCall, SharedCost, SharedTier
from anbar.tier.lookups import Question
from anbar.tier.store import Outcome, Scope
from anbar.tier.transfers import Direction

_UNBOUNDED = 1 << 62


class DirectoryTier(SharedTier):
    """The store of a directory. Files are made and looked for when a call ends; each takes microseconds."""

    def __init__(self, directory: Path, cost: SharedCost | None = None) -> None:
        """Makes the directory. StoreError when that cannot be done."""
        super().__init__(_UNBOUNDED, cost)
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"--shared-dir {directory} cannot be made: {error.strerror}") from error

    def __len__(self) -> int:
        return sum(1 for _ in self._files())

    def __contains__(self, entry: tuple[Scope, bytes]) -> bool:
        return self._file(*entry).exists()

    def _files(self) -> Iterator[Path]:
        return self._directory.glob("*/*")

    def _file(self, scope: Scope, key: bytes) -> Path:
        named = hashlib.sha256(scope.encode()).hexdigest()[:16]
        return self._directory / named / key.hex()

    def _perform(self, call: AnyCall, key: bytes, evicted: list[bytes]) -> Outcome:
        file = self._file(call.scope, key)
        if isinstance(call, Question) or call.direction is Direction.LOAD:
            return Outcome.HIT if file.exists() else Outcome.MISS
        try:
            file.parent.mkdir(exist_ok=True)
            file.touch()
        except OSError:
            return Outcome.ERROR
        return Outcome.HIT
