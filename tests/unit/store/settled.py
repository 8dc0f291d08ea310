"""Waiting for what a store does by itself."""

import time

from anbar.adapters.store.files import FilesStore
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
