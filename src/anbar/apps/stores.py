"""Opens the store that `cache.store` names: the one place that knows all kinds."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from anbar.adapters.store.composed import ComposedConfig, ComposedStore
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.late import LateStore
from anbar.adapters.store.part import Part
from anbar.adapters.store.sweep import Bounds
from anbar.apps.clock import SystemClock
from anbar.config.stores import StoreConfig, StoreKind, WriteOrder, store_settings, with_paths
from anbar.core.errors import ConfigError, StoreError
from anbar.tier.composed import of_last
from anbar.tier.placement import Layers, Rendezvous
from anbar.tier.store import Store


def open_store(config: StoreConfig, namespace: bytes) -> Store:
    """The store, opened for entries of one namespace. Raises StoreError when it cannot be opened, ConfigError
    when its settings do not go together."""
    return _OPENERS[config.kind](with_paths(config, Path.absolute, Path.absolute), namespace)


def store_id(config: StoreConfig) -> str:
    """The given name, or the one that the router gives the same store."""
    named: str = store_settings(config, Path())["id"]
    return named


def _open_files(config: StoreConfig, namespace: bytes) -> Store:
    assert config.path is not None, "read_store sees to it"
    bounds = Bounds(config.capacity_bytes, ttl_s=config.ttl_s)
    store = FilesStore(FilesConfig(config.path, store_id(config), bounds), namespace)
    store.open()
    return store


def _open_valkey(config: StoreConfig, namespace: bytes) -> Store:
    _require("valkey", config)
    from anbar.apps.valkey_store import open_valkey  # noqa: PLC0415

    return open_valkey(config, store_id(config), namespace)


def _open_s3(config: StoreConfig, namespace: bytes) -> Store:
    _require("obstore", config)
    from anbar.apps.s3_store import open_s3  # noqa: PLC0415

    return open_s3(config, store_id(config), namespace)


def _require(package: str, config: StoreConfig) -> None:
    """An engine with another kind of store may be without the package, so what needs it is imported late."""
    if find_spec(package) is None:
        raise ConfigError(
            f"store.kind {config.kind} needs a package that the engine's Python lacks; fix: "
            f"{sys.executable} -m pip install {package}"
        )


def _open_layered(config: StoreConfig, namespace: bytes) -> Store:
    composed = ComposedConfig(
        store_id(config),
        Layers(len(config.members)),
        write_back=config.write is WriteOrder.BACK,
        occupancy=of_last,
        copy_timeout_s=config.timeout_s,
    )
    return _open_composed(composed, config, namespace)


def _open_replicated(config: StoreConfig, namespace: bytes) -> Store:
    places = Rendezvous([store_id(member) for member in config.members], config.copies)
    composed = ComposedConfig(store_id(config), places, copy_timeout_s=config.timeout_s)
    return _open_composed(composed, config, namespace)


def _open_composed(composed: ComposedConfig, config: StoreConfig, namespace: bytes) -> Store:
    members = _open_members(config.members, namespace)
    clock = SystemClock()
    parts = [Part(member, clock, of.timeout_s) for member, of in zip(members, config.members, strict=True)]
    store = ComposedStore(composed, parts, clock)
    store.open()
    return store


def _open_members(configs: Sequence[StoreConfig], namespace: bytes) -> list[LateStore]:
    """All members. One that cannot be opened now is tried again when it is wanted, but one must be open."""
    members = [LateStore(store_id(config), partial(open_store, config, namespace)) for config in configs]
    for member in members:
        member.try_open()
    waits = zip(members, configs, strict=True)
    errors = [error for member, config in waits if (error := member.wait(config.timeout_s)) is not None]
    wrong = next((error for error in errors if isinstance(error, ConfigError)), None)
    if wrong is None and len(errors) < len(members):
        return members
    for member in members:
        member.close()
    raise wrong or StoreError("; ".join(map(str, errors)))


_OPENERS: Mapping[StoreKind, Callable[[StoreConfig, bytes], Store]] = {
    StoreKind.FILES: _open_files,
    StoreKind.S3: _open_s3,
    StoreKind.LAYERED: _open_layered,
    StoreKind.REPLICATED: _open_replicated,
    StoreKind.VALKEY: _open_valkey,
}
