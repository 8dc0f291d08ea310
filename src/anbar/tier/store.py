"""The `Store` port: what holds the shared tier.

What makes a class here a Store
-------------------------------
- Synchronous, and callable from several threads at once. Every call has a deadline (`timeout_s`, seconds from
  the call) and returns one outcome per key, in the order of the keys. Calls never raise for a key's sake:
  a damaged entry is CORRUPT, an unreachable store ERROR, a late one TIMEOUT.
- `put` is atomic per key: a reader sees the whole value or none. Putting a key that exists is a success.
- `get_into` writes into a caller's buffer, and `put` reads from one, only while the call runs: nothing
  touches a buffer after the call returned, also when it returned TIMEOUT. The content of a buffer whose
  outcome is not HIT is undefined.
- A value that does not verify (length, namespace, checksum) is CORRUPT, never HIT, and is removed.
- Keys are bytes of any length >= 1; equal keys under different `scope` are different entries.
- A store is opened for one `namespace` (the fingerprint of what the values mean): entries of another
  namespace are never seen.
- `close` ends the store's threads and sockets; calls after it return ERROR.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

Scope = str
"""Sharing group of an entry: the tenant's, or "" when there is none. Never a secret."""


class Outcome(Enum):
    """What became of one key."""

    HIT = "hit"
    """exists: it is there; get_into: read and verified; put, delete: done."""
    MISS = "miss"
    CORRUPT = "corrupt"
    TIMEOUT = "timeout"
    ERROR = "error"
    FULL = "full"
    """put: the store takes nothing now, for want of space or of leave to write; what it has can be read."""
    OVER_QUOTA = "over_quota"
    """put: this scope has spent its quota; others may go on."""
    NO_KEY = "no_key"
    """exists, get_into, put: the scope is encrypted and its data key is gone. A miss; nothing is stored."""


@dataclass(frozen=True, slots=True)
class PutItem:
    """One value to store: `data` is any contiguous buffer of bytes, read only while the call runs. `saves_s`
    is a hint for eviction: seconds of computing that it will save when it is read; 0.0: not known."""

    key: bytes
    data: memoryview
    saves_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PartStats:
    """One of the stores that a store is made of."""

    id: str
    breaker: int
    """`BreakerState.value` of its own circuit breaker."""
    keys: Mapping[tuple[str, str], int]
    """How many keys since it was opened, by operation (lookup, load, store; repair: copied to it afterwards)
    and result (an outcome, refused: passed over, dropped: not even tried)."""
    used_bytes: int | None = None
    capacity_bytes: int | None = None
    """As the part's own `StoreStats`."""
    num_evicted: int = 0
    """Keys that it evicted since it was opened, as far as it told."""


@dataclass(frozen=True, slots=True)
class ScopeStats:
    """What one scope holds; None: not known, or (its quota) none."""

    num_entries: int | None
    used_bytes: int | None
    quota_bytes: int | None
    num_evicted: int = 0
    """Entries evicted by this process since the store was opened."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Occupancy as the store knows it; -1 would be a lie, so what is not known is None."""

    num_entries: int | None
    used_bytes: int | None
    capacity_bytes: int | None
    parts: tuple[PartStats, ...] = ()
    """The stores that it is made of, and those that they are made of."""
    is_writable: bool | None = None
    """False while the store can be read and not written, as the last writes have shown."""
    scopes: Mapping[Scope, ScopeStats] = field(default_factory=dict)
    """Of the scopes that the store was told of and counts."""


class Store(Protocol):
    """See the module's text for the contract; `anbar.testing.store_contract` is its test suite."""

    @property
    def id(self) -> str:
        """Stable name of the store, equal for all engines that share it: the owner in KV events."""
        ...

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        """HIT or MISS per key (NO_KEY; TIMEOUT, ERROR when the store cannot tell). Does not verify the
        value."""
        ...

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        """Read each value into the buffer beside it; a length that differs from the buffer's is CORRUPT.
        `saves_s`: as of `PutItem`, of each key, for copies that the store makes of what was read; empty: not
        known."""
        ...

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        """Store values; FULL when capacity is spent and nothing may be evicted."""
        ...

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        """Remove entries; MISS for a key that was not there."""
        ...

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        """Remove every entry of a scope, in every namespace."""
        ...

    def take_evicted(self) -> list[bytes]:
        """Keys of this namespace that the store itself evicted since the last call, to be announced as
        removed. A hint: bounded, and what other processes evicted is theirs to announce."""
        ...

    def stats(self) -> StoreStats:
        """Occupancy; cheap, may be a little old."""
        ...

    def close(self) -> None:
        """Release threads and handles; idempotent."""
        ...
