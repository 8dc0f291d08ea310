"""The packed table of blocks and its sets of places, against dicts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.ids import ChainHash
from anbar.route.masks import EMPTY, Masks
from anbar.route.residency import Residency, ResidencyLimits
from anbar.route.rows import NONE, BlockRows

TOP = (1 << 64) - 1
# Values that share their low bits, and values that differ in nothing else.
VALUES = st.one_of(st.integers(0, 200), st.integers(0, 7).map(lambda high: high << 61 | 5), st.just(TOP))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["add", "name", "drop"]), VALUES, VALUES), max_size=400))
def test_a_table_finds_what_a_dict_finds(steps: list[tuple[str, int, int]]) -> None:
    """Rows are added, named and dropped in any order, far beyond the first buckets: each value is found where
    a dict has it, one at a time and all at once."""
    rows = BlockRows()
    keys: dict[int, int] = {}
    chains: dict[int, int] = {}
    for kind, key, chain in steps:
        if kind == "add" and key not in keys:
            keys[key] = rows.add(key)
        elif kind == "name" and key in keys and not rows.is_named(keys[key]) and chain not in chains:
            chains[chain] = keys[key]
            rows.name(keys[key], chain)
        elif kind == "drop" and key in keys:
            row = keys.pop(key)
            rows.drop(row)
            chains = {chain: other for chain, other in chains.items() if other != row}
    rows.check_integrity()
    assert len(rows) == len(keys)
    if steps and rows.num_allocated:
        for values, known, table in (
            ([key for _, key, _ in steps], keys, rows.by_key),
            ([chain for _, _, chain in steps], chains, rows.by_chain),
        ):
            expected = [known.get(value, NONE) for value in values]
            assert [table.find(value) for value in values] == expected
            assert table.find_many(np.array(values, np.uint64)).tolist() == expected


def test_a_table_grows_and_is_used_again() -> None:
    """Ten thousand rows, dropped and added again, take no more memory than the first ten thousand."""
    rows = BlockRows()
    for _ in range(3):
        added = [rows.add(key * 0x9E3779B97F4A7C15 & TOP) for key in range(10_000)]
        rows.check_integrity()
        for row in added:
            rows.drop(row)
    assert rows.num_allocated == 10_000


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), max_size=40))
def test_queues_are_in_order(steps: list[tuple[int, int]]) -> None:
    """Six rows go into one of two queues when they are in none, and out again: the order is that of lists."""
    rows = BlockRows()
    for key in range(6):
        rows.add(key)
    queues = (rows.queue(), rows.queue())
    expected: tuple[list[int], list[int]] = ([], [])
    for which, row in steps:
        for queue, known in zip(queues, expected, strict=True):
            if row in known:
                known.remove(row)
                queue.discard(row)
                break
        else:
            queues[which].discard(row)
            queues[which].append(row)
            expected[which].append(row)
        for queue, known in zip(queues, expected, strict=True):
            assert list(queue) == known
            assert (len(queue), queue.first) == (len(known), known[0] if known else NONE)


MASK = st.integers(0, 31)


@given(st.lists(st.one_of(st.tuples(st.integers(0, 9), MASK), MASK), max_size=60))
def test_sets_of_places(steps: list[tuple[int, int] | int]) -> None:
    """Ten rows get sets, and slots are cleared in all of them: each row has the set that it would have alone,
    and refreshing the stale ones changes nothing but their numbers."""
    masks = Masks()
    numbers, expected = [EMPTY] * 10, [0] * 10
    for step in steps:
        if isinstance(step, tuple):
            row, mask = step
            numbers[row], expected[row] = masks.move(numbers[row], mask), mask
        else:
            masks.clear(step)
            expected = [mask & ~step for mask in expected]
        masks.check_integrity()
        assert [masks[number] for number in numbers] == expected
    numbers = [masks.refresh(number) if number in masks.stale else number for number in numbers]
    masks.check_integrity()
    assert not masks.stale
    assert masks.num_emptied == 0
    assert [masks[number] for number in numbers] == expected
    assert len(set(numbers)) == len(set(expected)), "equal sets have one number"


def test_a_large_clear_is_swept_in_steps() -> None:
    """An engine with 5,000 blocks restarts: at once nothing of it is believed, another engine's blocks stay,
    and the memory comes free a few rows at a time, also while new blocks arrive."""
    residency = Residency(ResidencyLimits(max_unheld=10))
    chain = [ChainHash(7 * number + 1) for number in range(5_000)]
    keys = [13 * number + 1 for number in range(5_000)]
    residency.store(keys, chain, slot=0)
    residency.store(keys[:100], chain[:100], slot=1)
    residency.clear(1 << 0)
    assert residency.runs(chain) == [(100, 2), (5_000, 0)]
    assert (residency.num_blocks, residency.num_rows) == (100, 5_000)
    residency.check_integrity()
    steps = 0
    while residency.num_rows > 200:
        before = residency.num_rows
        residency.sweep(max_rows=100)
        residency.store([TOP - steps], [ChainHash(TOP - steps)], slot=0)
        steps += 1
        assert before - residency.num_rows <= 100
        residency.check_integrity()
        assert steps < 100
    assert residency.runs(chain[:100]) == [(100, 2)]
    assert residency.num_blocks == 100 + steps
