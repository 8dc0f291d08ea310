"""When the chunks of an answer came: how many, how far apart."""

from bisect import bisect_right
from operator import sub
from typing import NamedTuple

from anbar.core.outcome import GAP_BUCKETS_S

_MOST = 256
"""Times that are kept before they are counted: together they cost a fraction of one after the other."""


class Gaps(NamedTuple):
    """Between the chunks of an answer."""

    num_chunks: int
    counts: list[int]
    """By `GAP_BUCKETS_S` and one more for all longer; empty without any gap."""
    mean_s: float
    max_s: float


class Pace:
    """Takes note of each chunk; tells of all so far."""

    __slots__ = ("_counts", "_first_s", "_max_gap_s", "_num_counted", "_times_s")

    def __init__(self) -> None:
        self._times_s: list[float] = []
        """Of the last chunk that was counted, and those since."""
        self._first_s = 0.0
        self._num_counted = 0
        self._max_gap_s = 0.0
        self._counts: list[int] = []

    def chunk(self, now_s: float) -> None:
        """A chunk came."""
        self._times_s.append(now_s)
        if len(self._times_s) > _MOST:
            self._count()

    def told(self) -> Gaps:
        """All so far."""
        self._count()
        num_gaps = self._num_counted - 1
        mean_s = (self._times_s[-1] - self._first_s) / num_gaps if num_gaps > 0 else 0.0
        return Gaps(self._num_counted, self._counts, mean_s, self._max_gap_s)

    def _count(self) -> None:
        """Count what is not counted yet."""
        times_s = self._times_s
        if not self._num_counted and times_s:
            self._first_s, self._num_counted = times_s[0], 1
        if len(times_s) > 1:
            self._count_gaps(times_s)

    def _count_gaps(self, times_s: list[float]) -> None:
        gaps_s = sorted(map(sub, times_s[1:], times_s))
        self._times_s = times_s[-1:]
        self._num_counted += len(gaps_s)
        self._max_gap_s = max(self._max_gap_s, gaps_s[-1])
        if not self._counts:
            self._counts = [0] * (len(GAP_BUCKETS_S) + 1)
        before = 0
        for place, bound_s in enumerate(GAP_BUCKETS_S):
            until = bisect_right(gaps_s, bound_s, before)
            self._counts[place] += until - before
            before = until
        self._counts[-1] += len(gaps_s) - before
