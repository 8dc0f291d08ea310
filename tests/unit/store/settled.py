"""Waiting for what a store does by itself."""

import time
from dataclasses import dataclass

from anbar.adapters.store.files import FilesStore
from anbar.adapters.store.store_clock import TimeSource
from anbar.adapters.store.sweep import Bounds

QUIET = Bounds(free_fraction=0.0, interval_s=3600.0)
"""For a store that sweeps once, when it is opened, and depends on nothing but what a test puts into it."""


def settled(store: FilesStore) -> FilesStore:
    """The store, open, when its first sweep is over: started late, it would hold the lock of the sweeps or
    make its file again while a test does something with the directory."""
    store.open()
    deadline_s = time.monotonic() + 120
    while store.stats().num_entries is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    return store


@dataclass
class ManualTime:
    """The system's clock, which people set, and the time since boot, which goes on by itself."""

    wall_s: float = 1_750_000_000.0
    steady_s: float = 5_000.0
    boot: str = "a-boot"

    def source(self) -> TimeSource:
        return TimeSource(lambda: self.wall_s, lambda: self.steady_s, lambda: self.boot)

    def go_on(self, seconds: float) -> None:
        """Time passes."""
        self.wall_s += seconds
        self.steady_s += seconds

    def set_clock(self, by_s: float) -> None:
        """Someone sets the system's clock."""
        self.wall_s += by_s
