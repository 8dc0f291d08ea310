"""What is encrypted cannot be read, moved or forged without its data key, which may go at any time."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.store.buffers import Bytes, as_bytes
from anbar.adapters.store.encrypted import EncryptedStore
from anbar.adapters.store.seal import EXTRA_BYTES, Seal, key_of_name
from anbar.testing.memory_store import MemoryStore
from anbar.testing.store_contract import KEY, OTHER, TIMEOUT_S, VALUE, exists, get, put
from anbar.tier.placement import Rendezvous
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, PutItem
from tests.unit.store.composed import directories, replicated, settle
from tests.unit.store.encrypted import DATA_KEY, NAMESPACE, KeyRing, encrypted

TENANT = "tenant-a"
NEW_KEY = bytes(range(100, 132))
SEAL = Seal(DATA_KEY, TENANT, NAMESPACE)
NAME = SEAL.name(KEY)
SEALED_BYTES = len(VALUE) + EXTRA_BYTES


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing([TENANT])


@pytest.fixture
def store(inner: MemoryStore, ring: KeyRing) -> EncryptedStore:
    return encrypted(inner, ring)


def test_nothing_of_a_value_is_in_the_store(tmp_path: Path) -> None:
    """A value of one letter is stored for a tenant with a key and for one without: only of the second does
    any file hold a part."""
    (files,) = directories(tmp_path, ["files"])
    store = encrypted(files, KeyRing([TENANT]))
    letters = b"anbar" * 1000
    assert put(store, KEY, letters, TENANT) is Outcome.HIT
    (path,) = tmp_path.rglob("*.kv")
    assert b"anbar" * 2 not in path.read_bytes()
    assert get(store, KEY, len(letters), TENANT) == (Outcome.HIT, letters)
    assert put(store, KEY, letters) is Outcome.HIT
    assert sum(letters in path.read_bytes() for path in tmp_path.rglob("*.kv")) == 1
    store.close()


def test_a_deleted_key_takes_effect_at_the_next_call(
    store: EncryptedStore, inner: MemoryStore, ring: KeyRing
) -> None:
    """The key goes: lookups, loads and stores say so without asking the store. Without the key the scope can
    still be removed. Another tenant's values are not touched."""
    put(store, KEY, VALUE, TENANT)
    put(store, KEY, VALUE, "plain")
    del ring.keys[TENANT]
    num_calls = inner.num_calls
    assert exists(store, KEY, TENANT) is Outcome.NO_KEY
    assert get(store, KEY, len(VALUE), TENANT)[0] is Outcome.NO_KEY
    assert put(store, OTHER, VALUE, TENANT) is Outcome.NO_KEY
    assert store.delete([KEY], scope=TENANT, timeout_s=TIMEOUT_S) == [Outcome.MISS]
    assert inner.num_calls == num_calls
    assert get(store, KEY, len(VALUE), "plain") == (Outcome.HIT, VALUE)
    assert exists(inner, NAME, TENANT) is Outcome.HIT
    assert store.delete_scope(TENANT, timeout_s=TIMEOUT_S) is Outcome.HIT
    assert exists(inner, NAME, TENANT) is Outcome.MISS


def test_a_key_is_made_when_something_is_stored(inner: MemoryStore, tmp_path: Path) -> None:
    """With keys in files: looking makes none, storing does. The file is deleted: what it sealed is gone, and
    what is stored then gets another key. A file that others may read is as none, and stays."""
    keys = KeyFiles(tmp_path / "keys")
    store = EncryptedStore(inner, NAMESPACE, Scopes(default=ScopeRules(encrypt=True)), keys)
    assert exists(store, KEY, TENANT) is Outcome.NO_KEY
    assert keys.data_key(TENANT) is None
    assert put(store, KEY, VALUE, TENANT) is Outcome.HIT
    assert get(store, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)
    keys.purge(TENANT)
    assert get(store, KEY, len(VALUE), TENANT)[0] is Outcome.NO_KEY
    assert put(store, OTHER, VALUE, TENANT) is Outcome.HIT
    assert get(store, KEY, len(VALUE), TENANT)[0] is Outcome.MISS
    assert get(store, OTHER, len(VALUE), TENANT) == (Outcome.HIT, VALUE)
    (path,) = (tmp_path / "keys").glob("*.key")
    readable = path.with_suffix(".new")
    readable.write_bytes(path.read_bytes())
    readable.chmod(0o644)
    readable.replace(path)
    assert get(store, OTHER, len(VALUE), TENANT)[0] is Outcome.NO_KEY
    assert put(store, OTHER, VALUE, TENANT) is Outcome.NO_KEY
    path.chmod(0o600)
    assert get(store, OTHER, len(VALUE), TENANT) == (Outcome.HIT, VALUE)


