"""The store contract, on each store that needs no service."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.sweep import Bounds
from anbar.testing.memory_store import MemoryStore
from anbar.testing.store_contract import StoreContract
from anbar.tier.store import Store
from tests.unit.store.composed import directories, layered, replicated
from tests.unit.store.encrypted import encrypted


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


class TestReplicated(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = replicated(directories(tmp_path, ["a", "b", "c"]))
        yield store
        store.close()


class TestOneCopyOfEach(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = replicated([MemoryStore("a"), MemoryStore("b")], copies=1)
        yield store
        store.close()


class TestLayeredThrough(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = layered(directories(tmp_path, ["near", "far"]))
        yield store
        store.close()


class TestLayeredBack(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = layered(directories(tmp_path, ["near", "far"]), write_back=True)
        yield store
        store.close()


class TestLayersOverCopies(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        copies = replicated(directories(tmp_path, ["a", "b", "c"]))
        store = layered([MemoryStore("near"), copies], write_back=True)
        yield store
        store.close()


class TestEncryptedFiles(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        (files,) = directories(tmp_path, ["files"])
        store = encrypted(files)
        yield store
        store.close()


class TestEncryptedMemory(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return encrypted(MemoryStore())


class TestReplicatedEncrypted(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = replicated([encrypted(one) for one in directories(tmp_path, ["a", "b", "c"])])
        yield store
        store.close()


class TestLayeredEncrypted(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        stores = [encrypted(one) for one in directories(tmp_path, ["near", "far"])]
        store = layered(stores, write_back=True)
        yield store
        store.close()
