"""The times between chunks, counted many at a time."""

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.apps.router.pace import Pace
from anbar.core.outcome import GAP_BUCKETS_S

GAPS_S = st.floats(0, 20) | st.sampled_from(GAP_BUCKETS_S)


@given(st.lists(st.tuples(GAPS_S, st.integers(1, 300), st.booleans()), max_size=8))
def test_as_if_each_gap_were_counted_by_itself(runs: list[tuple[float, int, bool]]) -> None:
    """Hundreds of chunks in runs of equal gaps, those at a bucket's bound among them; asked now and then."""
    pace, now_s, times_s = Pace(), 0.0, [0.0]
    pace.chunk(0.0)
    for gap_s, number, asked in runs:
        for _ in range(number):
            now_s += gap_s
            times_s.append(now_s)
            pace.chunk(now_s)
        if asked:
            assert pace.told().num_chunks == len(times_s)
    gaps_s = [after - before for before, after in pairwise(times_s)]
    counts = [0] * (len(GAP_BUCKETS_S) + 1)
    for gap_s in gaps_s:
        counts[bisect_left(GAP_BUCKETS_S, gap_s)] += 1
    told = pace.told()
    assert told.num_chunks == len(times_s)
    assert told.counts == (counts if gaps_s else [])
    assert told.max_s == max(gaps_s, default=0.0)
    assert told.mean_s == (pytest.approx(now_s / len(gaps_s)) if gaps_s else 0.0)


def test_nothing_came() -> None:
    """An answer without a body."""
    assert Pace().told() == (0, [], 0.0, 0.0)
