"""A server that dies, hangs, drips or is cut off, during a call and between calls."""

import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from anbar.adapters.store.deadline import DeadlineRunner
from anbar.adapters.store.valkey.nodes import Nodes
from anbar.adapters.store.valkey.wire import Node, dial
from anbar.apps.clock import SystemClock
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, exists, get, put
from anbar.tier.store import Outcome, PutItem, Store
from tests.integration.valkey.proxy import Proxy
from tests.integration.valkey.servers import LOGIN, Server, server, store_on
from tests.waiting import PATIENCE_S, wait_until

LARGE = bytes(range(256)) * 4096
SHORT_S = 0.3
"""For calls that are to be late."""


@pytest.fixture
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("valkey")) as one:
        yield one


@pytest.fixture
def proxy(one: Server) -> Iterator[Proxy]:
    proxy = Proxy(one.port)
    yield proxy
    proxy.close()


@pytest.fixture
def store(proxy: Proxy) -> Iterator[Store]:
    """On the server, through the proxy, which holds a large value."""
    with store_on(Node(f"127.0.0.1:{proxy.port}")) as store:
        assert put(store, KEY, LARGE) is Outcome.HIT
        yield store


class Reading(threading.Thread):
    """Reads the large value, with all the time in the world."""

    def __init__(self, store: Store) -> None:
        super().__init__(daemon=True)
        self.outcomes: list[Outcome] = []
        self._store = store
        self.start()

    def run(self) -> None:
        buffer = memoryview(bytearray(len(LARGE)))
        self.outcomes = self._store.get_into([KEY], [buffer], scope="", timeout_s=600.0)

    def ended(self) -> list[Outcome]:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        return self.outcomes


def test_killed_in_the_middle_of_a_value(one: Server, proxy: Proxy, store: Store) -> None:
    """An error at once, with ten minutes left; started again it is used again, empty."""
    proxy.budget = 300_000
    reading = Reading(store)
    assert proxy.is_spent.wait(PATIENCE_S)
    one.kill()
    proxy.cuts = True
    proxy.release.set()
    assert reading.ended() == [Outcome.ERROR]
    proxy.budget = None
    assert exists(store, KEY) is Outcome.ERROR
    one.start()
    wait_until(lambda: exists(store, KEY) is Outcome.MISS)
    assert put(store, KEY, LARGE) is Outcome.HIT


def test_cut_in_the_middle_of_a_value(proxy: Proxy, store: Store) -> None:
    """The network goes in the middle of one: an error, and whole the next time."""
    proxy.cuts, proxy.budget = True, 300_000
    assert get(store, KEY, len(LARGE))[0] is Outcome.ERROR
    proxy.budget = None
    wait_until(lambda: get(store, KEY, len(LARGE)) == (Outcome.HIT, LARGE))


def test_held_up_in_the_middle_of_a_value(proxy: Proxy, store: Store) -> None:
    """TIMEOUT; when the rest comes after all, nobody is there to take it: the buffer stays as it was."""
    proxy.budget = 300_000
    buffer = bytearray(len(LARGE))
    late = store.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=SHORT_S)
    assert late == [Outcome.TIMEOUT]
    before = bytes(buffer)
    num_closed = proxy.num_closed
    proxy.budget = None
    proxy.release.set()
    wait_until(lambda: proxy.num_closed > 0 and proxy.num_closed >= num_closed)
    assert get(store, KEY, len(LARGE)) == (Outcome.HIT, LARGE)
    assert bytes(buffer) == before


def test_a_dripping_server(proxy: Proxy, store: Store) -> None:
    """Something comes all the time, and the whole value would take a minute: TIMEOUT at the deadline."""
    proxy.drips = True
    buffer = memoryview(bytearray(len(LARGE)))
    assert store.get_into([KEY], [buffer], scope="", timeout_s=SHORT_S) == [Outcome.TIMEOUT]


def test_a_frozen_server(one: Server, proxy: Proxy, store: Store) -> None:
    """Every call is late, touches nothing afterwards, and when it goes on so does the store."""
    one.signal(signal.SIGSTOP)
    buffer = bytearray(len(LARGE))
    item = PutItem(OTHER, memoryview(LARGE))
    assert store.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=SHORT_S) == [Outcome.TIMEOUT]
    assert store.exists([KEY, OTHER], scope="", timeout_s=SHORT_S) == [Outcome.TIMEOUT] * 2
    assert store.put([item], scope="", timeout_s=SHORT_S) == [Outcome.TIMEOUT]
    assert store.delete([KEY], scope="", timeout_s=SHORT_S) == [Outcome.TIMEOUT]
    assert store.delete_scope("", timeout_s=SHORT_S) is Outcome.TIMEOUT
    one.signal(signal.SIGCONT)
    wait_until(lambda: put(store, OTHER, LARGE) is Outcome.HIT)
    assert get(store, OTHER, len(LARGE)) == (Outcome.HIT, LARGE)
    assert not any(buffer)


def test_closed_during_a_call(proxy: Proxy, store: Store) -> None:
    """Who closes the store does not wait for a deadline."""
    proxy.budget = 300_000
    reading = Reading(store)
    assert proxy.is_spent.wait(PATIENCE_S)
    store.close()
    assert reading.ended() == [Outcome.ERROR]


def test_connections_that_died_while_idle_are_not_used(one: Server) -> None:
    """Three are idle when the server is killed; after its start each that is taken is to the new server."""
    runner = DeadlineRunner(1, "test")
    runner.start()
    connect = partial(dial, login=LOGIN)
    nodes = Nodes([one.node], is_cluster=False, dial=connect, runner=runner, clock=SystemClock())
    deadline_s = time.monotonic() + PATIENCE_S
    for wire in [nodes.take(one.node, deadline_s) for _ in range(3)]:
        nodes.give(one.node, wire)
    one.kill()
    one.start()
    wires = [nodes.take(one.node, deadline_s) for _ in range(3)]
    assert [wire.call(b"PING", deadline_s=deadline_s) for wire in wires] == [b"PONG"] * 3
    for wire in wires:
        nodes.drop(wire)
    runner.close()


def test_many_calls_at_once(store: Store) -> None:
    """Many calls at once from many threads: each gets its own connection and its own answer."""
    wrong: list[object] = []

    def work(index: int) -> None:
        key, value = bytes([index]) * 36, bytes([index]) * 65536
        for _ in range(5):
            outcomes = put(store, key, value), get(store, key, len(value))
            if outcomes != (Outcome.HIT, (Outcome.HIT, value)):
                wrong.append(outcomes)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert wrong == []
