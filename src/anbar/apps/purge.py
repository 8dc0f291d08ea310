"""Makes what is cached of one scope unusable, at once, and removes what can be removed.

In this order: the data key (whatever is sealed with it is noise from then on), the epoch (routers put another
salt into requests, so that nothing plain in HBM and host memory is found any more), and last the entries in
the store, which may be away.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anbar.adapters.keys.files import KEYS_DIR, KeyFiles
from anbar.apps.stores import open_store, store_id
from anbar.config.models import AnbarConfig, CacheMode
from anbar.config.problems import suggestion
from anbar.config.store_checks import read_store
from anbar.config.stores import StoreConfig, members_of, store_settings
from anbar.config.tenants import DEFAULT_SCOPE, TenantsConfig
from anbar.core.errors import ConfigError, StoreError
from anbar.tier.store import Outcome, Scope

STORE_TIMEOUT_S = 600.0
"""For removing a scope's entries: a bucket or a Valkey may have to be looked through for them."""

_NAMESPACE = b"purge"
"""A scope is removed in all namespaces; under this one there is nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be purged: one of the four."""

    tenant: str | None = None
    group: str | None = None
    scope: str | None = None
    """By its name alone: of a tenant or a group that is not in the file any more."""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Purge:
    """What was done, in words, and what was not."""

    done: tuple[str, ...]
    failed: tuple[str, ...]


def scope_of(tenants: TenantsConfig | None, target: Target) -> Scope:
    """The scope that is meant. Raises ConfigError, also where others would be purged unasked."""
    named = (target.tenant, target.group, target.scope)
    if sum(name is not None for name in named) + target.default != 1:
        raise ConfigError("command line: needs one of --tenant, --group, --scope and --default")
    if tenants is None:
        raise ConfigError("there are no `tenants` in the configuration: nobody's KV is kept apart")
    if target.default:
        return DEFAULT_SCOPE
    if target.group is not None:
        return _group(tenants, target.group)
    if target.scope is not None:
        if not target.scope:
            raise ConfigError("command line --scope: is empty; --default means requests without a tenant")
        return target.scope
    assert target.tenant is not None, "counted above"
    scope = tenants.scope_of(target.tenant)
    if scope is None:
        near = suggestion(target.tenant, tenants.by_name)
        gone = near or f"; if it was taken out, --scope {target.tenant} purges what it left"
        raise ConfigError(f"command line --tenant {target.tenant}: tenants.by_name has no such tenant{gone}")
    if tenants.by_name[target.tenant].group is not None:
        raise ConfigError(
            f"command line --tenant {target.tenant}: its KV is that of the group {scope!r} "
            f"({', '.join(tenants.members(scope))}) and cannot be told apart; --group {scope} purges it for "
            "all of them"
        )
    return scope


def _group(tenants: TenantsConfig, group: str) -> Scope:
    groups = {found.group for found in tenants.by_name.values() if found.group is not None}
    if group not in groups:
        hint = f"; use --tenant {group}" if group in tenants.by_name else suggestion(group, groups)
        raise ConfigError(f"command line --group {group}: tenants.by_name has no such group{hint}")
    return group


def purge(config: AnbarConfig, scope: Scope) -> Purge:
    """Do it, as far as it can be done. Raises KeyFileError when not even the key could be deleted: then
    nothing has changed in the store either."""
    files = KeyFiles(config.state_dir / KEYS_DIR)
    purged = files.purge(scope)
    key = "data key deleted" if purged.had_key else "no data key to delete"
    done = [f"{key} ({config.state_dir / KEYS_DIR})", "salt changed: running routers use it within a second"]
    if config.cache.mode is not CacheMode.SHARED:
        return Purge((*done, f"no store to look in (cache.mode is {config.cache.mode})"), ())
    store = read_store(store_settings(config.cache.store, config.state_dir))
    try:
        outcome = Outcome.MISS if _never_made(config, store) else _remove(store, scope)
    except (StoreError, ConfigError) as error:
        return Purge(tuple(done), (f"store {store_id(store)}: entries not removed: {error}",))
    name = f"store {store_id(store)}"
    match outcome:
        case Outcome.HIT:
            return Purge((*done, f"{name}: entries removed"), ())
        case Outcome.MISS:
            return Purge((*done, f"{name}: had no entries"), ())
        case Outcome.TIMEOUT:
            why = f"not all entries removed within {STORE_TIMEOUT_S:g} s"
        case _:
            why = "entries not removed, or not all: it cannot be reached, or did not allow it"
    return Purge(tuple(done), (f"{name}: {why}",))


def _remove(config: StoreConfig, scope: Scope) -> Outcome:
    """Raises StoreError, ConfigError."""
    if missing := list(_missing(config)):
        raise StoreError(f"{', '.join(missing)} does not exist here")
    store = open_store(config, _NAMESPACE)
    try:
        return store.delete_scope(scope, timeout_s=STORE_TIMEOUT_S)
    finally:
        store.close()


def _never_made(config: AnbarConfig, store: StoreConfig) -> bool:
    """Whether no engine has stored anything: the directory that engines make beside the keys is not there."""
    return config.cache.store.path is None and store.path is not None and not store.path.exists()


def _missing(config: StoreConfig) -> Iterator[str]:
    """Directories that are not there, as of a file system that is not mounted: opening would make them."""
    for _, store in members_of(config):
        if store.path is not None and not store.path.is_dir():
            yield str(store.path)
