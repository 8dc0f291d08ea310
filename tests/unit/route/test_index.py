"""The prefix index, one property of it at a time (its equality with a naive model is `test_index_model`)."""

from dataclasses import replace

import pytest

from anbar.core.events import BlocksStored, Tier, Unknown
from anbar.core.fleet import PrefixMatch
from anbar.core.ids import EngineHash, EngineId
from anbar.route.index import PrefixIndex
from anbar.route.profile import EngineProfile
from anbar.route.residency import ResidencyLimits

from .builders import BLOCK, batch, cleared, engine_hash, offloaded, query, removed, stored

A, B = EngineId("a"), EngineId("b")
STORE = "anbar:s"
SHARED = EngineProfile("m", BLOCK, 1, "f", frozenset({STORE}))
PROMPT = [1, 2, 3, 4, 5, 6, 7]


def index_of(*engines: EngineId, profile: EngineProfile = SHARED, **limits: int) -> PrefixIndex:
    index = PrefixIndex(hint_ttl_s=10.0, limits=ResidencyLimits(**limits))
    for engine in engines:
        index.attach(engine, profile)
    return index


def total(index: PrefixIndex, engine: EngineId, now_s: float = 0.0, **kinds: str) -> int:
    index.check_integrity()
    return index.match(query(PROMPT, **kinds), [engine], now_s)[engine].total  # type: ignore[arg-type]


def test_a_prefix_is_known_on_the_engine_that_stored_it() -> None:
    """Another engine with the same hashes has nothing on its own device."""
    index = index_of(A, B)
    index.apply(A, batch(stored(PROMPT)), 0.0)
    assert index.match(query(PROMPT), [A, B], 0.0) == {A: PrefixMatch(6, 6, 6), B: PrefixMatch()}


