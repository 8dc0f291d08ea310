"""Opens the store that `cache.store` names: the one place that knows all kinds."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.store.composed import ComposedConfig, ComposedStore
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.late import LateStore
from anbar.adapters.store.part import Part
from anbar.adapters.store.sweep import Bounds
from anbar.apps.clock import SystemClock
from anbar.config.models import AnbarConfig, CacheMode
from anbar.config.stores import (
    COMPOSED,
    StoreConfig,
    StoreKind,
    WriteOrder,
    members_of,
    store_settings,
    with_paths,
)
from anbar.core.errors import ConfigError, StoreError
from anbar.tier.composed import of_last
from anbar.tier.placement import Layers, Rendezvous
from anbar.tier.scopes import Scopes
from anbar.tier.store import Store


@dataclass(frozen=True, slots=True)
class Sharing:
    """For whom a store is opened: whose values it holds, and what each scope may have of it. Where a scope
    is encrypted, `keys` has its data key."""

    namespace: bytes
    scopes: Scopes = field(default_factory=Scopes)
    keys: KeyFiles | None = None


_CLIENTS = {StoreKind.S3: "obstore", StoreKind.VALKEY: "valkey"}
"""Packages that an engine with another kind of store may be without."""
_CIPHER = "cryptography"
"""The one that an engine may be without where no scope is encrypted."""


def packages_of(config: AnbarConfig) -> set[str]:
    """Packages that launched engines need for their shared store."""
    if config.cache.mode is not CacheMode.SHARED:
        return set()
    kinds = {store.kind for _, store in members_of(config.cache.store)}
    packages = {package for kind, package in _CLIENTS.items() if kind in kinds}
    tenants = config.tenants
    if tenants is not None and any(of.encrypt for of in (tenants.default, *tenants.scopes.values())):
        packages.add(_CIPHER)
    return packages


def open_store(config: StoreConfig, sharing: Sharing | bytes) -> Store:
    """The store, opened for entries of one namespace (given alone: every scope may have what there is).
    Raises StoreError when it cannot be opened, ConfigError when its settings do not go together."""
    if isinstance(sharing, bytes):
        sharing = Sharing(sharing)
    config = with_paths(config, Path.absolute, Path.absolute)
    is_sealed = any(rules.encrypt for rules in sharing.scopes.every) and config.kind not in COMPOSED
    if is_sealed:
        _require(_CIPHER, "tenants with encrypt: true")
    store = _OPENERS[config.kind](config, sharing)
    return _sealed(store, sharing) if is_sealed else store


def _sealed(store: Store, sharing: Sharing) -> Store:
    from anbar.adapters.store.encrypted import EncryptedStore  # noqa: PLC0415  # see `_require`

    assert sharing.keys is not None, "read_tenants sees to it"
    return EncryptedStore(store, sharing.namespace, sharing.scopes, sharing.keys)


def store_id(config: StoreConfig) -> str:
    """The given name, or the one that the router gives the same store."""
    named: str = store_settings(config, Path())["id"]
    return named


def _open_files(config: StoreConfig, sharing: Sharing) -> Store:
    assert config.path is not None, "read_store sees to it"
    bounds = Bounds(config.capacity_bytes, ttl_s=config.ttl_s, scopes=sharing.scopes)
    store = FilesStore(FilesConfig(config.path, store_id(config), bounds), sharing.namespace)
    store.open()
    return store


def _open_remote(config: StoreConfig, sharing: Sharing) -> Store:
    """A store whose client is a package of its own."""
    opened: Callable[[StoreConfig, str, bytes, Scopes], Store]
    _require(_CLIENTS[config.kind], f"store.kind {config.kind}")
    if config.kind is StoreKind.VALKEY:
        from anbar.apps.valkey_store import open_valkey as opened  # noqa: PLC0415
    else:
        from anbar.apps.s3_store import open_s3 as opened  # noqa: PLC0415
    return opened(config, store_id(config), sharing.namespace, sharing.scopes)


def _require(package: str, what: str) -> None:
    """An engine with another kind of store may be without the package, so what needs it is imported late."""
    if find_spec(package) is None:
        raise ConfigError(
            f"{what} needs a package that the engine's Python lacks; fix: "
            f"{sys.executable} -m pip install {package}"
        )


def _open_layered(config: StoreConfig, sharing: Sharing) -> Store:
    composed = ComposedConfig(
        store_id(config),
        Layers(len(config.members)),
        write_back=config.write is WriteOrder.BACK,
        occupancy=of_last,
        copy_timeout_s=config.timeout_s,
    )
    return _open_composed(composed, config, sharing)


def _open_replicated(config: StoreConfig, sharing: Sharing) -> Store:
    places = Rendezvous([store_id(member) for member in config.members], config.copies)
    composed = ComposedConfig(store_id(config), places, copy_timeout_s=config.timeout_s)
    # A quota counts each entry once; its copies are spread evenly.
    scopes = sharing.scopes.with_quotas(config.copies / len(config.members))
    sharing = replace(sharing, scopes=scopes)
    return _open_composed(composed, config, sharing)


def _open_composed(composed: ComposedConfig, config: StoreConfig, sharing: Sharing) -> Store:
    members = _open_members(config.members, sharing)
    clock = SystemClock()
    parts = [Part(member, clock, of.timeout_s) for member, of in zip(members, config.members, strict=True)]
    store = ComposedStore(composed, parts, clock)
    store.open()
    return store


def _open_members(configs: Sequence[StoreConfig], sharing: Sharing) -> list[LateStore]:
    """All members. One that cannot be opened now is tried again when it is wanted, but one must be open."""
    members = [LateStore(store_id(config), partial(open_store, config, sharing)) for config in configs]
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


_OPENERS: Mapping[StoreKind, Callable[[StoreConfig, Sharing], Store]] = {
    StoreKind.FILES: _open_files,
    StoreKind.S3: _open_remote,
    StoreKind.LAYERED: _open_layered,
    StoreKind.REPLICATED: _open_replicated,
    StoreKind.VALKEY: _open_remote,
}
