"""The store contract, on one real server."""

from collections.abc import Iterator

import pytest

from anbar.testing.store_contract import StoreContract
from anbar.tier.store import Store
from tests.integration.valkey.servers import Server, server, store_on
from tests.unit.store.encrypted import encrypted


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(
        tmp_path_factory.mktemp("valkey"), "--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru"
    ) as one:
        yield one


class TestServer(StoreContract):
    @pytest.fixture
    def store(self, one: Server) -> Iterator[Store]:
        one.ask(b"FLUSHALL")
        with store_on(one.node) as store:
            yield store


class TestServerWithoutTimeToLive(StoreContract):
    @pytest.fixture
    def store(self, one: Server) -> Iterator[Store]:
        one.ask(b"FLUSHALL")
        with store_on(one.node, ttl_s=None) as store:
            yield store


class TestEncryptedServer(StoreContract):
    @pytest.fixture
    def store(self, one: Server) -> Iterator[Store]:
        one.ask(b"FLUSHALL")
        with store_on(one.node) as store:
            yield encrypted(store)
