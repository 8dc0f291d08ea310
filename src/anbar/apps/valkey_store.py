"""A store in Valkey, from its configuration."""

import os

from anbar.adapters.store.valkey.store import ValkeyConfig, ValkeyStore
from anbar.adapters.store.valkey.wire import Login, Node, Tls
from anbar.apps.clock import SystemClock
from anbar.apps.store_password import password_of
from anbar.config.stores import StoreConfig
from anbar.core.errors import StoreError
from anbar.tier.scopes import NO_SCOPES, Scopes
from anbar.tier.store import Outcome


def open_valkey(config: StoreConfig, id: str, namespace: bytes, scopes: Scopes = NO_SCOPES) -> ValkeyStore:
    """The store, open. Raises ConfigError or StoreError for wrong settings."""
    said = config.valkey
    assert said is not None, "check_store sees to it"
    tls = Tls(said.ca_file, said.cert_file, said.key_file, said.verify_host) if said.tls else None
    password = password_of(said, os.environ)
    login = Login(said.username, password, said.db, tls, said.connect_timeout_s)
    nodes = tuple(map(Node, said.nodes))
    valkey = ValkeyConfig(nodes, id, said.cluster, said.ttl_s, login, scopes)
    store = ValkeyStore(valkey, namespace, SystemClock())
    store.open()
    return store


def try_quotas(config: StoreConfig) -> str:
    """Why quotas of tenants could not be kept in it, "" when they can. Raises as `open_valkey` does."""
    store = open_valkey(config, "doctor", b"doctor")
    try:
        store.try_quotas()
    except StoreError as error:
        return str(error)
    finally:
        store.close()
    return ""


def try_valkey(config: StoreConfig) -> str | None:
    """Why it cannot be used now, None when it can; asks it something. Raises as `open_valkey` does."""
    assert config.valkey is not None, "check_store sees to it"
    store = open_valkey(config, "doctor", b"doctor")
    try:
        found = store.exists([b"doctor"], scope="", timeout_s=config.timeout_s)
    finally:
        store.close()
    return None if found == [Outcome.MISS] else f"Valkey at {', '.join(config.valkey.nodes)} does not answer"
