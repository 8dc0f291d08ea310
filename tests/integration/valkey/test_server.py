"""What the store makes of one real server's abilities: lifetimes, scopes, notifications, bounds, logins."""

import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.store.valkey.store import ValkeyStore
from anbar.adapters.store.valkey.wire import Login, Node
from anbar.core.errors import StoreError
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, StoreStats
from tests.integration.valkey.servers import LOGIN, NAMESPACE, Server, server, store_on
from tests.ports import free_port
from tests.waiting import wait_until

PASSWORD = "a-very-secret-word"
GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/store-valkey.md"
(RIGHTS,) = re.findall(r"of its own needs `([^`]+)`", GUIDE.read_text())
"""What the guide says that a user needs."""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("valkey"), "--notify-keyspace-events", "Exeg") as one:
        yield one


@pytest.fixture
def store(one: Server) -> Iterator[ValkeyStore]:
    one.ask(b"FLUSHALL")
    with store_on(one.node, ttl_s=1000) as store:
        yield store


def ttl(one: Server) -> int:
    (name,) = one.names()
    left = one.ask(b"TTL", name)
    assert isinstance(left, int)
    return left


def test_using_an_entry_prolongs_its_life(one: Server, store: ValkeyStore) -> None:
    """Stored, read and stored again: each time its whole time to live is before it."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    assert 500 < ttl(one) <= 1000
    for use in (lambda: get(store, KEY, len(VALUE)), lambda: put(store, KEY, VALUE)):
        one.ask(b"EXPIRE", name, b"500")
        use()
        assert ttl(one) > 500


def test_a_scope_has_a_life_of_its_own(one: Server, store: ValkeyStore) -> None:
    """A tenant's entries live for 200 s and a half, others as long as the store says; using one gives it its
    tenant's time again."""
    scopes = Scopes(named={"tenant": ScopeRules(ttl_s=200.5)})
    with store_on(one.node, ttl_s=1000, scopes=scopes) as rationed:
        put(rationed, KEY, VALUE, "tenant")
        assert 100 < ttl(one) <= 201
        (name,) = one.names()
        for use in (
            lambda: get(rationed, KEY, len(VALUE), "tenant"),
            lambda: put(rationed, KEY, VALUE, "tenant"),
        ):
            one.ask(b"EXPIRE", name, b"100")
            use()
            assert 100 < ttl(one) <= 201
        one.ask(b"FLUSHALL")
        put(rationed, KEY, VALUE)
        assert 500 < ttl(one) <= 1000


