"""What every `Store` must do: a test suite to be run against each of them.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = open_my_store(tmp_path)
            yield store
            store.close()

A fixture that gives a store with the value damaged in some way of its own belongs to the store's own tests.
"""

import threading

from anbar.tier.store import Outcome, PutItem, Store

TIMEOUT_S = 60.0
KEY = b"\x01" * 32 + b"\x00\x00\x00\x00"
OTHER = b"\x02" * 32 + b"\x00\x00\x00\x00"
VALUE = bytes(range(256)) * 64
_ODD_SCOPES = ("../../etc", ".", "a/b", "x" * 256, "مستأجر", "किरायेदार", "a\x00b")
SCOPES = ("", "tenant-a", "tenant-b", *_ODD_SCOPES)
"""All that the suite uses, for a store that must know them before."""


def put(store: Store, key: bytes, value: bytes, scope: str = "") -> Outcome:
    """Store one value."""
    (outcome,) = store.put([PutItem(key, memoryview(value))], scope=scope, timeout_s=TIMEOUT_S)
    return outcome


def get(store: Store, key: bytes, num_bytes: int, scope: str = "") -> tuple[Outcome, bytes]:
    """Read one value into a buffer of `num_bytes`."""
    buffer = bytearray(num_bytes)
    (outcome,) = store.get_into([key], [memoryview(buffer)], scope=scope, timeout_s=TIMEOUT_S)
    return outcome, bytes(buffer)


def exists(store: Store, key: bytes, scope: str = "") -> Outcome:
    """Look up one key."""
    (outcome,) = store.exists([key], scope=scope, timeout_s=TIMEOUT_S)
    return outcome


