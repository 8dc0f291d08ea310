"""Rendezvous placement: who holds what, and what moves when a member comes or goes."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from anbar.tier.placement import Rendezvous

IDS = st.lists(st.text(min_size=1, max_size=8), min_size=2, max_size=9, unique=True)
KEYS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30, unique=True)


def ranked(ids: list[str], copies: int, key: bytes) -> list[str]:
    """The ids of a key's members."""
    return [ids[index] for index in Rendezvous(ids, copies).of(key)]


@given(IDS, KEYS, st.data())
def test_each_key_has_its_copies_on_distinct_members(
    ids: list[str], keys: list[bytes], data: st.DataObject
) -> None:
    """As many different members as copies were asked for, and fewer copies are the first of more."""
    copies = data.draw(st.integers(1, len(ids)))
    for key in keys:
        places = ranked(ids, copies, key)
        assert len(set(places)) == copies
        assert ranked(ids, len(ids), key)[:copies] == places


@given(IDS, KEYS, st.randoms(use_true_random=False))
def test_positions_do_not_matter(ids: list[str], keys: list[bytes], random: Random) -> None:
    """The members in another order: each key has the same members, in the same order."""
    shuffled = list(ids)
    random.shuffle(shuffled)
    for key in keys:
        assert ranked(ids, 2, key) == ranked(shuffled, 2, key)


@given(IDS, KEYS, st.data())
def test_only_what_a_member_held_moves_when_it_goes(
    ids: list[str], keys: list[bytes], data: st.DataObject
) -> None:
    """One member leaves (or, read backwards, joins): a key that it did not hold has the same members as
    before; of one that it held that copy alone moves, and the others keep their order."""
    gone = data.draw(st.sampled_from(ids))
    rest = [id for id in ids if id != gone]
    copies = data.draw(st.integers(1, len(rest)))
    for key in keys:
        before, after = ranked(ids, copies, key), ranked(rest, copies, key)
        if gone not in before:
            assert after == before
        else:
            assert after[: copies - 1] == [id for id in before if id != gone]
            assert after[-1] not in before


@given(IDS, KEYS, st.data())
def test_the_next_in_order_stands_in(ids: list[str], keys: list[bytes], data: st.DataObject) -> None:
    """Some members are absent: a key's order is gone through until as many others are found as there are to
    be copies, and no further."""
    copies = data.draw(st.integers(1, len(ids)))
    absent = data.draw(st.frozensets(st.integers(0, len(ids) - 1)))
    places, order = Rendezvous(ids, copies), Rendezvous(ids, len(ids))
    for key in keys:
        found = places.of(key, absent)
        assert found == order.of(key)[: len(found)]
        present = [part for part in found if part not in absent]
        assert len(present) == min(copies, len(ids) - len(absent))
        assert len(found) == len(ids) or found[-1] == present[-1]
        assert set(places.of(key)) <= set(found)


def test_every_member_holds_its_share() -> None:
    """Twenty thousand keys, five members, two copies: each member holds 1/5 of the copies, to within a
    twentieth of that, and is asked first for as many. With the property above: so much moves when it goes."""
    ids = [f"store-{index}" for index in range(5)]
    places = Rendezvous(ids, 2)
    first, held = Counter[int](), Counter[int]()
    num_keys = 20_000
    for number in range(num_keys):
        of = places.of(number.to_bytes(4, "big") * 9)
        first[of[0]] += 1
        held.update(of)
    for index in range(5):
        assert abs(first[index] / num_keys - 1 / 5) < 0.01
        assert abs(held[index] / num_keys - 2 / 5) < 0.02


def test_the_places_are_the_same_for_ever() -> None:
    """What one release has placed the next one must find."""
    places = Rendezvous(["files-a", "files-b", "files-c", "files-d"], 2)
    assert [tuple(places.of(bytes([number]) * 32)) for number in range(4)] == PLACES


PLACES = [(3, 2), (2, 3), (0, 1), (3, 2)]