def test_an_entry_without_an_end(one: Server, store: ValkeyStore) -> None:
    """`ttl_s: null`, in a server that evicts."""
    one.ask(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru")
    try:
        with store_on(one.node, ttl_s=None) as endless:
            put(endless, KEY, VALUE)
            assert ttl(one) == -1
            assert get(endless, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    finally:
        one.ask(b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")


def test_what_is_there_is_not_sent_again(one: Server, store: ValkeyStore) -> None:
    """A second put of a key costs the server no value."""
    put(store, KEY, VALUE)
    one.ask(b"CONFIG", b"RESETSTAT")
    assert put(store, KEY, VALUE) is Outcome.HIT
    stats = one.ask(b"INFO", b"commandstats")
    assert isinstance(stats, bytes)
    assert b"cmdstat_set:" not in stats


def test_names_tell_no_tenant(one: Server, store: ValkeyStore) -> None:
    """Neither a scope nor a namespace stands in them."""
    put(store, KEY, VALUE, "tenant-a")
    (name,) = one.names()
    assert name.startswith(b"anbar:1:")
    assert b"tenant" not in name
    assert NAMESPACE not in name


def test_a_scope_is_purged_for_all_models(one: Server, store: ValkeyStore) -> None:
    """From among more than one step's names: nothing of others goes, and nothing of somebody else's."""
    with store_on(one.node, namespace=b"another") as other:
        for index in range(30):
            put(store, bytes([index]) * 8, b"x", "tenant")
            put(other, bytes([index]) * 8, b"x", "tenant")
        put(store, KEY, VALUE, "neighbour")
        one.ask(b"DEBUG", b"POPULATE", b"3000")
        kept = [name for name in one.names() if not name.startswith(b"anbar")]
        assert len(kept) == 3000
        assert other.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.HIT
        assert other.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.MISS
        assert get(store, KEY, len(VALUE), "neighbour") == (Outcome.HIT, VALUE)
        assert len(one.names()) == 3001


def test_it_hears_what_has_gone(one: Server, store: ValkeyStore) -> None:
    """Entries that expire, and one that another engine removes, are told; another model's are not. The first
    ones may come before it listens."""
    heard: set[bytes] = set()
    numbers = iter(range(100_000))

    def one_is_heard() -> bool:
        key = b"%036d" % next(numbers)
        put(store, key, b"x")
        (name,) = one.names()
        one.ask(b"PEXPIRE", name, b"1")
        wait_until(lambda: one.names() == [])
        heard.update(store.take_evicted())
        return bool(heard)

    wait_until(one_is_heard)
    with store_on(one.node, namespace=b"another") as other:
        put(other, OTHER, VALUE)
        other.delete([OTHER], scope="", timeout_s=TIMEOUT_S)
    put(store, KEY, VALUE)
    one.ask(b"UNLINK", *one.names())
    wait_until(lambda: heard.update(store.take_evicted()) or KEY in heard)
    assert OTHER not in heard


def test_it_hears_again_after_a_restart(one: Server, store: ValkeyStore) -> None:
    """The connection that listens is made anew by itself."""
    one.kill()
    one.start()
    wait_until(lambda: put(store, KEY, VALUE) is Outcome.HIT)

    def one_is_heard() -> bool:
        put(store, KEY, VALUE)
        store.delete([KEY], scope="", timeout_s=TIMEOUT_S)
        return KEY in store.take_evicted()

    wait_until(one_is_heard)


def test_a_full_server_that_may_not_evict(one: Server, store: ValkeyStore) -> None:
    """FULL, and what is there is still read; as soon as there is room it stores again."""
    one.ask(b"CONFIG", b"SET", b"maxmemory", b"8mb")
    try:
        found = [put(store, bytes([index]) * 8, VALUE * 64) for index in range(16)]
        assert found[0] is Outcome.HIT
        assert found[-1] is Outcome.FULL
        assert set(found) == {Outcome.HIT, Outcome.FULL}
        assert get(store, bytes(8), 64 * len(VALUE)) == (Outcome.HIT, VALUE * 64)
    finally:
        one.ask(b"CONFIG", b"SET", b"maxmemory", b"0")
    assert put(store, KEY, VALUE) is Outcome.HIT


def test_a_full_server_that_evicts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every put succeeds, the oldest go, and which ones is told; its occupancy stays within its memory."""
    options = ("--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru", "--notify-keyspace-events", "Exeg")
    with server(tmp_path_factory.mktemp("evicting"), *options) as small, store_on(small.node) as store:
        wait_until(lambda: store.stats() != StoreStats(None, None, None))
        assert store.stats().capacity_bytes == 16 * 1024**2
        evicted: list[bytes] = []
        numbers = iter(range(100_000))

        def one_is_told() -> bool:
            assert put(store, b"%036d" % next(numbers), VALUE * 64) is Outcome.HIT
            evicted.extend(store.take_evicted())
            return bool(evicted)

        wait_until(one_is_told)
        assert exists(store, evicted[0]) is Outcome.MISS


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    user = ("--user", "limited", "on", f">{PASSWORD}", *RIGHTS.split())
    with server(folder, "--requirepass", PASSWORD, *user, "--notify-keyspace-events", "Exeg") as one:
        yield one


def login(username: str | None, password: str | None) -> Login:
    return Login(username, lambda: password, connect_timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("user", [None, "limited"])
def test_a_password(guarded: Server, user: str | None) -> None:
    """Of the default user, and of one with the rights that the guide names: all that a store does it may."""
    with store_on(guarded.node, login=login(user, PASSWORD)) as store:
        assert put(store, KEY, VALUE) is Outcome.HIT
        assert put(store, KEY, VALUE) is Outcome.HIT
        assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
        wait_until(lambda: store.stats().used_bytes)

        def one_is_heard() -> bool:
            put(store, KEY, VALUE)
            store.delete([KEY], scope="", timeout_s=TIMEOUT_S)
            return KEY in store.take_evicted()

        wait_until(one_is_heard)
        put(store, KEY, VALUE)
        assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT
        put(store, KEY, VALUE)
        assert get(store, KEY, len(VALUE) - 1)[0] is Outcome.CORRUPT
        assert exists(store, KEY) is Outcome.MISS
        assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.HIT  # what was kept aside


@pytest.mark.parametrize(("user", "password"), [(None, None), (None, "wrong-word"), ("nobody", PASSWORD)])
def test_a_wrong_password_is_an_error(
    guarded: Server, user: str | None, password: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """None where one is needed, a wrong one, a wrong user: an engine does not start with it, and nothing
    shows it."""
    with pytest.raises(StoreError) as caught, store_on(guarded.node, login=login(user, password)):
        pass
    assert guarded.node in str(caught.value)
    assert str(password) not in str(caught.value)
    assert str(password) not in caplog.text


def test_a_password_that_changes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The server gets one while the store is open: errors, then, with the right one given, it works again
    without being opened anew."""
    said: list[str | None] = [None]
    asked = Login(password=lambda: said[0], connect_timeout_s=TIMEOUT_S)
    with server(tmp_path_factory.mktemp("changing")) as one, store_on(one.node, login=asked) as store:
        put(store, KEY, VALUE)
        one.ask_in_turn(
            (b"CONFIG", b"SET", b"requirepass", PASSWORD.encode()), (b"CLIENT", b"KILL", b"TYPE", b"normal")
        )
        wait_until(lambda: exists(store, KEY) is Outcome.ERROR)
        said[0] = PASSWORD
        wait_until(lambda: exists(store, KEY) is Outcome.HIT)


def test_a_server_that_is_not_there_yet(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning; it is used as soon as it answers."""
    one = Server(tmp_path_factory.mktemp("late"))
    with caplog.at_level(logging.WARNING), store_on(one.node) as store:
        assert exists(store, KEY) is Outcome.ERROR
        assert f"Valkey at {one.node}: not usable now" in caplog.text
        assert store.stats() == StoreStats(None, None, None)
        assert store.take_evicted() == []
        try:
            one.start()
            wait_until(lambda: put(store, KEY, VALUE) is Outcome.HIT)
        finally:
            one.kill()


def test_something_else_listens_there() -> None:
    """It answers in words of another protocol: an engine does not start with it."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StoreError, match="protocol"), store_on(Node(f"127.0.0.1:{port}")):
            pass
        thread.join(timeout=TIMEOUT_S)


def test_a_server_that_would_fill_up_for_ever(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Entries without an end and no eviction is an error that names the setting; with an end it is a warning,
    and so is a server without a bound."""
    with pytest.raises(StoreError, match="maxmemory-policy is noeviction"), store_on(one.node, ttl_s=None):
        pass
    one.ask(b"CONFIG", b"SET", b"maxmemory-policy", b"volatile-lru")
    with pytest.raises(StoreError, match="volatile-lru evicts only"), store_on(one.node, ttl_s=None):
        pass
    one.ask(b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")
    with caplog.at_level(logging.WARNING), store_on(one.node):
        assert "it has no maxmemory" in caplog.text
    one.ask(b"CONFIG", b"SET", b"maxmemory", b"100mb")
    with caplog.at_level(logging.WARNING), store_on(one.node):
        assert "once full it refuses" in caplog.text
    one.ask(b"CONFIG", b"SET", b"maxmemory", b"0")


def test_a_cluster_is_not_one_server(one: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each named as the other: an error that names the key."""
    with pytest.raises(StoreError, match="cluster to false"), store_on(one.node, is_cluster=True):
        pass
    folder = tmp_path_factory.mktemp("clustered")
    with (
        server(folder, "--cluster-enabled", "yes") as part,
        pytest.raises(StoreError, match="cluster to true"),
        store_on(part.node),
    ):
        pass


def test_a_database_of_its_own(one: Server, store: ValkeyStore) -> None:
    """What is in one is not in the other."""
    with store_on(one.node, login=Login(db=3, connect_timeout_s=LOGIN.connect_timeout_s)) as other:
        put(other, KEY, VALUE)
        assert exists(store, KEY) is Outcome.MISS
        assert exists(other, KEY) is Outcome.HIT