class StoreContract:
    """Derive, and give a fixture `store`: an empty, open store."""

    def test_a_value_comes_back(self, store: Store) -> None:
        """Put, look up and read one value: the same bytes."""
        assert put(store, KEY, VALUE) is Outcome.HIT
        assert exists(store, KEY) is Outcome.HIT
        assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)

    def test_an_unknown_key_is_a_miss(self, store: Store) -> None:
        """Nothing was stored: every operation on the key says so."""
        assert exists(store, KEY) is Outcome.MISS
        assert get(store, KEY, 8)[0] is Outcome.MISS
        assert store.delete([KEY], scope="", timeout_s=TIMEOUT_S) == [Outcome.MISS]
        assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.MISS

    def test_outcomes_are_in_the_order_of_the_keys(self, store: Store) -> None:
        """Two hundred keys, every third stored: lookups and reads answer in the order of the question."""
        keys = [index.to_bytes(4, "big") for index in range(200)]
        stored = keys[::3]
        items = [PutItem(key, memoryview(key * 8)) for key in stored]
        assert store.put(items, scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT] * len(stored)
        expected = [Outcome.HIT if key in stored else Outcome.MISS for key in keys]
        assert store.exists(keys, scope="", timeout_s=TIMEOUT_S) == expected
        buffers = [bytearray(32) for _ in keys]
        found = store.get_into(keys, [memoryview(b) for b in buffers], scope="", timeout_s=TIMEOUT_S)
        assert found == expected
        assert all(bytes(b) == k * 8 for k, b in zip(keys, buffers, strict=True) if k in stored)

    def test_putting_twice_succeeds_and_keeps_the_first(self, store: Store) -> None:
        """A key names its content, so a second put need not write; both are successes."""
        assert put(store, KEY, VALUE) is Outcome.HIT
        assert put(store, KEY, VALUE) is Outcome.HIT
        assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)

    def test_what_an_entry_saves_is_only_a_hint(self, store: Store) -> None:
        """Nothing, little, more than all time, and no number: the value is stored and comes back."""
        for index, saves_s in enumerate([0.0, 1e-9, 3.5, 1e300, float("inf"), float("nan"), -1.0]):
            item = PutItem(bytes([index]) * 36, memoryview(VALUE), saves_s)
            assert store.put([item], scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT]
            assert get(store, item.key, len(VALUE)) == (Outcome.HIT, VALUE)

    def test_scopes_are_apart(self, store: Store) -> None:
        """The same key under two scopes is two entries; removing one scope leaves the other."""
        put(store, KEY, b"a" * 64, "tenant-a")
        put(store, KEY, b"b" * 64, "tenant-b")
        assert exists(store, KEY) is Outcome.MISS
        assert get(store, KEY, 64, "tenant-a") == (Outcome.HIT, b"a" * 64)
        assert store.delete_scope("tenant-a", timeout_s=TIMEOUT_S) is Outcome.HIT
        assert exists(store, KEY, "tenant-a") is Outcome.MISS
        assert get(store, KEY, 64, "tenant-b") == (Outcome.HIT, b"b" * 64)
        assert put(store, KEY, b"a" * 64, "tenant-a") is Outcome.HIT

    def test_a_scope_may_be_any_text(self, store: Store) -> None:
        """Path separators, dots, long and non-Latin names are scopes like others."""
        for index, scope in enumerate(_ODD_SCOPES):
            assert put(store, KEY, bytes([index]) * 8, scope) is Outcome.HIT
        for index, scope in enumerate(_ODD_SCOPES):
            assert get(store, KEY, 8, scope) == (Outcome.HIT, bytes([index]) * 8)

    def test_keys_of_any_length(self, store: Store) -> None:
        """One byte, an engine's 36, and 5,000 bytes; a key that is another's prefix is not it."""
        keys = [b"k", b"kk", KEY, b"\x00" * 96, b"\x00" * 97, b"\xff" * 5000]
        for key in keys:
            assert put(store, key, bytes([len(key) % 251]) * 16) is Outcome.HIT
        for key in keys:
            assert get(store, key, 16) == (Outcome.HIT, bytes([len(key) % 251]) * 16)

    def test_another_length_is_damage(self, store: Store) -> None:
        """A buffer of another size than the value is CORRUPT, and the entry is removed."""
        put(store, KEY, VALUE)
        assert get(store, KEY, len(VALUE) - 1)[0] is Outcome.CORRUPT
        assert exists(store, KEY) is Outcome.MISS

    def test_a_deleted_key_is_gone(self, store: Store) -> None:
        """Delete one of two keys: the other stays, and the first can be stored anew."""
        put(store, KEY, VALUE)
        put(store, OTHER, VALUE)
        assert store.delete([KEY], scope="", timeout_s=TIMEOUT_S) == [Outcome.HIT]
        assert exists(store, KEY) is Outcome.MISS
        assert exists(store, OTHER) is Outcome.HIT
        assert put(store, KEY, VALUE) is Outcome.HIT

    def test_no_time_is_a_timeout(self, store: Store) -> None:
        """With no time left every key is TIMEOUT at once, and nothing is written into the buffer."""
        put(store, KEY, VALUE)
        buffer = bytearray(len(VALUE))
        assert store.exists([KEY], scope="", timeout_s=0.0) == [Outcome.TIMEOUT]
        found = store.get_into([KEY], [memoryview(buffer)], scope="", timeout_s=0.0)
        assert found == [Outcome.TIMEOUT]
        assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)  # what was begun before has ended
        assert not any(buffer)

    def test_nothing_to_do(self, store: Store) -> None:
        """Calls without keys answer nothing."""
        assert store.exists([], scope="", timeout_s=TIMEOUT_S) == []
        assert store.get_into([], [], scope="", timeout_s=TIMEOUT_S) == []
        assert store.put([], scope="", timeout_s=TIMEOUT_S) == []

    def test_threads_see_whole_values(self, store: Store) -> None:
        """Four writers and four readers on the same keys: a reader gets the whole value or a miss."""
        keys = [bytes([index]) * 16 for index in range(16)]
        wrong: list[object] = []

        def write() -> None:
            for key in keys:
                outcome = put(store, key, key * 512)
                if outcome is not Outcome.HIT:
                    wrong.append(outcome)

        def read() -> None:
            for _ in range(4):
                for key in keys:
                    outcome, value = get(store, key, 16 * 512)
                    if outcome is Outcome.MISS or (outcome is Outcome.HIT and value == key * 512):
                        continue
                    wrong.append(outcome)

        threads = [threading.Thread(target=work) for work in [write, read] * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert wrong == []
        assert all(get(store, key, 16 * 512) == (Outcome.HIT, key * 512) for key in keys)

    def test_it_tells_its_name_and_size(self, store: Store) -> None:
        """The name is not empty; occupancy is a count or unknown, never negative."""
        put(store, KEY, VALUE)
        stats = store.stats()
        assert store.id
        assert stats.num_entries is None or stats.num_entries >= 0
        assert stats.used_bytes is None or stats.used_bytes >= 0
        assert store.take_evicted() == []

    def test_a_closed_store_answers_error(self, store: Store) -> None:
        """After `close`, which may be called twice, every call is an ERROR."""
        put(store, KEY, VALUE)
        store.close()
        store.close()
        assert exists(store, KEY) is Outcome.ERROR
        assert get(store, KEY, len(VALUE))[0] is Outcome.ERROR
        assert put(store, KEY, VALUE) is Outcome.ERROR
        assert store.delete([KEY], scope="", timeout_s=TIMEOUT_S) == [Outcome.ERROR]
        assert store.delete_scope("", timeout_s=TIMEOUT_S) is Outcome.ERROR
