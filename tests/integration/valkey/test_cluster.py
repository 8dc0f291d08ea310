"""A cluster of real servers: three primaries, the first of which has a replica."""

import signal
from collections.abc import Iterator, Sequence

import pytest

from anbar.adapters.store.valkey.names import NUM_SLOTS, Names, damaged_name, slot
from anbar.adapters.store.valkey.store import ValkeyStore
from anbar.core.clock import ManualClock
from anbar.testing.store_contract import TIMEOUT_S, VALUE, StoreContract, exists, get, put
from anbar.tier.store import Outcome, Store
from tests.integration.valkey.forming import PRIMARIES, form, info, name_of
from tests.integration.valkey.servers import NAMESPACE, Server, cluster, store_on
from tests.waiting import wait_until

KEYS = [b"%036d" % index for index in range(60)]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    servers = cluster(tmp_path_factory.mktemp("cluster"), PRIMARIES + 1)
    try:
        form(servers)
        yield servers
    finally:
        for one in servers:
            one.kill()


@pytest.fixture
def store(servers: list[Server]) -> Iterator[ValkeyStore]:
    for one in servers[:PRIMARIES]:
        one.ask(b"FLUSHALL")
    # The one that is named knows the others.
    with store_on(servers[1].node, is_cluster=True) as store:
        yield store


class TestCluster(StoreContract):
    @pytest.fixture
    def store(self, store: ValkeyStore) -> Store:
        return store


def on(servers: list[Server], number: int) -> list[bytes]:
    """Those of KEYS that are on one node."""
    names = Names(NAMESPACE)
    return [key for key in KEYS if slot(names.name(key, "")) * PRIMARIES // NUM_SLOTS == number]


def put_all(store: Store) -> None:
    assert {put(store, key, VALUE) for key in KEYS} == {Outcome.HIT}


def exist(store: Store, keys: Sequence[bytes], timeout_s: float = TIMEOUT_S) -> list[Outcome]:
    return store.exists(keys, scope="", timeout_s=timeout_s)


def test_entries_are_spread(servers: list[Server], store: ValkeyStore) -> None:
    """Each node has those of its slots, all are found, and a scope goes from all nodes."""
    put_all(store)
    assert [len(one.names()) for one in servers[:PRIMARIES]] == [
        len(on(servers, n)) for n in range(PRIMARIES)
    ]
    assert exist(store, KEYS) == [Outcome.HIT] * len(KEYS)
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert exist(store, KEYS) == [Outcome.MISS] * len(KEYS)
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.MISS


def test_a_frozen_node_costs_one_deadline(servers: list[Server]) -> None:
    """Its entries are late once and then errors without a wait, though the call has ten minutes; the others'
    are found in the same call. When it goes on it is used again, after a pause."""
    clock = ManualClock()
    with store_on(servers[1].node, is_cluster=True, clock=clock) as store:
        put_all(store)
        mine = on(servers, 2)
        expected = [Outcome.ERROR if key in mine else Outcome.HIT for key in KEYS]
        servers[2].signal(signal.SIGSTOP)
        try:
            assert set(exist(store, mine, timeout_s=0.3)) == {Outcome.TIMEOUT}
            assert exist(store, KEYS, timeout_s=600.0) == expected
        finally:
            servers[2].signal(signal.SIGCONT)
        clock.advance(60.0)
        wait_until(lambda: exist(store, KEYS) == [Outcome.HIT] * len(KEYS))


def test_a_slot_that_moves(servers: list[Server], store: ValkeyStore) -> None:
    """An entry is read while its slot is on its way to another node, and when it is there, by an engine that
    is not told; and both ways an entry that is not there yet is stored."""
    key = on(servers, 1)[0]
    put(store, key, VALUE)
    name = Names(NAMESPACE).name(key, "")
    number = b"%d" % slot(name)
    source, target = servers[1], servers[2]
    target.ask(b"CLUSTER", b"SETSLOT", number, b"IMPORTING", name_of(source))
    source.ask(b"CLUSTER", b"SETSLOT", number, b"MIGRATING", name_of(target))
    source.ask(b"MIGRATE", b"127.0.0.1", b"%d" % target.port, name, b"0", b"60000")
    assert get(store, key, len(VALUE)) == (Outcome.HIT, VALUE)  # ASK
    assert store.delete([key], scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT]
    assert put(store, key, VALUE) is Outcome.HIT
    for one in (target, source, servers[0]):
        one.ask(b"CLUSTER", b"SETSLOT", number, b"NODE", name_of(target))
    assert get(store, key, len(VALUE)) == (Outcome.HIT, VALUE)  # MOVED
    assert put(store, key, VALUE) is Outcome.HIT
    assert exists(store, key) is Outcome.HIT


def test_a_dead_node_and_a_failover(servers: list[Server], store: ValkeyStore) -> None:
    """The first primary is killed: its entries are errors, the other nodes' are there all the time. When its
    replica has taken over, its entries are found there, without anybody telling the store."""
    put_all(store)
    mine, others = on(servers, 0), [key for key in KEYS if key not in on(servers, 0)]
    dead, replica = servers[0], servers[PRIMARIES]
    wait_until(lambda: len(replica.names()) == len(mine))
    dead.kill()
    assert exist(store, others) == [Outcome.HIT] * len(others)
    assert exist(store, mine) == [Outcome.ERROR] * len(mine)
    replica.ask(b"CLUSTER", b"FAILOVER", b"TAKEOVER")
    wait_until(lambda: exist(store, KEYS) == [Outcome.HIT] * len(KEYS))
    assert get(store, mine[0], len(VALUE)) == (Outcome.HIT, VALUE)
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT
    servers[0], servers[PRIMARIES] = replica, dead  # as other tests want them
    dead.start()
    wait_until(lambda: "master_link_status:up" in info(dead, b"INFO"))


def test_damaged_entries_are_kept_where_they_were(servers: list[Server], store: ValkeyStore) -> None:
    """Each by the node that has its slot."""
    names = Names(NAMESPACE)
    keys = KEYS[:8]
    for key in keys:
        put(store, key, VALUE)
    expected = set()
    for one in servers[:PRIMARIES]:
        for name in one.names():
            one.ask(b"APPEND", name, b"?")
            expected.add((one.node, damaged_name(name)))
    assert len({node for node, _ in expected}) > 1
    assert {name for _, name in expected} == {damaged_name(names.name(key, "")) for key in keys}
    for key in keys:
        assert get(store, key, len(VALUE))[0] is Outcome.CORRUPT
    assert {(one.node, name) for one in servers[:PRIMARIES] for name in one.names()} == expected
    assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert [name for one in servers[:PRIMARIES] for name in one.names()] == []
