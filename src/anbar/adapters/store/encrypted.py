"""A store whose values are encrypted for some scopes: a layer over any single store.

- What lies in the store is sealed (see `seal`) before its record is made: the record's own checksum finds
  damage without a key, and a value that is whole and does not open is CORRUPT, and removed, as damage is. A
  store that is made of others seals in each of them, so that a forged copy is replaced from a good one.
- The data keys are asked for at every call. Without one, the scope's values are NO_KEY at once, whatever
  the store holds. What is to be stored gets a new one, or is NO_KEY where none can be made.
- Values pass through buffers of this layer's own: a store below is done with them when its call returns, and
  a caller's buffer is written to by the caller's thread alone, before the call returns.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from anbar.adapters.store.buffers import BufferPool, Bytes, as_bytes
from anbar.adapters.store.seal import DATA_KEY_BYTES, EXTRA_BYTES, Seal, key_of_name
from anbar.core.errors import KeyFileError
from anbar.tier.scopes import Scopes
from anbar.tier.store import Outcome, PutItem, Scope, Store, StoreStats

logger = logging.getLogger(__name__)

_BATCH_BYTES = 16 * 1024 * 1024
"""Sealed at a time for one call: bounds the memory, and keeps a store's threads busy."""
_MAX_BUFFERS = 64
"""Kept for reuse."""


class DataKeys(Protocol):
    """Where data keys are. Asked by many threads; KeyFileError: a key is there and cannot be used, or none
    can be made."""

    def data_key(self, scope: Scope) -> bytes | None:
        """The key of a scope as of now; None: it has none, or none any more."""
        ...

    def make_data_key(self, scope: Scope) -> bytes:
        """The same; made if there is none."""
        ...


class _Wanted(NamedTuple):
    """One value to be read."""

    key: bytes
    target: Bytes
    saves_s: float


