"""From `tenants` to what the shared tier of an engine is told of scopes, and back. Pure."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from anbar.config.fields import Bytes, ConfigModel, NamedPath, Seconds
from anbar.config.models import CacheConfig, CacheMode
from anbar.config.problems import KeyPath, Problem, dotted, from_pydantic
from anbar.config.tenants import DEFAULT_SCOPE, ScopeConfig, TenantsConfig
from anbar.core.errors import ConfigError
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.wish import MAX_SCOPE_CHARS

KEYS_DIR = "keys"
"""In the state directory: where data keys are."""

MAX_NAMED = 200
"""Scopes that metrics tell apart. Those with settings of their own are always listed: what is listed stands
on the engine's command line."""

_KEYS = ("quota_bytes", "ttl_s", "encrypt")


class RulesConfig(ConfigModel):
    """Of one scope, as `tenants.scopes` has them."""

    quota_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    ttl_s: Seconds | None = None
    encrypt: bool = Field(default=False, strict=True)


class TierTenants(ConfigModel):
    """The entry `tenants` of the shared tier."""

    keys: NamedPath | None = None
    """Directory of data keys; needed where a scope is encrypted."""
    default: RulesConfig = Field(default_factory=RulesConfig)
    """Of scopes that are not listed."""
    scopes: dict[Annotated[str, StringConstraints(max_length=MAX_SCOPE_CHARS)], RulesConfig] = Field(
        default_factory=dict
    )


def tenant_settings(tenants: TenantsConfig, state_dir: Path) -> dict[str, Any]:
    """What the shared tier is told: nothing that is left to default, and names for metrics."""
    known = {
        scope: _given(rules) for scope, rules in tenants.known_scopes().items() if scope != DEFAULT_SCOPE
    }
    default = _given(tenants.default)
    own = {scope: given for scope, given in known.items() if given != default}
    for scope, given in known.items():
        if len(own) >= MAX_NAMED:
            break
        own.setdefault(scope, given)
    settings: dict[str, Any] = {"scopes": dict(sorted(own.items()))}
    if default:
        settings["default"] = default
    if any("encrypt" in given for given in (default, *own.values())):
        settings["keys"] = str(state_dir / KEYS_DIR)
    return settings


def read_tenants(settings: Mapping[str, object]) -> tuple[Scopes, Path | None]:
    """The rules and the directory of data keys, as an engine gets them. Raises ConfigError naming each key
    that is wrong."""
    try:
        said = TierTenants.model_validate(settings)
    except ValidationError as error:
        found = from_pydantic(error.errors(include_url=False), TierTenants)
        texts = [f"{dotted(('tenants', *problem.path))} {problem.message}" for problem in found]
        raise ConfigError("; ".join(texts)) from None
    scopes = Scopes(_rules(said.default), {scope: _rules(rules) for scope, rules in said.scopes.items()})
    if said.keys is None and any(rules.encrypt for rules in scopes.every):
        raise ConfigError("tenants.keys is required where a scope is encrypted, and not given")
    return scopes, said.keys


def check_mode(tenants: TenantsConfig, cache: CacheConfig) -> Iterator[Problem]:
    """Rules that nobody would keep: they are the shared store's. LMCache stores what it is given, plain."""
    if cache.mode is CacheMode.SHARED:
        return
    kept_by_none = {*_KEYS, "store"} if cache.mode is CacheMode.LMCACHE else set(_KEYS)
    for path, rules in _all(tenants):
        for key in rules.model_dump(include=kept_by_none, exclude_defaults=True):
            yield Problem((*path, key), f"needs cache.mode {CacheMode.SHARED}, and that is {cache.mode}")


def _all(tenants: TenantsConfig) -> Iterator[tuple[KeyPath, ScopeConfig]]:
    yield ("tenants", "default"), tenants.default
    for scope, rules in tenants.scopes.items():
        yield ("tenants", "scopes", scope), rules


def _given(rules: ScopeConfig) -> dict[str, Any]:
    return rules.model_dump(mode="json", include=set(_KEYS), exclude_defaults=True)


def _rules(config: RulesConfig) -> ScopeRules:
    return ScopeRules(config.quota_bytes, config.ttl_s, config.encrypt)
