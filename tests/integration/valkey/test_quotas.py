"""Quotas of scopes on real servers: one, a cluster, copies, and a layer over a directory."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.valkey.names import Names, damaged_name
from anbar.adapters.store.valkey.store import ValkeyConfig, ValkeyStore
from anbar.adapters.store.valkey.wire import Login
from anbar.apps.clock import SystemClock
from anbar.testing.quota_contract import (
    FULL_SCOPE,
    NUM_BYTES,
    QUOTAS,
    SMALL,
    Place,
    QuotaContract,
    fill,
    key,
)
from anbar.testing.store_contract import exists, get, put
from anbar.tier.scopes import Scopes
from anbar.tier.store import Outcome, Store
from tests.integration.valkey.forming import PRIMARIES, form
from tests.integration.valkey.servers import LOGIN, Server, cluster, server
from tests.unit.store.quota_places import ONCE, Opener, Several, Single, directory, look
from tests.waiting import wait_until

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/store-valkey.md"
RIGHTS = " ".join(re.findall(r"\bneeds `([^`]+)`", GUIDE.read_text()))
"""What the guide says that a user needs, with quotas."""


def valkey(*servers: Server, id: str = "valkey", **settings: object) -> Opener:
    """A store that looks once by itself."""

    def opened(scopes: Scopes, namespace: bytes) -> Store:
        known = {"login": LOGIN, "scopes": scopes, "pace": ONCE, **settings}
        nodes = tuple(one.node for one in servers)
        store = ValkeyStore(ValkeyConfig(nodes, id, **known), namespace, SystemClock())  # type: ignore[arg-type]
        store.open()
        return store

    return opened


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("quotas")
    lfu = ("--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lfu", "--lfu-log-factor", "0")
    lru = ("--maxmemory", "256mb", "--maxmemory-policy", "allkeys-lru")
    with server(folder / "a", *lfu) as one, server(folder / "b", *lru) as other:
        yield [one, other]


@pytest.fixture
def servers(started: list[Server]) -> list[Server]:
    for one in started:
        one.ask(b"FLUSHALL")
    return started


class TestServer(QuotaContract):
    @pytest.fixture
    def place(self, servers: list[Server]) -> Place:
        return Single(valkey(servers[0]))


class TestWithoutTimeToLive(QuotaContract):
    """Entries' ages are what the server tells of their use."""

    @pytest.fixture
    def place(self, servers: list[Server]) -> Place:
        return Single(valkey(servers[1], ttl_s=None))


class TestReplicated(QuotaContract):
    @pytest.fixture
    def place(self, servers: list[Server]) -> Place:
        return Several([valkey(one, id=one.node) for one in servers])


class TestLayerOverADirectory(QuotaContract):
    @pytest.fixture
    def place(self, servers: list[Server], tmp_path: Path) -> Place:
        return Several([valkey(servers[0], id="near"), directory(tmp_path, "far")], are_layers=True)


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    servers = cluster(tmp_path_factory.mktemp("quotas-cluster"), PRIMARIES)
    try:
        form(servers)
        yield servers
    finally:
        for one in servers:
            one.kill()


class TestCluster(QuotaContract):
    @pytest.fixture
    def place(self, formed: list[Server]) -> Place:
        for one in formed:
            one.ask(b"FLUSHALL")
        return Single(valkey(formed[1], is_cluster=True))


def test_the_longest_unused_leaves_and_a_look_is_no_use(servers: list[Server]) -> None:
    """Of four entries one has less time left than the others: it is the one to leave. The server, which here
    counts every use, takes none of the looks for one."""
    with Single(valkey(servers[0])).opened(QUOTAS) as store:
        assert fill(store) == FULL_SCOPE
        names = [Names(b"model").name(key(index), SMALL) for index in range(4)]
        servers[0].ask(b"PEXPIRE", names[2], b"50000000")
        before = [servers[0].ask(b"OBJECT", b"FREQ", name) for name in names]
        look(store)
        after = [servers[0].ask(b"OBJECT", b"FREQ", name) for name in names if name != names[2]]
        assert after == [before[0], before[1], before[3]]
        found = [exists(store, key(index), SMALL) for index in range(4)]
        assert found == [Outcome.HIT, Outcome.HIT, Outcome.MISS, Outcome.HIT]


