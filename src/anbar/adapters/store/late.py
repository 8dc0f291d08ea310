"""A store that may be opened later: as part of another one, it must not keep that from starting."""

import threading
from collections.abc import Callable, Sequence

from anbar.core.errors import AnbarError
from anbar.tier.store import Outcome, PutItem, Scope, Store, StoreStats

_UNKNOWN = StoreStats(None, None, None)


class LateStore:
    """See `anbar.tier.store.Store`. Until it is open every outcome is ERROR, and each call sees to it that
    opening is tried, one attempt at a time: the breaker in front says how often. `open_store` may hang."""

    def __init__(self, id: str, open_store: Callable[[], Store]) -> None:
        self._id = id
        self._open_store = open_store
        self._changed = threading.Condition()
        self._store: Store | None = None
        self._error: AnbarError | None = None
        self._is_trying = False
        self._closed = False

    @property
    def id(self) -> str:
        return self._id

    def try_open(self) -> None:
        """Begin to open it, on a thread that nobody waits for."""
        with self._changed:
            if self._store is not None or self._is_trying or self._closed:
                return
            self._is_trying = True
        threading.Thread(target=self._try, name=f"anbar-open-{self._id}", daemon=True).start()

    def wait(self, timeout_s: float) -> AnbarError | None:
        """Why the attempt failed; None when the store is open, or the attempt has not ended in time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_trying, timeout_s)
            return None if self._store is not None or self._is_trying else self._error

    def exists(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        store = self._opened()
        if store is None:
            return [Outcome.ERROR] * len(keys)
        return store.exists(keys, scope=scope, timeout_s=timeout_s)

    def get_into(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[memoryview],
        *,
        scope: Scope,
        timeout_s: float,
        saves_s: Sequence[float] = (),
    ) -> list[Outcome]:
        store = self._opened()
        if store is None:
            return [Outcome.ERROR] * len(keys)
        return store.get_into(keys, buffers, scope=scope, timeout_s=timeout_s, saves_s=saves_s)

    def put(self, items: Sequence[PutItem], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        store = self._opened()
        if store is None:
            return [Outcome.ERROR] * len(items)
        return store.put(items, scope=scope, timeout_s=timeout_s)

    def delete(self, keys: Sequence[bytes], *, scope: Scope, timeout_s: float) -> list[Outcome]:
        store = self._opened()
        if store is None:
            return [Outcome.ERROR] * len(keys)
        return store.delete(keys, scope=scope, timeout_s=timeout_s)

    def delete_scope(self, scope: Scope, *, timeout_s: float) -> Outcome:
        store = self._opened()
        return Outcome.ERROR if store is None else store.delete_scope(scope, timeout_s=timeout_s)

    def take_evicted(self) -> list[bytes]:
        return [] if self._store is None else self._store.take_evicted()

    def stats(self) -> StoreStats:
        return _UNKNOWN if self._store is None else self._store.stats()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            store = self._store
        if store is not None:
            store.close()

    def _opened(self) -> Store | None:
        if self._store is None:
            self.try_open()
        return self._store

    def _try(self) -> None:
        store, error = None, None
        try:
            store = self._open_store()
        except AnbarError as failed:
            error = failed
        finally:
            with self._changed:
                self._is_trying = False
                self._store, self._error = store, error
                is_unwanted = self._closed
                self._changed.notify_all()
        if store is not None and is_unwanted:
            store.close()
