"""What an engine's shared tier is told of tenants, and what it makes of that."""

from pathlib import Path
from typing import Any

import pytest

from anbar.adapters.keys.files import KEYS_DIR
from anbar.config import scope_rules
from anbar.config.models import AnbarConfig
from anbar.config.render import tier_settings
from anbar.config.scope_rules import read_tenants, tenant_settings
from anbar.config.tenants import TenantsConfig
from anbar.core.errors import ConfigError
from anbar.tier.scopes import OTHER, ScopeRules, Scopes
from tests.unit.config.test_checks import problems


def tenants(**fields: Any) -> TenantsConfig:
    return TenantsConfig.model_validate({"header": "x-tenant", **fields})


ACME = tenants(
    by_name={"acme": {"group": "north"}, "umbrella": {"group": "north"}, "initech": {}, "plain": {}},
    scopes={"north": {"quota_bytes": "1GiB", "ttl_s": 3600, "encrypt": True}, "initech": {"store": "never"}},
)


def test_what_is_rendered() -> None:
    """Groups and single tenants by name, with what differs from the default; the router's own matters not."""
    assert tenant_settings(ACME, Path("/state")) == {
        "scopes": {
            "initech": {},
            "north": {"quota_bytes": 2**30, "ttl_s": 3600.0, "encrypt": True},
            "plain": {},
        },
        "keys": f"/state/{KEYS_DIR}",
    }
    assert scope_rules.KEYS_DIR == KEYS_DIR


def test_an_engine_reads_what_is_rendered() -> None:
    """The rules come back; scopes without any have the default ones, and one name in metrics."""
    scopes, keys = read_tenants(tenant_settings(ACME, Path("/state")))
    assert keys == Path("/state/keys")
    assert scopes.of("north") == ScopeRules(2**30, 3600.0, encrypt=True)
    assert scopes.of("initech") == scopes.of("anybody") == scopes.of("") == ScopeRules()
    assert [scopes.label(scope) for scope in ("north", "plain", "anybody", "")] == [
        "north",
        "plain",
        OTHER,
        "",
    ]
    assert read_tenants({}) == (Scopes(), None)


def test_the_default_is_everybodys_who_has_nothing_else() -> None:
    """A scope with a table of its own has nothing of the default's."""
    config = tenants(
        default={"encrypt": True, "quota_bytes": "1MiB"},
        by_name={"a": {}, "b": {}},
        scopes={"b": {"ttl_s": 5}},
    )
    scopes, _ = read_tenants(tenant_settings(config, Path("/state")))
    assert scopes.of("a") == scopes.of("") == scopes.of("x") == ScopeRules(2**20, None, encrypt=True)
    assert scopes.of("b") == ScopeRules(ttl_s=5.0)


def test_the_command_line_does_not_grow_with_tenants() -> None:
    """Five thousand tenants: those with settings of their own are listed, and of the others so many that
    metrics stay readable."""
    names = [f"tenant-{number:05}" for number in range(5000)]
    config = tenants(by_name={name: {} for name in names}, scopes={names[-1]: {"ttl_s": 5}})
    listed = tenant_settings(config, Path("/state"))["scopes"]
    assert len(listed) == scope_rules.MAX_NAMED
    assert listed[names[-1]] == {"ttl_s": 5.0}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"scopes": {"a": {"quota_bytes": 0}}}, "tenants.scopes.a.quota_bytes is 0"),
        ({"scopes": {"a": {"encrypt": "yes"}}}, "tenants.scopes.a.encrypt"),
        ({"scopes": {"a": {"colour": 1}}}, "tenants.scopes.a.colour"),
        ({"default": {"encrypt": True}}, "tenants.keys is required"),
    ],
)
def test_wrong_settings_name_their_key(settings: dict[str, Any], text: str) -> None:
    """An engine that is told nonsense does not start."""
    with pytest.raises(ConfigError, match=text.replace(".", r"\.")):
        read_tenants(settings)


@pytest.mark.parametrize("rule", ["quota_bytes", "ttl_s"])
@pytest.mark.parametrize(
    "store",
    [
        {"kind": "s3", "s3": {"bucket": "bucket"}},
        {"kind": "layered", "members": [{"path": "/n"}, {"kind": "valkey", "valkey": {"nodes": ["v:6379"]}}]},
    ],
)
def test_every_store_keeps_every_rule(store: dict[str, Any], rule: str) -> None:
    """A bucket, and a server below a directory: there is no problem."""
    table = {"header": "x-tenant", "by_name": {"acme": {}}, "scopes": {"acme": {rule: 1000}}}
    assert problems(cache={"store": store}, tenants=table) == {}


@pytest.mark.parametrize("mode", ["none", "native", "lmcache"])
@pytest.mark.parametrize("where", ["default", "scopes.acme"])
def test_rules_that_only_the_shared_store_keeps_are_refused_without_it(mode: str, where: str) -> None:
    """What is to be encrypted would be elsewhere in plain text, and nobody would bound it. What asks for
    nothing is allowed, and so is all of it where there is the store."""

    def found(mode: str, **rules: Any) -> dict[str, str]:
        given = {"default": rules} if where == "default" else {"scopes": {"acme": rules}}
        table = {"header": "x-tenant", "by_name": {"acme": {}}, **given}
        return problems(cache={"mode": mode}, tenants=table)

    rules = {"encrypt": True, "ttl_s": 60, "quota_bytes": 1000}
    wrong = found(mode, **rules)
    assert wrong.keys() == {f"tenants.{where}.{key}" for key in rules}
    assert all(text == f"needs cache.mode shared, and that is {mode}" for text in wrong.values())
    assert found(mode, encrypt=False) == {}
    assert found("shared", **rules) == {}


def test_what_lmcache_stores_is_not_the_routers_to_say() -> None:
    """A scope that is never to be stored would be all the same. Where nothing is stored, it is not."""

    def found(mode: str) -> dict[str, str]:
        table = {"header": "x-tenant", "by_name": {"acme": {}}, "scopes": {"acme": {"store": "never"}}}
        return problems(cache={"mode": mode}, tenants=table)

    assert found("lmcache").keys() == {"tenants.scopes.acme.store"}
    assert found("native") == {}


def test_a_tier_is_told_of_store_and_tenants() -> None:
    """Without tenants nothing is said of them, as before there were any."""
    config = AnbarConfig.model_validate({"state_dir": "/state"})
    assert tier_settings(config).keys() == {"store"}
    config = config.model_copy(update={"tenants": ACME})
    assert tier_settings(config)["tenants"] == tenant_settings(ACME, Path("/state"))
