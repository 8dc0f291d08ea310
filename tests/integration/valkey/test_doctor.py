"""What the doctor says of a store in Valkey, and a store opened from its configuration."""

import time
from collections.abc import Iterator

import pytest

from anbar.adapters.store.valkey.wire import Login, dial
from anbar.apps.doctor.finding import Finding, Level
from anbar.apps.doctor.run import check_store
from anbar.apps.stores import open_store
from anbar.config.models import AnbarConfig
from anbar.config.store_checks import read_store
from anbar.core.errors import ConfigError, StoreError
from anbar.testing.store_contract import KEY, TIMEOUT_S, VALUE, get, put
from anbar.tier.store import Outcome
from tests.integration.valkey.servers import Server, server
from tests.ports import free_port

PASSWORD = "another-secret-word"


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("valkey"), "--requirepass", PASSWORD) as one:
        yield one


def settings(node: str, **valkey: object) -> dict[str, object]:
    patient = {"nodes": [node], "connect_timeout_s": TIMEOUT_S, **valkey}
    return {"kind": "valkey", "timeout_s": TIMEOUT_S, "valkey": patient}


def finding(node: str, tenants: object = None, **valkey: object) -> Finding:
    said = {"cache": {"store": settings(node, **valkey)}, "tenants": tenants}
    config = AnbarConfig.model_validate(said)
    (found,) = check_store(config)
    return found


def test_a_server_that_answers(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its password; without it, or without the variable that holds it, that is what is wrong."""
    monkeypatch.setenv("PASSWORD", PASSWORD)
    assert finding(one.node, password_env="PASSWORD").level is Level.OK
    for wrong, words in (
        (finding(one.node), "NOAUTH"),
        (finding(one.node, password_env="NONE"), "NONE is not set"),
    ):
        assert wrong.level is Level.FAIL
        assert words in wrong.detail
        assert "cache.store.valkey" in wrong.fix
        assert PASSWORD not in str(wrong)


def test_a_user_who_may_not_keep_quotas(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before an engine stores next to nothing. Without quotas, or with the rights, all is well."""
    monkeypatch.setenv("PASSWORD", PASSWORD)
    login = {"username": "few", "password_env": "PASSWORD"}
    administer(one, "SETUSER", "few", "on", f">{PASSWORD}", "~anbar:*", "&*", "+@all", "-strlen")
    tenants = {"header": "x-tenant", "by_name": {"a": {}}, "scopes": {"a": {"quota_bytes": "1GiB"}}}
    wrong = finding(one.node, tenants, **login)
    assert wrong.level is Level.WARN
    assert "strlen" in wrong.detail
    assert "store-valkey.md" in wrong.fix
    assert finding(one.node, **login).level is Level.OK
    administer(one, "SETUSER", "few", "+strlen")
    assert finding(one.node, tenants, **login).level is Level.OK


def administer(one: Server, *words: str) -> None:
    """An ACL command, which needs the password."""
    login = Login(password=lambda: PASSWORD, connect_timeout_s=TIMEOUT_S)
    wire = dial(one.node, login)
    request = (b"ACL", *(word.encode() for word in words))
    assert wire.call(*request, deadline_s=time.monotonic() + TIMEOUT_S) == b"OK"
    wire.close()


def test_a_server_that_does_not() -> None:
    """It may come: engines start without it."""
    assert finding(f"127.0.0.1:{free_port()}").level is Level.WARN


def test_a_store_as_an_engine_opens_it(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """From plain data: it works, and what is wrong is an error for a user."""
    monkeypatch.setenv("PASSWORD", PASSWORD)
    store = open_store(read_store(settings(one.node, password_env="PASSWORD", ttl_s=60)), b"model")
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert store.id.startswith("valkey-")
    store.close()
    with pytest.raises(StoreError, match="NOAUTH"):
        open_store(read_store(settings(one.node)), b"model")
    with pytest.raises(ConfigError, match="NONE is not set"):
        open_store(read_store(settings(one.node, password_env="NONE")), b"model")
