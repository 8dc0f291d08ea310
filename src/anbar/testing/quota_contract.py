"""What every store that keeps quotas must do: a test suite to be run against each of them.

    class TestMyStore(QuotaContract):
        @pytest.fixture
        def place(self, tmp_path):
            return ...  # an empty `Place`

The scope `SMALL` may hold four entries of `NUM_BYTES` and a half, and so may each scope that nobody named;
`FREE` may hold what there is.
"""

from contextlib import AbstractContextManager
from typing import Protocol

from anbar.testing.store_contract import TIMEOUT_S, exists, put
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, Store

SMALL, FREE, UNNAMED = "small", "free", "unnamed"
NUM_BYTES = 100_000
"""Of a value; headers are small beside it."""
QUOTA_BYTES = 450_000
QUOTAS = Scopes(ScopeRules(QUOTA_BYTES), {SMALL: ScopeRules(QUOTA_BYTES), FREE: ScopeRules()})


class Place(Protocol):
    """Where stores are opened, all on the same entries."""

    copies: int
    """How many of each entry count."""

    def opened(self, scopes: Scopes, namespace: bytes = b"model") -> AbstractContextManager[Store]:
        """A store that knows what is there, and from then on looks only when it is told to."""
        ...

    def look(self, store: Store) -> None:
        """Have a store look at what is there, in all that it is made of, until there is nothing to do."""
        ...


def fill(store: Store, start: int = 0, scope: str = SMALL) -> list[Outcome]:
    """Store five values, one more than have room; what became of each."""
    return [put(store, key(index), bytes(NUM_BYTES), scope) for index in range(start, start + 5)]


def key(index: int) -> bytes:
    """Of an entry."""
    return bytes([index]) * 36


def held(store: Store, num_keys: int, scope: str = SMALL) -> int:
    """How many of the first keys are there."""
    keys = [key(index) for index in range(num_keys)]
    return store.exists(keys, scope=scope, timeout_s=TIMEOUT_S).count(Outcome.HIT)


FULL_SCOPE = [Outcome.HIT] * 4 + [Outcome.OVER_QUOTA]


class QuotaContract:
    """Derive, and give a fixture `place`."""

    def test_a_quota_bounds_its_scope_alone(self, place: Place) -> None:
        """Two scopes with a quota are full after four entries each, the one without is not; what is there
        already is stored again without more room."""
        with place.opened(QUOTAS) as store:
            assert fill(store) == fill(store, scope=UNNAMED) == FULL_SCOPE
            assert fill(store, scope=FREE) == [Outcome.HIT] * 5
            assert put(store, key(0), bytes(NUM_BYTES), SMALL) is Outcome.HIT

    def test_the_scopes_own_entries_make_room(self, place: Place) -> None:
        """What was refused is stored after a look; entries of that scope had to leave, and of others none."""
        with place.opened(QUOTAS) as store:
            fill(store)
            fill(store, scope=FREE)
            place.look(store)
            assert 3 <= held(store, 5) <= 4  # copies of two entries may be those that left
            assert put(store, key(5), bytes(NUM_BYTES), SMALL) is Outcome.HIT
            assert held(store, 5, FREE) == 5

    def test_it_is_told_what_a_scope_holds(self, place: Place) -> None:
        """Entries and bytes before and after a look, the quota, and what was evicted; only of scopes that
        are named."""
        with place.opened(QUOTAS) as store:
            fill(store, scope=UNNAMED)
            fill(store)
            stats = store.stats().scopes
            assert stats.keys() == {SMALL, FREE}
            before = stats[SMALL]
            assert before.quota_bytes == QUOTA_BYTES * place.copies
            assert before.num_entries == 4 * place.copies
            assert 4 * NUM_BYTES < (before.used_bytes or 0) / place.copies < 4.02 * NUM_BYTES
            assert before.num_evicted == 0
            place.look(store)
            after = store.stats().scopes[SMALL]
            assert after.num_entries == 3 * place.copies
            assert 3 * NUM_BYTES < (after.used_bytes or 0) / place.copies < 3.02 * NUM_BYTES
            assert after.num_evicted > 0

    def test_a_restart_knows_what_is_there(self, place: Place) -> None:
        """Under another model too, whose entries it does not see."""
        with place.opened(QUOTAS) as store:
            assert fill(store) == FULL_SCOPE
        with place.opened(QUOTAS, b"another model") as store:
            assert exists(store, key(0), SMALL) is Outcome.MISS
            assert fill(store) == [Outcome.OVER_QUOTA] * 5
            assert fill(store, scope=FREE) == [Outcome.HIT] * 5

    def test_engines_are_over_by_what_each_has_written(self, place: Place) -> None:
        """Two engines fill the scope side by side, neither knowing of the other; a look of both brings them
        below the quota together, and then both know. Each of several stores picks what leaves it."""
        with place.opened(QUOTAS) as one, place.opened(QUOTAS) as other:
            assert fill(one) == fill(other, start=5) == FULL_SCOPE
            assert held(one, 10) == 8
            place.look(one)
            place.look(other)
            assert held(one, 10) < 8
            assert (one.stats().scopes[SMALL].used_bytes or 0) <= QUOTA_BYTES * place.copies
            assert fill(other, start=20) == [Outcome.HIT] + [Outcome.OVER_QUOTA] * 4
            place.look(other)
            place.look(one)
            assert one.stats().scopes[SMALL].used_bytes == other.stats().scopes[SMALL].used_bytes

    def test_a_removed_scope_has_its_room_back(self, place: Place) -> None:
        """After a look at the latest."""
        with place.opened(QUOTAS) as store:
            fill(store)
            assert store.delete_scope(SMALL, timeout_s=TIMEOUT_S) is Outcome.HIT
            place.look(store)
            assert fill(store) == FULL_SCOPE

    def test_without_quotas_nothing_is_refused(self, place: Place) -> None:
        """Scopes with rules of another kind: all is stored."""
        with place.opened(Scopes(named={SMALL: ScopeRules(ttl_s=3600.0)})) as store:
            assert fill(store) == [Outcome.HIT] * 5