class EncryptedStore:
    """See `anbar.tier.store.Store`. Owns `inner`, which is open. Scopes that are not to be encrypted are
    stored as they are."""

    def __init__(self, inner: Store, namespace: bytes, scopes: Scopes, keys: DataKeys) -> None:
        self._inner = inner
        self._namespace = namespace
        self._scopes = scopes
        self._keys = keys
        self._seals: dict[Scope, Seal] = {}
        self._told: dict[Scope, str] = {}
        self._buffers = BufferPool(_MAX_BUFFERS)

    @property
    def id(self) -> str:
        return self._inner.id

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        if not self._scopes.of(scope).encrypt:
            return self._inner.exists(keys, scope=scope, timeout_s=timeout_s)
        seal = self._seal(scope, self._keys.data_key)
        if seal is None:
            return [Outcome.NO_KEY] * len(keys)
        return self._inner.exists([seal.name(key) for key in keys], scope=scope, timeout_s=timeout_s)

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        if not self._scopes.of(scope).encrypt:
            return self._inner.get_into(keys, buffers, scope=scope, timeout_s=timeout_s, saves_s=saves_s)
        seal = self._seal(scope, self._keys.data_key)
        if seal is None:
            return [Outcome.NO_KEY] * len(keys)
        deadline_s = time.monotonic() + timeout_s
        worth = saves_s or [0.0] * len(keys)
        wanted = [_Wanted(*of) for of in zip(keys, map(as_bytes, buffers), worth, strict=True)]
        outcomes: list[Outcome] = []
        for picks in _batches([one.target.nbytes for one in wanted]):
            outcomes += self._load(seal, [wanted[i] for i in picks], scope, deadline_s)
        return outcomes

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        if not self._scopes.of(scope).encrypt:
            return self._inner.put(items, scope=scope, timeout_s=timeout_s)
        seal = self._seal(scope, self._keys.make_data_key)
        if seal is None:
            return [Outcome.NO_KEY] * len(items)
        deadline_s = time.monotonic() + timeout_s
        outcomes: list[Outcome] = []
        for picks in _batches([item.data.nbytes for item in items]):
            outcomes += self._store(seal, [items[i] for i in picks], scope, deadline_s)
        return outcomes

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        """Without its data key a scope's entries have no names: MISS. `delete_scope` removes them."""
        if not self._scopes.of(scope).encrypt:
            return self._inner.delete(keys, scope=scope, timeout_s=timeout_s)
        seal = self._seal(scope, self._keys.data_key)
        if seal is None:
            return [Outcome.MISS] * len(keys)
        return self._inner.delete([seal.name(key) for key in keys], scope=scope, timeout_s=timeout_s)

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        return self._inner.delete_scope(scope, timeout_s=timeout_s)

    def take_evicted(self) -> list[bytes]:
        return [key_of_name(name) for name in self._inner.take_evicted()]

    def stats(self) -> StoreStats:
        return self._inner.stats()

    def close(self) -> None:
        self._inner.close()

    def _seal(self, scope: Scope, find: Callable[[Scope], bytes | None]) -> Seal | None:
        try:
            data_key = find(scope)
        except KeyFileError as error:
            self._tell(scope, str(error))
            data_key = None
        if data_key is None or len(data_key) != DATA_KEY_BYTES:
            self._seals.pop(scope, None)
            return None
        seal = self._seals.get(scope)
        if seal is None or seal.data_key != data_key:
            seal = self._seals[scope] = Seal(data_key, scope, self._namespace)
        return seal

    def _tell(self, scope: Scope, text: str) -> None:
        """Once for each reason: every call asks for the key."""
        if self._told.get(scope) != text:
            self._told[scope] = text
            logger.warning("entries of a tenant are neither stored nor read: %s", text)

    def _load(self, seal: Seal, wanted: Sequence[_Wanted], scope: Scope, deadline_s: float) -> list[Outcome]:
        names = [seal.name(one.key) for one in wanted]
        sealed = [self._buffers.take(one.target.nbytes + EXTRA_BYTES) for one in wanted]
        outcomes = self._inner.get_into(
            names,
            [buffer.data for buffer in sealed],
            scope=scope,
            timeout_s=deadline_s - time.monotonic(),
            saves_s=[one.saves_s for one in wanted],
        )
        forged = []
        for index, (key, target, _) in enumerate(wanted):
            if outcomes[index] is not Outcome.HIT:
                continue
            if time.monotonic() >= deadline_s:
                outcomes[index] = Outcome.TIMEOUT
            elif not seal.open(key, sealed[index], target):
                outcomes[index] = Outcome.CORRUPT
                forged.append(names[index])
        self._give_back(sealed)
        if forged:
            self._inner.delete(forged, scope=scope, timeout_s=max(0.0, deadline_s - time.monotonic()))
        return outcomes

    def _store(self, seal: Seal, items: Sequence[PutItem], scope: Scope, deadline_s: float) -> list[Outcome]:
        sealed, named = [], []
        for item in items:
            if time.monotonic() >= deadline_s:
                break
            plain = as_bytes(item.data)
            buffer = self._buffers.take(plain.nbytes + EXTRA_BYTES)
            seal.close(item.key, plain, buffer)
            sealed.append(buffer)
            named.append(replace(item, key=seal.name(item.key), data=buffer.data))
        outcomes = self._inner.put(named, scope=scope, timeout_s=deadline_s - time.monotonic())
        self._give_back(sealed)
        return outcomes + [Outcome.TIMEOUT] * (len(items) - len(named))

    def _give_back(self, buffers: Sequence[Bytes]) -> None:
        for buffer in buffers:
            self._buffers.give(buffer)


def _batches(sizes: Sequence[int]) -> Iterator[range]:
    """Neighbours of so many bytes together, at least one at a time."""
    start = num_bytes = 0
    for index, size in enumerate(sizes):
        if index > start and num_bytes + size > _BATCH_BYTES:
            yield range(start, index)
            start, num_bytes = index, 0
        num_bytes += size
    if sizes:
        yield range(start, len(sizes))