def test_salt_lora_and_model_are_part_of_the_identity() -> None:
    """The same text under another salt, adapter or model is other KV; an adapter called like a salt as
    well."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT, salt="s")), 0.0)
    assert total(index, A, salt="s") == 6
    assert total(index, A) == total(index, A, salt="t") == total(index, A, lora="s") == 0
    index.apply(A, batch(stored(PROMPT, lora="x")), 0.0)
    assert total(index, A, lora="x") == 6
    assert total(index, A, lora="y") == total(index, A, salt="x") == 0
    other = index_of(A, profile=replace(SHARED, model="n"))
    other.apply(A, batch(stored(PROMPT)), 0.0)
    other.attach(B, SHARED)
    other.apply(B, batch(offloaded(PROMPT, 0, Tier.HOST)), 0.0)
    assert total(other, B) == 0


def test_hashes_as_integers_and_as_digests_are_the_same() -> None:
    """An engine may publish the low 64 bits where another publishes the whole digest."""
    index = index_of(A, B)
    index.apply(A, batch(stored(PROMPT)), 0.0)
    short = EngineHash(engine_hash(PROMPT[:2])[-8:])
    index.apply(B, batch(BlocksStored((short,), None, (), 0, Tier.HOST)), 0.0)
    assert total(index, B) == 2


def test_children_before_parents_wait_for_the_device_event() -> None:
    """Host events in the wrong order, before anything says what they are, count once that is known."""
    index = index_of(A)
    index.apply(A, batch(*(offloaded(PROMPT, at, Tier.HOST, salt="s") for at in (2, 1, 0))), 0.0)
    assert index.stats().num_parked == 3
    assert total(index, A, salt="s") == total(index, A) == 0
    index.apply(A, batch(stored(PROMPT, salt="s"), *(removed(PROMPT, at, salt="s") for at in range(3))), 0.0)
    assert total(index, A, salt="s") == 6
    assert total(index, A) == 0
    assert index.stats().num_parked == 0


def test_a_block_stored_in_host_memory_after_the_device_dropped_it() -> None:
    """vLLM reports the finished store after the eviction that it allowed: the name must not be lost
    between."""
    index = index_of(A)
    events = (stored(PROMPT), *(removed(PROMPT, at) for at in range(3)))
    index.apply(A, batch(*events), 0.0)
    assert total(index, A) == 0
    index.apply(A, batch(*(offloaded(PROMPT, at, Tier.HOST) for at in range(3))), 0.0)
    assert index.match(query(PROMPT), [A], 0.0)[A] == PrefixMatch(0, 6, 6)


def test_names_that_nothing_holds_are_bounded() -> None:
    """Of many blocks that are gone only the last few names are remembered."""
    index = index_of(A, max_unheld=2)
    index.apply(A, batch(stored(PROMPT), *(removed(PROMPT, at) for at in range(3))), 0.0)
    index.apply(A, batch(*(offloaded(PROMPT, at, Tier.HOST) for at in range(3))), 0.0)
    index.check_integrity()
    assert index.stats().num_parked == 1


def test_blocks_are_bounded_and_what_has_no_room_is_counted() -> None:
    """Beyond the limit new blocks are not taken in, of no engine; room comes with removals, and from names
    that nothing holds."""
    index = index_of(A, B, max_blocks=3)
    index.apply(A, batch(stored(PROMPT)), 0.0)
    index.apply(B, batch(stored([9, 9, 8, 8]), stored(PROMPT, 0, 1)), 0.0)
    assert (total(index, A), total(index, B)) == (6, 2), "blocks that are known take no room"
    assert index.match(query([9, 9, 8, 8, 7]), [B], 0.0)[B] == PrefixMatch()
    stats = index.stats()
    assert (stats.num_refused, stats.num_rows, stats.num_blocks) == (1, 3, 3)
    index.apply(A, batch(removed(PROMPT, 2)), 0.0)
    index.apply(B, batch(stored([9, 9, 8, 8])), 0.0)
    assert index.match(query([9, 9, 8, 8, 7]), [B], 0.0)[B].device == 2
    assert (total(index, A), index.stats().num_refused) == (4, 2)
    index.forget(A)
    index.forget(B)
    index.apply(B, batch(stored([9, 9, 8, 8])), 0.0)
    assert index.match(query([9, 9, 8, 8, 7]), [B], 0.0)[B].device == 4


def test_room_is_shared_and_given_back() -> None:
    """Engines with other hashes have tables of their own within one limit; one that goes gives it back."""
    index = index_of(A, max_blocks=3)
    index.attach(B, replace(SHARED, fingerprint=""))
    index.apply(A, batch(stored(PROMPT)), 0.0)
    index.apply(B, batch(stored(PROMPT)), 0.0)
    assert (total(index, A), total(index, B), index.stats().num_refused) == (6, 0, 1)
    index.detach(A)
    index.apply(B, batch(stored(PROMPT)), 0.0)
    assert total(index, B) == 6


def test_a_restart_with_other_hashes_replaces_the_names() -> None:
    """An engine whose hash seed is new in each life names the same content otherwise; the old names are in
    nobody's way."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT, seed="1")), 0.0)
    index.forget(A)
    index.apply(A, batch(stored(PROMPT, seed="2")), 0.0)
    assert total(index, A) == 6
    assert index.stats().num_conflicts == 0
    assert index.stats().num_rows == 3


def test_parked_events_are_bounded_and_counted() -> None:
    """The oldest unresolved hash is dropped for a new one."""
    index = index_of(A, max_parked=2)
    index.apply(A, batch(*(offloaded(PROMPT, at, Tier.SHARED, owner=STORE) for at in range(3))), 0.0)
    index.check_integrity()
    assert index.stats().num_parked == 2
    assert index.stats().num_parked_dropped == 1
    index.apply(A, batch(stored(PROMPT), cleared()), 0.0)
    assert total(index, A) == 0


def test_shared_blocks_count_for_every_engine_of_the_store_and_outlive_the_announcer() -> None:
    """A stores a prefix and dies: B, which never saw it, is predicted to load it, and A too when it is
    back."""
    index = index_of(A, B)
    shared = [offloaded(PROMPT, at, Tier.SHARED, owner=STORE) for at in range(3)]
    index.apply(A, batch(stored(PROMPT), *shared), 0.0)
    index.forget(A)
    nothing_own = PrefixMatch(0, 0, 6)
    assert index.match(query(PROMPT), [A, B], 0.0) == {A: nothing_own, B: nothing_own}
    index.detach(A)
    assert index.match(query(PROMPT), [A, B], 0.0) == {B: nothing_own}
    index.check_integrity()


