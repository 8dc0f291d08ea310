"""What leaves a store first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost
from anbar.tier.eviction import Ranked, chain_saves_s, leaving, rank

SIZES = st.integers(1, 10_000)
SAVED = st.floats(0, 1000)
AGES = st.floats(-1000, 1e8)
ENTRIES = st.lists(st.builds(Ranked, SIZES, SAVED, AGES), max_size=30)


@given(ENTRIES, st.integers(-5, 100_000))
def test_the_lowest_go_until_it_is_enough(entries: list[Ranked], need: int) -> None:
    """Against a naive model that takes the worst one by one: the same entries, in the same order."""
    left = list(enumerate(entries))
    expected = []
    while need > 0 and left:
        worst = min(left, key=lambda pair: (rank(pair[1]), pair[0]))
        left.remove(worst)
        expected.append(worst[0])
        need -= worst[1].num_bytes
    total = sum(entries[index].num_bytes for index in expected) + need
    assert leaving(((entry, index) for index, entry in enumerate(entries)), total) == expected


@given(ENTRIES, st.integers(1, 100_000))
def test_nothing_that_stays_is_worse(entries: list[Ranked], need: int) -> None:
    """Whatever is evicted, no entry of a lower rank is kept, and without the last one it is not enough."""
    gone = leaving(((entry, index) for index, entry in enumerate(entries)), need)
    stays = [rank(entry) for index, entry in enumerate(entries) if index not in gone]
    assert all(rank(entries[index]) <= least for index in gone for least in [min(stays, default=1e9)])
    freed = [entries[index].num_bytes for index in gone]
    assert sum(freed[:-1]) < need
    assert sum(freed) >= need or len(gone) == len(entries)


@given(SIZES, SAVED, AGES, st.floats(1, 1e6))
def test_each_reason_counts_its_way(num_bytes: int, saves_s: float, age_s: float, more: float) -> None:
    """Saving more raises the rank; being larger for the same saving, and longer unused, lower it."""
    here = rank(Ranked(num_bytes, saves_s + 0.001, age_s))
    assert rank(Ranked(num_bytes, saves_s + 0.001 + more, age_s)) > here
    assert rank(Ranked(2 * num_bytes, saves_s + 0.001, age_s)) < here
    assert rank(Ranked(num_bytes, saves_s + 0.001, max(0.0, age_s) + more)) < here


@given(SIZES, AGES, st.floats(1, 1e6))
def test_what_is_not_known_goes_by_age(num_bytes: int, age_s: float, more: float) -> None:
    """Without a hint the order is that of last use, whatever the sizes."""
    assert rank(Ranked(num_bytes, 0.0, max(0.0, age_s) + more)) < rank(Ranked(1, 0.0, age_s))


@given(
    st.lists(st.integers(1, 100_000), min_size=1, max_size=20, unique=True).map(sorted),
    st.floats(1e-6, 1e-2),
    st.floats(0, 1e-7),
)
def test_a_tail_goes_before_its_head(ends: list[int], per_token: float, per_token2: float) -> None:
    """Chunks of one prompt, used at the same time, leave from its end; also when they were stored in two
    steps, in the second of which more was known of how long the prompt is."""
    cost = PrefillCost(per_token, per_token2)
    first, second = ends[: len(ends) // 2], ends[len(ends) // 2 :]
    saved = chain_saves_s(first, cost)
    saved += chain_saves_s(second, cost, saved[-1] if saved else float("inf"))
    assert list(saved) == sorted(saved, reverse=True)
    assert saved[-1] > 0
    entries = [(Ranked(1000, saves_s, 60.0), end) for saves_s, end in zip(saved, ends, strict=True)]
    (gone,) = leaving(entries, 1)
    assert saved[ends.index(gone)] == min(saved)


def test_a_long_prompt_is_worth_its_attention() -> None:
    """Its beginning saves everything after it, the quadratic part too; an answer's chunks, stored one by one,
    are worth what may follow them."""
    cost = PrefillCost(1e-4, 1e-8, 0.01)
    (beginning, end) = chain_saves_s((16, 32_000), cost)
    assert beginning == pytest.approx(cost.seconds(32_000 + 1024, 16))
    assert end == pytest.approx(cost.seconds(32_000 + 1024, 32_000))
    assert beginning > 10 * end
    assert chain_saves_s((), cost) == ()
