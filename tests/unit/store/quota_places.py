"""Places of the quota contract: what opens stores that look only when they are told to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anbar.adapters.store.composed import ComposedStore
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.ledger import Ledger, Pace
from anbar.adapters.store.sweep import Bounds
from anbar.tier.scopes import Scopes
from anbar.tier.store import Store
from tests.unit.store.composed import layered, replicated
from tests.unit.store.settled import settled
from tests.waiting import wait_until

ONCE = Pace(period_s=3600.0, shortest_s=3600.0)
"""A look when it is opened, and no other by itself."""

Opener = Callable[[Scopes, bytes], Store]
"""Opens one store."""


def directory(root: Path, id: str = "files") -> Opener:
    """A store of files, which sweeps no more by itself."""

    def opened(scopes: Scopes, namespace: bytes) -> Store:
        bounds = Bounds(free_fraction=0.0, interval_s=3600.0, scopes=scopes)
        store = settled(FilesStore(FilesConfig(root / id, id, bounds), namespace))
        store._sweeper.close()
        return store

    return opened


def look(store: Store) -> None:
    """Until there is nothing to do."""
    if isinstance(store, ComposedStore):
        for part in store._parts:
            look(part.store)
    elif isinstance(store, FilesStore):
        store._sweeper.sweep()
    elif (ledger := ledger_in(store)) is not None:
        while ledger.look():
            pass


def ledger_in(store: Store) -> Ledger[bytes] | Ledger[str] | None:
    """Of a store in Valkey or S3."""
    return getattr(store, "_ledger", None)


def settled_store(opener: Opener, scopes: Scopes, namespace: bytes) -> Store:
    """Open, when its first look is over."""
    store = opener(scopes, namespace)
    if (ledger := ledger_in(store)) is not None:
        wait_until(lambda: ledger.has_looked)
    return store


class Single:
    """One store."""

    copies = 1

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @contextmanager
    def opened(self, scopes: Scopes, namespace: bytes = b"model") -> Iterator[Store]:
        store = settled_store(self._opener, scopes, namespace)
        yield store
        store.close()

    def look(self, store: Store) -> None:
        look(store)


class Several:
    """A copy of each entry in each of several stores, or layers of which each has all."""

    def __init__(self, openers: Sequence[Opener], *, are_layers: bool = False) -> None:
        self._openers = openers
        self._are_layers = are_layers
        self.copies = 1 if are_layers else len(openers)

    @contextmanager
    def opened(self, scopes: Scopes, namespace: bytes = b"model") -> Iterator[Store]:
        stores = [settled_store(opener, scopes, namespace) for opener in self._openers]
        store = layered(stores) if self._are_layers else replicated(stores, copies=len(stores))
        yield store
        store.close()

    def look(self, store: Store) -> None:
        look(store)
