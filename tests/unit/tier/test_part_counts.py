"""Counts of parts become counters: each key is told once."""

from anbar.tier.part_counts import PartCount, PartCounts
from anbar.tier.store import PartStats


def test_each_key_is_told_once() -> None:
    """Totals grow from one look to the next, and one look comes late, with older totals: what is told adds
    up to the newest."""
    counts = PartCounts()

    def told(hits: int, misses: int) -> list[PartCount]:
        keys = {("load", "hit"): hits, ("load", "miss"): misses}
        return list(counts.take([PartStats("a", 0, keys), PartStats("b", 0, {})]))

    assert told(2, 0) == [PartCount("a", "load", "hit", 2)]
    assert told(5, 1) == [PartCount("a", "load", "hit", 3), PartCount("a", "load", "miss", 1)]
    assert told(4, 1) == []
    assert told(6, 1) == [PartCount("a", "load", "hit", 1)]