def test_a_new_key_does_not_find_what_the_old_one_sealed(
    store: EncryptedStore, inner: MemoryStore, ring: KeyRing
) -> None:
    """A key is replaced: what it sealed is missing, not damaged, and is stored again beside it. Who still has
    the old key finds its own."""
    old = encrypted(inner, KeyRing([TENANT]))
    put(store, KEY, VALUE, TENANT)
    ring.keys[TENANT] = NEW_KEY
    assert get(store, KEY, len(VALUE), TENANT)[0] is Outcome.MISS
    assert put(store, KEY, VALUE[::-1], TENANT) is Outcome.HIT
    assert get(store, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE[::-1])
    assert get(old, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)


@pytest.mark.parametrize("data_key", [b"", b"short", bytes(33)])
def test_a_key_of_another_length_is_none(store: EncryptedStore, ring: KeyRing, data_key: bytes) -> None:
    """A key file that was cut off, or written by hand, seals nothing."""
    ring.keys[TENANT] = data_key
    assert put(store, KEY, VALUE, TENANT) is Outcome.NO_KEY


@given(st.integers(0, 8 * SEALED_BYTES - 1))
def test_every_flipped_bit_is_damage(bit: int) -> None:
    """Whichever bit of a sealed value is flipped, by someone who can make the store's own checksum fit: it is
    damage, it is removed, and the value can be stored again."""
    inner = MemoryStore()
    store = encrypted(inner, KeyRing([TENANT]))
    put(store, KEY, VALUE, TENANT)
    sealed = bytearray(get(inner, NAME, SEALED_BYTES, TENANT)[1])
    sealed[bit // 8] ^= 1 << bit % 8
    inner.delete([NAME], scope=TENANT, timeout_s=TIMEOUT_S)
    put(inner, NAME, bytes(sealed), TENANT)
    assert get(store, KEY, len(VALUE), TENANT)[0] is Outcome.CORRUPT
    assert exists(store, KEY, TENANT) is Outcome.MISS
    assert put(store, KEY, VALUE, TENANT) is Outcome.HIT
    assert get(store, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)


@pytest.mark.parametrize(
    ("seal", "key"),
    [
        (Seal(DATA_KEY, TENANT, b"another model"), KEY),
        (Seal(DATA_KEY, "tenant-b", NAMESPACE), KEY),
        (Seal(NEW_KEY, TENANT, NAMESPACE), KEY),
        (SEAL, OTHER),
    ],
    ids=["another model", "another scope", "another data key", "another key"],
)
def test_a_value_from_elsewhere_does_not_open(seal: Seal, key: bytes, store: EncryptedStore) -> None:
    """Someone who can write into the store, and make its checksum fit, moves a sealed value to this name."""
    sealed = memoryview(bytearray(SEALED_BYTES))
    seal.close(key, _array(VALUE), _array(sealed))
    put(store._inner, NAME, bytes(sealed), TENANT)
    assert get(store, KEY, len(VALUE), TENANT)[0] is Outcome.CORRUPT


def test_a_forged_copy_is_replaced_from_a_good_one(tmp_path: Path) -> None:
    """Two directories hold each value, sealed for each by itself. In the one that is asked first it is
    replaced by a forgery that has a good checksum: it is read from the other, and written there again."""
    files = directories(tmp_path, ["a", "b"])
    store = replicated([encrypted(one, KeyRing([TENANT])) for one in files])
    put(store, KEY, VALUE, TENANT)
    settle(store)
    first = files[Rendezvous(["a", "b"], 2).of(KEY)[0]]
    assert first.delete([NAME], scope=TENANT, timeout_s=TIMEOUT_S) == [Outcome.HIT]
    put(first, NAME, bytes(SEALED_BYTES), TENANT)
    assert get(store, KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)
    settle(store)
    assert get(encrypted(first, KeyRing([TENANT])), KEY, len(VALUE), TENANT) == (Outcome.HIT, VALUE)
    store.close()


def test_equal_values_are_sealed_differently(store: EncryptedStore, inner: MemoryStore) -> None:
    """The same value is stored a thousand times: no two beginnings of what is stored are equal."""
    seen = set()
    for _ in range(1000):
        put(store, KEY, VALUE[:64], TENANT)
        seen.add(get(inner, NAME, 64 + EXTRA_BYTES, TENANT)[1][:12])
        store.delete([KEY], scope=TENANT, timeout_s=TIMEOUT_S)
    assert len(seen) == 1000


def test_evicted_keys_have_their_own_names(store: EncryptedStore, inner: MemoryStore) -> None:
    """What the store below evicts is told by the names that callers know, sealed or not."""
    put(store, KEY, VALUE, TENANT)
    put(store, OTHER, VALUE, "plain")
    inner.evict(NAME, TENANT)
    inner.evict(OTHER, "plain")
    assert store.take_evicted() == [KEY, OTHER]


@given(st.binary(min_size=1, max_size=64))
def test_names_tell_their_key(key: bytes) -> None:
    """Sealed names give their key back."""
    assert key_of_name(SEAL.name(key)) == key


@settings(max_examples=30)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 100))
def test_large_calls_go_in_parts(sizes: list[int], part: int) -> None:
    """Values of any size are stored and read in one call, however many of them are sealed at a time."""
    inner = MemoryStore()
    store = encrypted(inner, KeyRing([TENANT]))
    values = [bytes([index + 1]) * (size * part * 1000) for index, size in enumerate(sizes)]
    items = [PutItem(bytes([index]), memoryview(value)) for index, value in enumerate(values)]
    assert store.put(items, scope=TENANT, timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(items)
    buffers = [bytearray(len(value)) for value in values]
    keys = [item.key for item in items]
    views = [memoryview(buffer) for buffer in buffers]
    assert store.get_into(keys, views, scope=TENANT, timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(items)
    assert buffers == values


def test_a_late_call_leaves_the_buffer_alone(store: EncryptedStore, inner: MemoryStore) -> None:
    """The store below answers when the time is over: TIMEOUT, and nothing has been decrypted."""
    put(store, KEY, VALUE, TENANT)
    inner.delay_s = 0.05
    buffer = bytearray(len(VALUE))
    found = store.get_into([KEY], [memoryview(buffer)], scope=TENANT, timeout_s=0.01)
    assert found == [Outcome.TIMEOUT]
    assert not any(buffer)


def test_keys_come_and_go_under_load(store: EncryptedStore, ring: KeyRing) -> None:
    """Readers and writers while the key is taken away and given back: every answer is the value, or says that
    there is none."""
    wrong: list[object] = []
    allowed = {Outcome.HIT, Outcome.MISS, Outcome.NO_KEY}

    def work(call: Callable[[], Outcome]) -> None:
        for _ in range(200):
            outcome = call()
            if outcome not in allowed:
                wrong.append(outcome)

    def read() -> Outcome:
        outcome, value = get(store, KEY, len(VALUE), TENANT)
        return outcome if outcome is not Outcome.HIT or value == VALUE else Outcome.ERROR

    calls = [read, lambda: put(store, KEY, VALUE, TENANT)] * 2
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        ring.keys.pop(TENANT, None)
        ring.keys[TENANT] = DATA_KEY
    assert wrong == []


def _array(data: bytes | memoryview) -> Bytes:
    return as_bytes(memoryview(data))