def test_stores_are_not_mixed_up() -> None:
    """An engine that reads another store has nothing of this one; a store without a known owner is
    private."""
    index = index_of(A)
    index.attach(B, replace(SHARED, stores=frozenset({"anbar:other"})))
    index.apply(A, batch(stored(PROMPT), cleared(), offloaded(PROMPT, 0, Tier.SHARED, owner=STORE)), 0.0)
    assert (total(index, A), total(index, B)) == (2, 0)
    index.apply(B, batch(offloaded(PROMPT, 0, Tier.SHARED, owner="fs")), 0.0)
    assert (total(index, A), total(index, B)) == (2, 2)
    index.forget(B)
    assert (total(index, A), total(index, B)) == (2, 0)


def test_hints_expire_and_are_refreshed() -> None:
    """A store's block is believed in for the TTL since it was last announced, less up to an eighth of it."""
    index = index_of(A)
    hint = offloaded(PROMPT, 0, Tier.SHARED, owner=STORE)
    index.apply(A, batch(stored(PROMPT), cleared(), hint), 0.0)
    index.apply(A, batch(hint), 6.0)
    assert total(index, A, 6.0 + 10.0 * 7 / 8) == 2
    assert total(index, A, 16.0) == 0
    assert index.stats().num_blocks == 0


def test_hints_expire_while_parked() -> None:
    """An unresolved hint grows old as well."""
    index = index_of(A)
    index.apply(A, batch(offloaded(PROMPT, 0, Tier.SHARED, owner=STORE)), 0.0)
    index.apply(A, batch(stored(PROMPT), cleared()), 11.0)
    assert total(index, A, 11.0) == 0


def test_a_removal_from_the_store_is_final() -> None:
    """Several engines announced the block, one its removal: the store holds one copy, and it is gone."""
    index = index_of(A, B)
    hint = offloaded(PROMPT, 0, Tier.SHARED, owner=STORE)
    index.apply(A, batch(stored(PROMPT), cleared(), hint), 0.0)
    index.apply(B, batch(hint, removed(PROMPT, 0, Tier.SHARED, owner=STORE)), 0.0)
    assert (total(index, A), total(index, B)) == (0, 0)


def test_a_refuted_hint_is_dropped_for_all_and_may_come_back() -> None:
    """An engine found less in the store than predicted: the rest is not predicted again until announced."""
    index = index_of(A, B)
    hints = [offloaded(PROMPT, at, Tier.SHARED, owner=STORE) for at in range(3)]
    index.apply(A, batch(stored(PROMPT), cleared(), *hints), 0.0)
    assert index.refute_shared(B, query(PROMPT), 2) == 2
    assert (total(index, A), total(index, B)) == (2, 2)
    index.apply(A, batch(hints[1]), 5.0)
    assert (total(index, A), total(index, B)) == (4, 4)
    assert total(index, A, 10.0) == 0


def test_copies_are_counted() -> None:
    """Two equal blocks on one device: the prefix is there until both are evicted."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT), stored(PROMPT), removed(PROMPT, 2)), 0.0)
    assert total(index, A) == 6
    index.apply(A, batch(removed(PROMPT, 2)), 0.0)
    assert total(index, A) == 4
    index.apply(A, batch(removed(PROMPT, 2)), 0.0)
    assert index.stats().num_unknown_removed == 1


def test_clearing_drops_the_device_of_one_engine_only() -> None:
    """`AllBlocksCleared` leaves host memory, and other engines."""
    index = index_of(A, B)
    index.apply(A, batch(stored(PROMPT), offloaded(PROMPT, 0, Tier.HOST)), 0.0)
    index.apply(B, batch(stored(PROMPT)), 0.0)
    index.apply(A, batch(cleared()), 0.0)
    assert index.match(query(PROMPT), [A, B], 0.0) == {A: PrefixMatch(0, 2, 2), B: PrefixMatch(6, 6, 6)}


def test_all_announced_groups_are_needed() -> None:
    """A hybrid model's block counts when each of its cache groups holds it."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT), stored(PROMPT, 0, 2, group=1)), 0.0)
    assert total(index, A) == 4
    index.apply(A, batch(removed(PROMPT, 1, group=1)), 0.0)
    assert total(index, A) == 2


