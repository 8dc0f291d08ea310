"""Makes what is cached of one scope unusable, at once, and removes what can be removed.

In this order: the data key (whatever is sealed with it is noise from then on), the epoch (routers put another
salt into requests, so that nothing plain in HBM and host memory is found any more), and last the entries in
the store, which may be away.
"""

from dataclasses import dataclass

from anbar.adapters.keys.files import KEYS_DIR, KeyFiles
from anbar.adapters.store.files import FilesStore
from anbar.adapters.store.scope_removal import Removal
from anbar.apps.stores import open_store, store_id
from anbar.config.models import AnbarConfig, CacheMode
from anbar.config.problems import suggestion
from anbar.config.store_checks import read_store
from anbar.config.stores import COMPOSED, StoreConfig, StoreKind, members_of, store_settings
from anbar.config.tenants import DEFAULT_SCOPE, TenantsConfig
from anbar.core.errors import ConfigError, StoreError
from anbar.tier.store import Outcome, Scope

STORE_TIMEOUT_S = 600.0
"""For removing a scope's entries: a bucket or a Valkey may have to be looked through for them."""

_NAMES_TOLD = 20
"""Scopes that are named to who types an unknown one."""

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
    had_entries: bool = False
    """Whether a store had entries, and all of them are gone."""


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
    nothing has changed in the store either; ConfigError when nobody knows the scope and it has no entries."""
    files = KeyFiles(config.state_dir / KEYS_DIR)
    if _is_known(config.tenants, files, scope):
        done = _forget_key(config, files, scope)
        in_store = _purge_store(config, scope)
    else:
        in_store = _purge_store(config, scope)
        if not in_store.failed and not in_store.had_entries:
            raise ConfigError(_unknown(config.tenants, scope))
        done = _forget_key(config, files, scope)
    return Purge((*done, *in_store.done), in_store.failed, in_store.had_entries)


def _is_known(tenants: TenantsConfig | None, files: KeyFiles, scope: Scope) -> bool:
    """Whether the file has it, or it was used or purged before."""
    has_named = tenants is not None and (scope in tenants.known_scopes() or scope in tenants.scopes)
    return has_named or scope == DEFAULT_SCOPE or files.knows(scope)


def _unknown(tenants: TenantsConfig | None, scope: Scope) -> str:
    known = [] if tenants is None else [name for name in tenants.known_scopes() if name]
    of_group = None if tenants is None else tenants.scope_of(scope)
    near = suggestion(scope, known) if of_group is None else f"; it is a tenant of the group {of_group!r}"
    there_are = ", ".join(known[:_NAMES_TOLD]) + (", …" if len(known) > _NAMES_TOLD else "")
    return (
        f"command line --scope {scope}: there is no such scope: `tenants` does not have it, it has no key, "
        f"was never purged and had no entries{near}; in `tenants` there are: {there_are or 'none'}"
    )


def _forget_key(config: AnbarConfig, files: KeyFiles, scope: Scope) -> tuple[str, str]:
    key = "data key deleted" if files.purge(scope).had_key else "no data key to delete"
    where = config.state_dir / KEYS_DIR
    return f"{key} ({where})", "salt changed: running routers use it within a second"


def _purge_store(config: AnbarConfig, scope: Scope) -> Purge:
    """Each store by itself: one that is away, or slow, keeps none of the others from being purged."""
    if config.cache.mode is not CacheMode.SHARED:
        return Purge((f"no store to look in (cache.mode is {config.cache.mode})",), ())
    store = read_store(store_settings(config.cache.store, config.state_dir))
    done, failed, had_entries = [], [], False
    for _, one in members_of(store):
        if one.kind in COMPOSED:
            continue
        removal = Removal(Outcome.MISS) if _never_made(config, one) else _remove(one, scope)
        name = f"store {store_id(one)}"
        match removal.outcome:
            case Outcome.HIT:
                done.append(f"{name}: entries removed")
                had_entries = True
            case Outcome.MISS:
                done.append(f"{name}: had no entries")
            case Outcome.TIMEOUT:
                left = removal.left or "how many are left is not known"
                failed.append(
                    f"{name}: not all entries removed within {STORE_TIMEOUT_S:g} s: {left}; fix: purge again"
                )
            case _:
                left = removal.left or "it cannot be reached, or did not allow it"
                failed.append(f"{name}: entries not removed, or not all: {left}; fix: mend that, purge again")
    return Purge(tuple(done), tuple(failed), had_entries)


def _remove(config: StoreConfig, scope: Scope) -> Removal:
    if config.path is not None and not config.path.is_dir():
        # As of a file system that is not mounted: opening would make it.
        return Removal(Outcome.ERROR, f"{config.path} is not there, or no directory")
    try:
        store = open_store(config, _NAMESPACE)
    except (StoreError, ConfigError) as error:
        return Removal(Outcome.ERROR, str(error))
    try:
        if isinstance(store, FilesStore):
            return store.remove_scope(scope, timeout_s=STORE_TIMEOUT_S)
        return Removal(store.delete_scope(scope, timeout_s=STORE_TIMEOUT_S))
    finally:
        store.close()


def _never_made(config: AnbarConfig, store: StoreConfig) -> bool:
    """Whether no engine has stored anything: the directory that engines make beside the keys is not there."""
    has_default = config.cache.store.kind is StoreKind.FILES and config.cache.store.path is None
    return has_default and store.path is not None and not store.path.exists()
