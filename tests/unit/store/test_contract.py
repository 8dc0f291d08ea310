"""The store contract, on each store that needs no service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.sweep import Bounds
from anbar.testing.memory_store import MemoryStore
from anbar.testing.store_contract import StoreContract
from anbar.tier.store import Store


class TestFiles(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = FilesStore(
            FilesConfig(tmp_path / "store", "files-test", Bounds(free_fraction=0.0)), b"namespace"
        )
        store.open()
        yield store
        store.close()


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()
