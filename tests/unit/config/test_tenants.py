"""`tenants`: who shares with whom, and every slip named with its place."""

from pathlib import Path

import pytest

from anbar.config.load import load
from anbar.config.tenants import ScopeConfig, TenantsConfig, check_tenants
from anbar.core.errors import ConfigError
from anbar.tier.wish import MAX_SCOPE_CHARS, Storing

FULL = """\
tenants:
  header: x-tenant
  unknown: shared
  default: {ttl_s: 86400.0}
  scopes:
    research: {quota_bytes: 2GiB, encrypt: true}
    bank: {store: never}
  by_name:
    ada: {group: research}
    grace: {group: research}
    bank:
    single: {}
"""


def read(tmp_path: Path, text: str) -> TenantsConfig:
    path = tmp_path / "anbar.yaml"
    path.write_text(text)
    tenants = load(path).config.tenants
    assert tenants is not None
    return tenants


def complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_the_scope_is_the_group_or_else_the_tenant(tmp_path: Path) -> None:
    """Two of one group share, others do not, and who is not listed has no scope."""
    tenants = read(tmp_path, FULL)
    scopes = {name: tenants.scope_of(name) for name in ("ada", "grace", "bank", "single", "mallory")}
    assert scopes == {
        "ada": "research",
        "grace": "research",
        "bank": "bank",
        "single": "single",
        "mallory": None,
    }
    assert tenants.members("research") == ["ada", "grace"]


def test_settings_are_the_scopes_own_or_the_default(tmp_path: Path) -> None:
    """`scopes` replaces `default`; the scope of unknown tenants counts only where such are served."""
    tenants = read(tmp_path, FULL)
    known = tenants.known_scopes()
    assert list(known) == ["", "bank", "research", "single"]
    assert known["research"] == ScopeConfig(quota_bytes=2 * 1024**3, encrypt=True)
    assert known["bank"].store is Storing.NEVER
    assert known["single"] == known[""] == ScopeConfig(ttl_s=86400.0)
    assert "" not in read(tmp_path, FULL.replace("unknown: shared", "unknown: refuse")).known_scopes()


def test_without_a_header_there_is_one_tenant() -> None:
    """All requests have the default scope, with its settings."""
    tenants = TenantsConfig.model_validate({"default": {"encrypt": True}})
    assert tenants.known_scopes() == {"": ScopeConfig(encrypt=True)}
    assert not list(check_tenants(tenants))


def test_every_scope_can_be_sent() -> None:
    """The longest name is one that an engine's shared tier takes."""
    TenantsConfig.model_validate({"header": "x-tenant", "by_name": {"a" * 128: {}}})
    assert MAX_SCOPE_CHARS >= 128


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("header: x-tenant", "header: X-Tenant", 2, "tenants.header: is 'X-Tenant'; allowed: text of the"),
        ("header: x-tenant", "header: host", 2, "tenants.header: is 'host', which has a meaning of its own"),
        ("  header: x-tenant\n", "", 1, "tenants.header: is needed with tenants.by_name"),
        ("unknown: shared", "unknown: allow", 3, "tenants.unknown: is 'allow'; allowed: refuse, shared"),
        ("ttl_s: 86400.0", "ttl_s: 0.0", 4, "tenants.default.ttl_s: is 0.0; allowed: more than 0"),
        ("quota_bytes: 2GiB", "quota_bytes: 0", 6, "tenants.scopes.research.quota_bytes: is 0; allowed: at"),
        ("encrypt: true", "encrypt: 1", 6, "tenants.scopes.research.encrypt: is 1"),
        ("store: never", "store: no", 7, "tenants.scopes.bank.store: is False; allowed: auto, always, never"),
        ("store: never", "stores: never", 7, "tenants.scopes.bank.stores: unknown key; did you mean `store`"),
        ("    bank: {", "    banc: {", 7, "tenants.scopes.banc: is neither a group nor a tenant without one"),
        ("    bank: {", "    ada: {", 7, "tenants.scopes.ada: is a tenant of the group 'research'"),
        ("{group: research}", "{group: bank}", 11, "tenants.by_name.bank: is also the name of a group"),
        ("single: {}", "'a b': {}", 12, "tenants.by_name.a b: is 'a b'; allowed: text of the form"),
        ("single: {}", "single: yes", 12, "tenants.by_name.single: is True; allowed: keys and values"),
    ],
)
def test_a_slip_is_named(tmp_path: Path, before: str, after: str, line: int, words: str) -> None:
    """File, line, key, value, and what is allowed."""
    said = complaint(tmp_path, FULL.replace(before, after, 1))
    assert f"anbar.yaml:{line}: {words}" in said
