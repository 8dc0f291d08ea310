"""What is in the server is not what was stored there: each time a miss, and kept aside."""

from collections.abc import Iterator

import pytest

from anbar.adapters.store.quarantine import MAX_BYTES, MAX_FILES
from anbar.adapters.store.record import HEADER_BYTES
from anbar.adapters.store.valkey.names import damaged_name
from anbar.adapters.store.valkey.store import ValkeyStore
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome
from tests.integration.valkey.servers import Server, server, store_on
from tests.waiting import wait_until

LAST = HEADER_BYTES + len(VALUE) - 1


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("valkey")) as one:
        yield one


@pytest.fixture
def store(one: Server) -> Iterator[ValkeyStore]:
    one.ask(b"FLUSHALL")
    with store_on(one.node) as store:
        yield store


def stored(one: Server, name: bytes) -> bytes:
    value = one.ask(b"GET", name)
    assert isinstance(value, bytes)
    return value


@pytest.mark.parametrize("offset", [0, 7, 8, 24, 40, 72, 80, HEADER_BYTES, HEADER_BYTES + 99, LAST])
def test_a_flipped_bit(one: Server, store: ValkeyStore, offset: int) -> None:
    """In each field of the header (the old format's magic is one of them) and in the payload: CORRUPT,
    kept aside as it is, and the key can be stored again."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    byte = stored(one, name)[offset] ^ 0x10
    one.ask(b"SETRANGE", name, b"%d" % offset, bytes([byte]))
    assert exists(store, KEY) is Outcome.HIT
    damaged = stored(one, name)
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert one.names() == [damaged_name(name)]
    assert stored(one, damaged_name(name)) == damaged
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)


def test_an_older_format(one: Server, store: ValkeyStore) -> None:
    """An entry that a former version wrote: its number is the magic's last character."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    one.ask(b"SETRANGE", name, b"7", b"0")
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, LAST])
def test_a_shorter_value(one: Server, store: ValkeyStore, size: int) -> None:
    """Among whole ones in one call: those are read all the same."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    put(store, OTHER, VALUE)
    one.ask(b"SET", name, stored(one, name)[:size])
    buffers = [bytearray(len(VALUE)) for _ in range(3)]
    keys = [OTHER, KEY, OTHER]
    found = store.get_into(keys, [memoryview(one) for one in buffers], scope="", timeout_s=TIMEOUT_S)
    assert found == [Outcome.HIT, Outcome.CORRUPT, Outcome.HIT]
    assert buffers[0] == buffers[2] == VALUE
    assert exists(store, KEY) is Outcome.MISS


def test_a_longer_value(one: Server, store: ValkeyStore) -> None:
    """Much longer than what is read ahead, among whole ones."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    put(store, OTHER, VALUE)
    one.ask(b"APPEND", name, bytes(100_000))
    buffers = [bytearray(len(VALUE)) for _ in range(2)]
    found = store.get_into([KEY, OTHER], [memoryview(one) for one in buffers], scope="", timeout_s=TIMEOUT_S)
    assert found == [Outcome.CORRUPT, Outcome.HIT]
    assert buffers[1] == VALUE


def test_swapped_values(one: Server, store: ValkeyStore) -> None:
    """Two whole entries of the same length, each under the other's name."""
    put(store, KEY, VALUE)
    put(store, OTHER, VALUE[::-1])
    first, second = one.names()
    values = stored(one, first), stored(one, second)
    one.ask(b"SET", first, values[1])
    one.ask(b"SET", second, values[0])
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert get(store, OTHER, len(VALUE))[0] is Outcome.CORRUPT
    assert set(one.names()) == {damaged_name(first), damaged_name(second)}


def test_another_tenants_and_another_models_value(one: Server, store: ValkeyStore) -> None:
    """The same key of another scope, or of another namespace, put in the place of this one's."""
    with store_on(one.node, namespace=b"another") as other:
        put(other, KEY, VALUE)
        put(store, KEY, VALUE, "tenant")
        foreign = one.names()
        put(store, KEY, VALUE)
        (name,) = set(one.names()) - set(foreign)
        for another in foreign:
            one.ask(b"SET", name, stored(one, another))
            assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT


def test_something_else_under_the_name(one: Server, store: ValkeyStore) -> None:
    """A list of somebody's: an error for this key alone."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    put(store, OTHER, VALUE)
    one.ask(b"DEL", name)
    one.ask(b"LPUSH", name, b"1")
    buffers = [memoryview(bytearray(len(VALUE))) for _ in range(2)]
    found = store.get_into([KEY, OTHER], buffers, scope="", timeout_s=TIMEOUT_S)
    assert found == [Outcome.ERROR, Outcome.HIT]


def damage(one: Server, store: ValkeyStore, key: bytes, scope: str = "") -> bytes:
    """Store an entry, spoil it and read it; its name."""
    before = set(one.names())
    put(store, key, VALUE, scope)
    (name,) = set(one.names()) - before
    one.ask(b"SETRANGE", name, b"%d" % LAST, b"?")
    assert get(store, key, len(VALUE), scope)[0] is Outcome.CORRUPT
    return name


def test_kept_for_a_week(one: Server, store: ValkeyStore) -> None:
    """Longer than whole entries live, and not for ever."""
    left_s = one.ask(b"TTL", damaged_name(damage(one, store, KEY)))
    assert isinstance(left_s, int)
    assert 6 * 86_400 < left_s <= 7 * 86_400


def test_an_entry_is_kept_once(one: Server, store: ValkeyStore) -> None:
    """The first time; then it is removed."""
    name = damage(one, store, KEY)
    put(store, KEY, VALUE)
    one.ask(b"APPEND", name, b"more")
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert one.names() == [damaged_name(name)]
    assert len(stored(one, damaged_name(name))) == LAST + 1


def test_no_more_than_some(one: Server, store: ValkeyStore) -> None:
    """Of many damaged ones, the rest is removed."""
    for index in range(MAX_FILES + 3):
        damage(one, store, b"%036d" % index)
    assert len(one.names()) == MAX_FILES


def test_none_that_is_too_large(one: Server, store: ValkeyStore) -> None:
    """By the bytes that it has in the server, which are more than were asked for."""
    put(store, KEY, VALUE)
    (name,) = one.names()
    one.ask(b"SETRANGE", name, b"%d" % MAX_BYTES, b"?")
    assert get(store, KEY, len(VALUE))[0] is Outcome.CORRUPT
    assert one.names() == []


def test_purged_with_its_scope(one: Server, store: ValkeyStore) -> None:
    """A neighbour's stays."""
    damage(one, store, KEY, "tenant")
    kept = damage(one, store, KEY, "neighbour")
    assert store.delete_scope("tenant", timeout_s=TIMEOUT_S) is Outcome.HIT
    assert one.names() == [damaged_name(kept)]


def test_a_user_who_may_not_rename(one: Server, store: ValkeyStore) -> None:
    """It is removed, as what is not kept is."""
    one.ask(b"ACL", b"SETUSER", b"default", b"-renamenx")
    try:
        damage(one, store, KEY)
    finally:
        one.ask(b"ACL", b"SETUSER", b"default", b"+renamenx")
    assert one.names() == []


def test_what_is_kept_aside_is_told_as_gone(one: Server, store: ValkeyStore) -> None:
    """Nobody can read it any more."""
    one.ask(b"CONFIG", b"SET", b"notify-keyspace-events", b"Exeg")

    def one_is_heard() -> bool:
        put(store, OTHER, VALUE)
        store.delete([OTHER], scope="", timeout_s=TIMEOUT_S)
        return OTHER in store.take_evicted()

    wait_until(one_is_heard)
    damage(one, store, KEY)
    wait_until(lambda: KEY in store.take_evicted())


def test_with_a_life_of_its_scope(one: Server) -> None:
    """No longer than anything of the scope lives."""
    scopes = Scopes(named={"tenant": ScopeRules(ttl_s=60.0)})
    with store_on(one.node, scopes=scopes) as store:
        one.ask(b"FLUSHALL")
        left_s = one.ask(b"TTL", damaged_name(damage(one, store, KEY, "tenant")))
    assert isinstance(left_s, int)
    assert 0 < left_s <= 60