def test_what_is_kept_aside_does_not_count(servers: list[Server]) -> None:
    """A damaged entry, as in a directory: it has a bound of its own."""
    with Single(valkey(servers[0])).opened(QUOTAS) as store:
        assert put(store, key(0), bytes(NUM_BYTES), SMALL) is Outcome.HIT
        (name,) = servers[0].names()
        servers[0].ask(b"SETRANGE", name, b"1000", b"damage")
        assert get(store, key(0), NUM_BYTES, SMALL)[0] is Outcome.CORRUPT
        look(store)
        assert store.stats().scopes[SMALL].num_entries == 0
        assert servers[0].names() == [damaged_name(name)]


def test_the_rights_that_the_guide_names(servers: list[Server], caplog: pytest.LogCaptureFixture) -> None:
    """They suffice, with a time to live and without: a look finds the exact sizes, and evicts."""
    told = servers[1].ask(b"ACL", b"SETUSER", b"guided", b"on", b">pw", *RIGHTS.encode().split())
    assert told == b"OK"
    login = Login("guided", lambda: "pw", connect_timeout_s=LOGIN.connect_timeout_s)
    for ttl_s in (3600, None):
        servers[1].ask(b"FLUSHALL")
        with Single(valkey(servers[1], login=login, ttl_s=ttl_s)).opened(QUOTAS) as store:
            assert fill(store) == FULL_SCOPE
            before = store.stats().scopes[SMALL].used_bytes or 0
            look(store)
            after = store.stats().scopes[SMALL]
            assert (after.num_entries, after.used_bytes) == (3, before * 3 // 4)
    assert "Quotas of tenants" not in caplog.text


def test_a_server_that_knows_no_looks_without_a_trace(servers: list[Server]) -> None:
    """A user who may not say so either: entries count as what they take of the server's memory."""
    one = servers[1]
    rights = b"+set +getex +get +exists +expire +unlink +scan +info +subscribe +ping +pttl +memory|usage"
    said = one.ask(b"ACL", b"SETUSER", b"few", b"on", b">pw", b"~anbar:*", b"&*", *rights.split())
    assert said == b"OK"
    login = Login("few", lambda: "pw", connect_timeout_s=LOGIN.connect_timeout_s)
    place = Single(valkey(one, login=login))
    with place.opened(QUOTAS) as store:
        assert put(store, key(0), bytes(NUM_BYTES), SMALL) is Outcome.HIT
        look(store)
        used = store.stats().scopes[SMALL].used_bytes
        assert used is not None
        assert NUM_BYTES < used < 1.25 * NUM_BYTES
        look(store)
        assert fill(store)[-1] is Outcome.OVER_QUOTA


def test_a_server_that_is_away_while_it_is_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was seen last holds, and the log says so; the server comes back empty, and so does the scope. A
    user without the right to SCAN is told what lacks."""
    with server(tmp_path) as one, Single(valkey(one)).opened(QUOTAS) as store:
        assert isinstance(store, ValkeyStore)
        assert store._ledger is not None
        assert fill(store) == FULL_SCOPE
        one.kill()
        store._ledger._try_look()
        assert "cannot be looked at, what was seen last holds" in caplog.text
        stats = store.stats().scopes[SMALL]
        assert 4 * NUM_BYTES < (stats.used_bytes or 0) < 4.02 * NUM_BYTES
        one.start()
        caplog.set_level(logging.INFO)
        ledger = store._ledger

        def has_looked() -> bool:
            ledger._try_look()
            return "can be looked at again" in caplog.text

        wait_until(has_looked)
        assert fill(store) == FULL_SCOPE
        one.ask(b"ACL", b"SETUSER", b"default", b"-scan")
        store._ledger._try_look()
        assert "no permissions" in caplog.text
