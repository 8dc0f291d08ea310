"""Who shares KV with whom: `tenants`.

A *scope* is what shares: the group of a tenant that has one, else the tenant alone, by its name.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from anbar.config.fields import Bytes, ConfigModel, Seconds
from anbar.config.problems import KeyPath, Problem, suggestion
from anbar.tier.store import Scope
from anbar.tier.wish import Storing

TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+=/-]{0,127}$")]
"""1 to 128 of A-Z a-z 0-9 . _ : @ + = / - beginning with a letter or digit. No comma and no blank: what
proxies make of a header that is there twice is nobody's name."""

DEFAULT_SCOPE: Scope = ""
"""Of requests without a tenant."""

_TAKEN = frozenset(
    ("host", "connection", "transfer-encoding", "content-length", "content-type", "content-encoding")
)
"""Headers that say how a request is to be read."""


class Unknown(StrEnum):
    """What becomes of a request whose tenant is not known."""

    REFUSE = "refuse"
    SHARED = "shared"


class ScopeConfig(ConfigModel):
    """What one scope may have of the shared store."""

    quota_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Most bytes of its entries in the store; in Valkey and S3 kept by listing them from time to time. null:
    as much as there is room."""

    ttl_s: Seconds | None = None
    """Its entries that were not used for so long are misses, and are removed. null: the store's own rule."""

    encrypt: bool = Field(default=False, strict=True)
    """Its entries are sealed with AES-256-GCM, under a key of its own in `<state_dir>/keys`. Without that
    key nobody can read them: `anbar cache purge` deletes it."""

    store: Storing = Storing.AUTO
    """Whether its requests are put into the store. auto: by the store's rules. always: whatever these say.
    never: no request of it; what is there is read."""


class TenantConfig(ConfigModel):
    """One tenant."""

    group: TenantName | None = None
    """Tenants of one group share KV. null: this one shares with nobody."""


def _empty_is_default(value: object) -> object:
    """`acme:` with nothing after it is a tenant like any other."""
    return {} if value is None else value


class TenantsConfig(ConfigModel):
    """Who shares KV with whom. With this table a client has no say in it: `cache_salt` and the scope are set
    by the router."""

    header: Annotated[str, StringConstraints(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]+$")] | None = None
    """Request header, in small letters, by which a gateway that you trust names the tenant (`x-tenant`).
    Whoever can reach the router without that gateway can name any. null: all requests are one tenant's."""

    unknown: Unknown = Unknown.REFUSE
    """What a request gets that names no tenant, or none of `by_name`. refuse: 403. shared: the scope of all
    such requests."""

    default: Annotated[ScopeConfig, BeforeValidator(_empty_is_default)] = Field(default_factory=ScopeConfig)
    """Of scopes that `scopes` does not have, and of requests without a tenant."""

    scopes: dict[TenantName, Annotated[ScopeConfig, BeforeValidator(_empty_is_default)]] = Field(
        default_factory=dict
    )
    """What single scopes may have: by the group's name, or by that of a tenant without one. Engines hear of
    `quota_bytes`, `ttl_s` and `encrypt` when they start (and store nothing of a scope that is to be encrypted
    until they do); the rest, as the tenants themselves, applies to a
    running router. A scope that is listed has a label of its own in metrics."""

    by_name: dict[TenantName, Annotated[TenantConfig, BeforeValidator(_empty_is_default)]] = Field(
        default_factory=dict
    )
    """The tenants that there are."""

    def scope_of(self, tenant: str) -> Scope | None:
        """None: there is no such tenant."""
        found = self.by_name.get(tenant)
        return None if found is None else found.group or tenant

    def settings(self, scope: Scope) -> ScopeConfig:
        return self.scopes.get(scope, self.default)

    def known_scopes(self) -> Mapping[Scope, ScopeConfig]:
        """All scopes that requests can have, the default one too if they can have that."""
        scopes = [found.group or tenant for tenant, found in self.by_name.items()]
        if self.header is None or self.unknown is Unknown.SHARED:
            scopes.append(DEFAULT_SCOPE)
        return {scope: self.settings(scope) for scope in sorted(scopes)}

    def members(self, scope: Scope) -> list[str]:
        """The tenants of a scope."""
        return sorted(tenant for tenant in self.by_name if self.scope_of(tenant) == scope)


def check_tenants(tenants: TenantsConfig, path: KeyPath = ("tenants",)) -> Iterator[Problem]:
    """All problems between values of `tenants`."""
    if tenants.header is None:
        if given := [key for key in ("by_name", "scopes") if getattr(tenants, key)]:
            text = f"is needed with {path[0]}.{given[0]}: nothing else tells whose a request is"
            yield Problem((*path, "header"), text)
    elif tenants.header in _TAKEN:
        yield Problem((*path, "header"), f"is {tenants.header!r}, which has a meaning of its own in HTTP")
    groups = {found.group for found in tenants.by_name.values()} - {None}
    for tenant, found in tenants.by_name.items():
        if found.group is None and tenant in groups:
            text = f"is also the name of a group that {tenant!r} is not in: rename one, or put it in"
            yield Problem((*path, "by_name", tenant), text)
    known = tenants.known_scopes()
    for scope in tenants.scopes:
        if scope in known:
            continue
        if (group := tenants.scope_of(scope)) is not None:
            text = f"is a tenant of the group {group!r}, whose settings it has; allowed: `{group}`"
        else:
            near = suggestion(scope, known)
            text = f"is neither a group nor a tenant without one in {path[0]}.by_name{near}"
        yield Problem((*path, "scopes", scope), text)