def test_a_forgotten_engine_may_announce_another_group() -> None:
    """What an engine needs follows from the groups it announced since it was forgotten, also when there are
    as many of them as before and nothing new was given out for them."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT, group=1)), 0.0)
    assert total(index, A) == 6
    index.forget(A)
    index.apply(A, batch(stored(PROMPT)), 0.0)
    assert total(index, A) == 6
    index.forget(A)
    index.apply(A, batch(stored(PROMPT, 0, 2, group=1)), 0.0)
    assert total(index, A) == 4


def test_orphans_are_dropped_and_counted() -> None:
    """After a gap a block's parent is unknown: its content is not guessed."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT, 1)), 0.0)
    assert total(index, A) == 0
    assert index.stats().num_orphans == 2


def test_a_parent_known_from_another_engine_is_enough() -> None:
    """Engines with one fingerprint explain each other's hashes."""
    index = index_of(A, B)
    index.apply(A, batch(stored(PROMPT, 0, 1)), 0.0)
    index.apply(B, batch(stored(PROMPT, 1), offloaded(PROMPT, 0, Tier.HOST)), 0.0)
    assert index.stats().num_orphans == 0
    assert index.match(query(PROMPT), [B], 0.0)[B].host == 2


def test_a_false_fingerprint_is_noticed() -> None:
    """Two engines claim equal hashes, and one hash stands for different content: not believed, counted."""
    index = index_of(A, B)
    index.apply(A, batch(stored(PROMPT)), 0.0)
    lie = replace(stored([9, 9]), hashes=(engine_hash(PROMPT[:2]),))
    index.apply(B, batch(lie), 0.0)
    assert index.stats().num_conflicts == 1
    assert index.match(query([9, 9, 9]), [B], 0.0)[B] == PrefixMatch()
    index.check_integrity()


def test_events_that_do_not_fit_are_counted_and_left() -> None:
    """Another block size, tokens that do not match the hashes, an unknown kind: no block, no error."""
    index = index_of(A)
    event = stored(PROMPT)
    wrong = [
        replace(event, block_size=4),
        replace(event, token_ids=event.token_ids[:-1]),
        replace(event, extra_keys=((),)),
        Unknown("medium MOON"),
    ]
    index.apply(A, batch(*wrong), 0.0)
    stats = index.stats()
    assert (stats.num_foreign_block_size, stats.num_malformed, stats.num_unknown_events) == (3, 2, 1)
    assert total(index, A) == 0


def test_older_engines_publish_no_extra_keys() -> None:
    """Without extra keys at all, the adapter's name in the event is what is known."""
    index = index_of(A)
    index.apply(A, batch(replace(stored(PROMPT, lora="x"), extra_keys=None)), 0.0)
    assert total(index, A, lora="x") == 6
    assert total(index, A) == 0


def test_attaching_again() -> None:
    """With the same profile nothing changes; with another one the engine begins anew."""
    index = index_of(A)
    index.apply(A, batch(stored(PROMPT)), 0.0)
    index.attach(A, SHARED)
    assert total(index, A) == 6
    index.attach(A, replace(SHARED, fingerprint="g"))
    assert total(index, A) == 0


def test_slots_are_reused() -> None:
    """Engines that come and go do not use up bits, and a new one inherits nothing of an old one."""
    index = index_of(B)
    for number in range(200):
        engine = EngineId(f"e{number}")
        index.attach(engine, SHARED)
        assert total(index, engine) == 0
        index.apply(engine, batch(stored(PROMPT), offloaded(PROMPT, 0, Tier.HOST)), 0.0)
        index.detach(engine)
    assert max(space.slots.slot((B, Tier.DEVICE, 0)) for space in index._spaces.values()) < 4


def test_engines_that_are_not_attached() -> None:
    """Matching leaves them out, events of theirs are a defect of the caller, forgetting them does nothing."""
    index = index_of()
    assert index.match(query(PROMPT), [A], 0.0) == {}
    index.forget(A)
    index.detach(A)
    assert index.refute_shared(A, query(PROMPT), 0) == 0
    with pytest.raises(KeyError):
        index.apply(A, batch(stored(PROMPT)), 0.0)


@pytest.mark.parametrize(("block_size", "chunk_blocks"), [(0, 1), (-1, 0), (1, -1)])
def test_profiles_are_checked(block_size: int, chunk_blocks: int) -> None:
    """Impossible sizes are refused where they are stated."""
    with pytest.raises(ValueError, match="must"):
        EngineProfile("m", block_size, chunk_blocks)
