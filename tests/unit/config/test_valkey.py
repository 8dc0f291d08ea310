"""`cache.store` of kind valkey."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from anbar.apps.store_password import password_of
from anbar.apps.stores import open_store, store_id
from anbar.config.load import load
from anbar.config.problems import dotted
from anbar.config.store_checks import check_store, read_store
from anbar.config.stores import StoreConfig, store_settings
from anbar.config.valkey import ValkeyStoreConfig
from anbar.core.errors import ConfigError

NODES = ("10.0.0.5:6379",)


def problems(kind: str = "valkey", nodes: tuple[str, ...] = NODES, **valkey: object) -> dict[str, str]:
    store = StoreConfig.model_validate({"kind": kind, "valkey": {"nodes": nodes, **valkey}})
    return {dotted(problem.path): problem.message for problem in check_store(store, ())}


def test_a_server_or_a_cluster() -> None:
    """One node, or with `cluster` several; a database only without."""
    assert problems() == problems(db=3) == problems(nodes=("a:1", "b:1"), cluster=True) == {}
    assert list(problems(nodes=("a:1", "b:1"))) == ["valkey.nodes"]
    assert list(problems(cluster=True, db=3)) == ["valkey.db"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"password_env": "P", "password_file": "/p"}, "valkey.password_file"),
        ({"username": "me"}, "valkey.username"),
        ({"ca_file": "/ca"}, "valkey.ca_file"),
        ({"tls": True, "cert_file": "/c"}, "valkey.key_file"),
        ({"tls": True, "key_file": "/c"}, "valkey.cert_file"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, object], key: str) -> None:
    """Half a login or half a certificate."""
    assert list(problems(**settings)) == [key]


def test_the_kind_and_its_settings_belong_together() -> None:
    """A section of another kind, one that is missing, and settings of files."""
    assert list(problems(kind="files")) == ["valkey"]
    store = StoreConfig.model_validate({"kind": "valkey", "path": "/p", "capacity_bytes": 5})
    assert [dotted(problem.path) for problem in check_store(store, ())] == [
        "path",
        "capacity_bytes",
        "valkey",
    ]
    with pytest.raises(ConfigError, match=r"store.valkey is required with kind valkey and not given"):
        open_store(read_store({"kind": "valkey"}), b"")


@pytest.mark.parametrize("node", ["10.0.0.5", "redis://10.0.0.5:6379", "10.0.0.5:0", ":6379", ""])
def test_a_node_is_a_host_and_a_port(node: str) -> None:
    """No URL, no default port."""
    with pytest.raises(ValidationError, match="allowed: a host and a port from 1 to 65535"):
        ValkeyStoreConfig.model_validate({"nodes": [node]})


def test_a_password_in_an_address_is_not_repeated(tmp_path: Path) -> None:
    """Someone writes it where it does not belong: the message does not show it."""
    path = tmp_path / "anbar.yaml"
    path.write_text("cache: {store: {kind: valkey, valkey: {nodes: ['me:geheim@10.0.0.5:6379']}}}\n")
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    assert "cache.store.valkey.nodes[0]" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_settings_reach_the_engine_whole(tmp_path: Path) -> None:
    """As plain data, with the files' places relative to anbar.yaml resolved, and no password in it."""
    path = tmp_path / "anbar.yaml"
    valkey = "{nodes: ['a:1'], tls: true, ca_file: ca.pem, password_file: secret, ttl_s: null}"
    path.write_text(f"cache: {{store: {{kind: valkey, timeout_s: 2.0, valkey: {valkey}}}}}\n")
    store = load(path, environ={}).config.cache.store
    again = read_store(store_settings(store, tmp_path / "state"))
    assert again.valkey == store.valkey
    assert again.valkey is not None
    assert again.valkey.ca_file == tmp_path / "ca.pem"
    assert again.valkey.password_file == tmp_path / "secret"
    assert again.timeout_s == 2.0
    assert again.path is None


def test_the_id_is_the_servers() -> None:
    """The same for whoever names the same servers, in any order."""
    one, two = (
        StoreConfig.model_validate({"kind": "valkey", "valkey": {"nodes": n, "cluster": True}})
        for n in (("a:1", "b:1"), ("b:1", "a:1"))
    )
    assert store_id(one) == store_id(two)
    assert store_id(one).startswith("valkey-")
    other = StoreConfig.model_validate({"kind": "valkey", "valkey": {"nodes": ["a:1"], "db": 1}})
    assert store_id(other) != store_id(
        StoreConfig.model_validate({"kind": "valkey", "valkey": {"nodes": ["a:1"]}})
    )


def test_the_password_is_read_each_time(tmp_path: Path) -> None:
    """From a file that is replaced while engines run; without the line's end."""
    file = tmp_path / "secret"
    file.write_text("one\n")
    password = password_of(ValkeyStoreConfig(nodes=NODES, password_file=file), {})
    assert password() == "one"
    file.write_text("two\n")
    assert password() == "two"
    assert password_of(ValkeyStoreConfig(nodes=NODES, password_env="P"), {"P": "three"})() == "three"
    assert password_of(ValkeyStoreConfig(nodes=NODES), {})() is None


def test_a_password_that_is_not_there(tmp_path: Path) -> None:
    """Said when the store is opened, naming the variable or the file."""
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for settings, words in (
        ({"password_env": "NOT_SET"}, "NOT_SET is not set"),
        ({"password_file": tmp_path / "none"}, "No such file"),
        ({"password_file": tmp_path / "binary"}, "no text in UTF-8"),
        ({"password_file": tmp_path / "empty"}, "valkey.password_file: the password is empty"),
    ):
        with pytest.raises(ConfigError, match=words):
            password_of(ValkeyStoreConfig.model_validate({"nodes": NODES, **settings}), {})
