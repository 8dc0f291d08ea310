"""Opens the store that `cache.store` names: the one place that knows all kinds."""

from collections.abc import Callable, Mapping
from pathlib import Path

from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.sweep import Bounds
from anbar.config.stores import StoreConfig, StoreKind, store_settings
from anbar.tier.store import Store


def open_store(config: StoreConfig, namespace: bytes) -> Store:
    """The store, opened for entries of one namespace. Raises StoreError when it cannot be opened, ConfigError
    when its settings do not go together."""
    return _OPENERS[config.kind](config, namespace)


def store_id(config: StoreConfig) -> str:
    """The given name, or the one that the router gives the same store."""
    named: str = store_settings(config, Path())["id"]
    return named


def _open_files(config: StoreConfig, namespace: bytes) -> Store:
    assert config.path is not None, "read_store sees to it"
    root = config.path.absolute()
    rooted = config.model_copy(update={"path": root})
    store = FilesStore(FilesConfig(root, store_id(rooted), Bounds(config.capacity_bytes)), namespace)
    store.open()
    return store


_OPENERS: Mapping[StoreKind, Callable[[StoreConfig, bytes], Store]] = {StoreKind.FILES: _open_files}
