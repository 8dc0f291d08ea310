"""Counts of parts become counters: each key is told once; what they hold becomes gauges."""

from anbar.tier import part_counts
from anbar.tier.part_counts import BREAKER_STATE, CAPACITY_BYTES, EVICTED, KEYS, USED_BYTES, PartCounts
from anbar.tier.scope_counts import Sample
from anbar.tier.store import PartStats


def test_each_key_is_told_once() -> None:
    """Totals grow from one look to the next, and one look comes late, with older totals: what is told adds
    up to the newest."""
    counts = PartCounts()

    def told(hits: int, misses: int, evicted: int = 0) -> list[Sample]:
        keys = {("load", "hit"): hits, ("load", "miss"): misses}
        return list(counts.take([PartStats("a", 0, keys, num_evicted=evicted), PartStats("b", 0, {})]))

    hit, miss = ("a", "load", "hit"), ("a", "load", "miss")
    assert told(2, 0) == [Sample(KEYS, hit, 2)]
    assert told(5, 1, 3) == [Sample(KEYS, hit, 3), Sample(KEYS, miss, 1), Sample(EVICTED, ("a",), 3)]
    assert told(4, 1, 2) == []
    assert told(6, 1, 4) == [Sample(KEYS, hit, 1), Sample(EVICTED, ("a",), 1)]


def test_what_parts_hold() -> None:
    """Of each part by its id; a bucket, of which neither bytes nor capacity are known, has its breaker's
    state alone."""
    parts = [PartStats("near", 0, {}, 10, 20), PartStats("bucket", 2, {})]
    assert list(part_counts.gauges(parts)) == [
        Sample(BREAKER_STATE, ("near",), 0),
        Sample(USED_BYTES, ("near",), 10),
        Sample(CAPACITY_BYTES, ("near",), 20),
        Sample(BREAKER_STATE, ("bucket",), 2),
    ]
