"""A store in memory whose delays and faults tests can set: the shared tier's counterpart without a disk."""

import threading
import time
from collections.abc import Sequence

from anbar.tier.store import Outcome, PutItem, Scope, StoreStats


class MemoryStore:
    """See `anbar.tier.store.Store`. Set the public attributes at any time, from any thread.

    Each call waits until `gate` is set, as it is at first; then `delay_s` is slept, up to the call's deadline
    (then every key is TIMEOUT). `outcome`, when set, is what every key of every call gets; `raises`, when
    set, is raised by every call (a defective store). `num_calls` counts also those that wait; `saves_s` has
    what putters said that each key saves, `read_saves_s` what readers did.
    """

    def __init__(self, id: str = "memory", *, capacity_bytes: int | None = None) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.delay_s = 0.0
        self.outcome: Outcome | None = None
        self.raises: Exception | None = None
        self.num_calls = 0
        self.saves_s: dict[bytes, float] = {}
        self.read_saves_s: dict[bytes, float] = {}
        self._id = id
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._values: dict[tuple[Scope, bytes], bytes] = {}
        self._damaged: set[tuple[Scope, bytes]] = set()
        self._evicted: list[bytes] = []
        self._closed = False

    @property
    def id(self) -> str:
        return self._id

    def damage(self, key: bytes, scope: Scope = "") -> None:
        """The next read of the key finds it damaged."""
        with self._lock:
            self._damaged.add((scope, key))

    def evict(self, key: bytes, scope: Scope = "") -> None:
        """Drop an entry and report it as evicted."""
        with self._lock:
            if self._values.pop((scope, key), None) is not None:
                self._evicted.append(key)

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        return self._call(len(keys), timeout_s) or [self._find(key, scope) for key in keys]

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        forced = self._call(len(keys), timeout_s)
        if forced is not None:
            return forced
        self.read_saves_s.update(zip(keys, saves_s, strict=False))
        return [self._read(key, scope, buffer) for key, buffer in zip(keys, buffers, strict=True)]

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        return self._call(len(items), timeout_s) or [self._write(item, scope) for item in items]

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        return self._call(len(keys), timeout_s) or [self._remove(key, scope) for key in keys]

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        forced = self._call(1, timeout_s)
        if forced is not None:
            return forced[0]
        with self._lock:
            mine = [entry for entry in self._values if entry[0] == scope]
            for entry in mine:
                del self._values[entry]
        return Outcome.HIT if mine else Outcome.MISS

    def take_evicted(self) -> list[bytes]:
        with self._lock:
            evicted, self._evicted = self._evicted, []
        return evicted

    def stats(self) -> StoreStats:
        with self._lock:
            used = sum(len(value) for value in self._values.values())
            return StoreStats(len(self._values), used, self._capacity_bytes)

    def close(self) -> None:
        self._closed = True

    def _call(self, num_keys: int, timeout_s: float) -> list[Outcome] | None:
        """What every key gets, whatever is stored; None when the call may go on."""
        with self._lock:
            self.num_calls += 1
        self.gate.wait()
        if self.raises is not None:
            raise self.raises
        if self.delay_s:
            time.sleep(min(self.delay_s, timeout_s))
        if self._closed:
            return [Outcome.ERROR] * num_keys
        if self.delay_s > timeout_s or timeout_s <= 0:
            return [Outcome.TIMEOUT] * num_keys
        return None if self.outcome is None else [self.outcome] * num_keys

    def _find(self, key: bytes, scope: Scope) -> Outcome:
        with self._lock:
            return Outcome.HIT if (scope, key) in self._values else Outcome.MISS

    def _read(self, key: bytes, scope: Scope, buffer: memoryview) -> Outcome:
        with self._lock:
            value = self._values.get((scope, key))
            if value is None:
                return Outcome.MISS
            if (scope, key) in self._damaged or len(value) != buffer.nbytes:
                self._damaged.discard((scope, key))
                del self._values[scope, key]
                return Outcome.CORRUPT
        buffer.cast("B")[:] = value
        return Outcome.HIT

    def _write(self, item: PutItem, scope: Scope) -> Outcome:
        value = bytes(item.data)
        with self._lock:
            used = sum(len(other) for other in self._values.values())
            if self._capacity_bytes is not None and used + len(value) > self._capacity_bytes:
                return Outcome.FULL
            self._values.setdefault((scope, item.key), value)
            self.saves_s[item.key] = item.saves_s
        return Outcome.HIT

    def _remove(self, key: bytes, scope: Scope) -> Outcome:
        with self._lock:
            return Outcome.MISS if self._values.pop((scope, key), None) is None else Outcome.HIT
