"""Composed stores of the tests: over directories, and over stores in memory that do as they are told."""

import time
from collections.abc import Sequence
from pathlib import Path

from anbar.adapters.store.composed import ComposedConfig, ComposedStore
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.part import Part
from anbar.core.clock import Clock, ManualClock
from anbar.testing.memory_store import MemoryStore
from anbar.tier.composed import of_last
from anbar.tier.placement import Layers, Rendezvous
from anbar.tier.store import Outcome, PutItem, Scope, Store
from tests.unit.store.settled import QUIET, settled

FLUSH_S = 120.0


class HungStore(MemoryStore):
    """Every read and write takes all of the time that it is given, and is late; the clock says how long. What
    it was given is in `timeouts_s`."""

    def __init__(self, id: str, clock: ManualClock) -> None:
        super().__init__(id)
        self.timeouts_s: list[float] = []
        self._clock = clock

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        return self._late(len(keys), timeout_s)

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        return self._late(len(keys), timeout_s)

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        return self._late(len(items), timeout_s)

    def _late(self, num_keys: int, timeout_s: float) -> list[Outcome]:
        self.timeouts_s.append(timeout_s)
        self._clock.advance(timeout_s)
        return [Outcome.TIMEOUT] * num_keys


def directories(root: Path, names: Sequence[str]) -> list[Store]:
    """Open stores of files, one for each name."""
    return [settled(FilesStore(FilesConfig(root / name, name, QUIET), b"namespace")) for name in names]


def replicated(
    stores: Sequence[Store], copies: int = 2, clock: Clock | None = None, max_waiting_bytes: int = 2**26
) -> ComposedStore:
    """`copies` of each entry, on stores told apart by their ids."""
    places = Rendezvous([store.id for store in stores], copies)
    config = ComposedConfig(
        "replicated-test",
        places,
        max_waiting_bytes=max_waiting_bytes,
        copy_timeout_s=FLUSH_S,
        flush_s=FLUSH_S,
    )
    return _opened(config, stores, clock)


def layered(
    stores: Sequence[Store],
    clock: Clock | None = None,
    *,
    write_back: bool = False,
    max_waiting_bytes: int = 2**26,
) -> ComposedStore:
    """Layers, the nearest in front."""
    config = ComposedConfig(
        "layered-test",
        Layers(len(stores)),
        write_back=write_back,
        occupancy=of_last,
        max_waiting_bytes=max_waiting_bytes,
        copy_timeout_s=FLUSH_S,
        flush_s=FLUSH_S,
    )
    return _opened(config, stores, clock)


def _opened(config: ComposedConfig, stores: Sequence[Store], clock: Clock | None) -> ComposedStore:
    """With a clock that stands still unless a test moves it: no deadline passes by itself."""
    clock = clock or ManualClock()
    store = ComposedStore(config, [Part(store, clock) for store in stores], clock)
    store.open()
    return store


def settle(store: ComposedStore) -> None:
    """Wait until every copy that was to be written later is written, or given up."""
    deadline_s = time.monotonic() + FLUSH_S
    while not store.is_settled():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
