"""What encryption costs a store in a directory: each value stored and read plain, then encrypted, in turn.

make bench NAME=encryption
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.store.encrypted import EncryptedStore
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.seal import EXTRA_BYTES, Seal
from anbar.adapters.store.sweep import Bounds
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, PutItem, Store
from benchmarks.report import Report, Series

SIZES = {"64 KiB": 1 << 16, "1 MiB": 1 << 20, "8 MiB": 1 << 23}
CALL_BYTES = 1 << 25
"""Moved by one call, as the shared tier does."""
ROUNDS = 25
PLAIN, ENCRYPTED = "plain", "encrypted"


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def bare(report: Report, name: str, num_bytes: int) -> None:
    """Sealing and opening in one thread beside copying, without a store."""
    seal = Seal(os.urandom(32), "tenant", b"benchmark")
    plain = np.frombuffer(os.urandom(num_bytes), dtype=np.uint8)
    sealed, again = np.empty(num_bytes + EXTRA_BYTES, np.uint8), np.empty(num_bytes, np.uint8)
    works = {
        "copy": lambda: np.copyto(again, plain),
        "seal": lambda: seal.close(b"key", plain, sealed),
        "open": lambda: seal.open(b"key", sealed, again),
    }
    times: dict[str, list[float]] = {verb: [] for verb in works}
    for _ in range(ROUNDS):
        for verb, work in works.items():
            times[verb].append(min(timed(work) for _ in range(3)))
    for verb, seconds in times.items():
        report.figures[f"{verb} {name}, GB/s"] = num_bytes / statistics.median(seconds) / 1e9


def put(store: Store, items: Sequence[PutItem], scope: str) -> None:
    """All of them, in one call."""
    assert set(store.put(items, scope=scope, timeout_s=60)) == {Outcome.HIT}


def get(store: Store, keys: Sequence[bytes], buffers: Sequence[memoryview], scope: str) -> None:
    """All of them, in one call."""
    assert set(store.get_into(keys, buffers, scope=scope, timeout_s=60)) == {Outcome.HIT}


def stored(report: Report, name: str, num_bytes: int, root: Path) -> None:
    """Calls of 32 MiB on a store, plain and encrypted."""
    files = FilesStore(FilesConfig(root / "store", "benchmark", Bounds(free_fraction=0.0)), b"benchmark")
    files.open()
    scopes = Scopes(named={ENCRYPTED: ScopeRules(encrypt=True)})
    store: Store = EncryptedStore(files, b"benchmark", scopes, KeyFiles(root / "keys"))
    value = memoryview(os.urandom(num_bytes))
    items = [PutItem(number.to_bytes(36, "big"), value) for number in range(CALL_BYTES // num_bytes)]
    keys, buffers = [item.key for item in items], [memoryview(bytearray(num_bytes)) for _ in items]
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(ROUNDS + 1):
        for scope in (PLAIN, ENCRYPTED) if number % 2 else (ENCRYPTED, PLAIN):
            put_s = timed(partial(put, store, items, scope))
            get_s = timed(partial(get, store, keys, buffers, scope))
            store.delete(keys, scope=scope, timeout_s=60)
            if number:  # the first round warms up
                times.setdefault(("put", scope), []).append(put_s)
                times.setdefault(("get", scope), []).append(get_s)
    store.close()
    for verb in ("put", "get"):
        pair = [
            Series(f"{verb} 32 MiB in {name}, {scope}", times[verb, scope]) for scope in (PLAIN, ENCRYPTED)
        ]
        report.series += pair
        report.ratio(f"{verb} {name}: encrypted / plain", pair[1], pair[0])


def main() -> None:
    report = Report(
        "encryption",
        "make bench NAME=encryption",
        {"rounds": ROUNDS, "bytes a call": CALL_BYTES, "directory": "tmpfs (/dev/shm)", "threads": 8},
    )
    for name, num_bytes in SIZES.items():
        bare(report, name, num_bytes)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
            stored(report, name, num_bytes, Path(root))
    report.show()
    report.write()


if __name__ == "__main__":
    main()
