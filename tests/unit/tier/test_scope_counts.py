"""What metrics tell of scopes: each that is listed, and all others together."""

from anbar.core.clock import ManualClock
from anbar.tier import scope_counts
from anbar.tier.breaker import Breaker
from anbar.tier.composed import summed
from anbar.tier.lookups import Lookups
from anbar.tier.scope_counts import Sample, ScopeCounts
from anbar.tier.scopes import OTHER, ScopeRules, Scopes
from anbar.tier.store import Outcome, ScopeStats, StoreStats
from anbar.tier.tally import Series, Tally
from anbar.tier.transfers import Direction, Job, TransferConfig, Transfers
from anbar.tier.wish import Wish

SCOPES = Scopes(named={"acme": ScopeRules()})


def samples(counts: ScopeCounts, tally: Tally) -> dict[tuple[str, ...], float]:
    return {(one.name, *one.labels): one.value for one in counts.take(tally)}


def test_lookups_and_transfers_are_counted_by_scope() -> None:
    """Two tenants, of whom one is listed, and a request without one: what each looked up, stored and loaded
    is told of it; the sum over all is as before."""
    clock, tally = ManualClock(), Tally(by_scope=True)
    breaker = Breaker(clock)
    lookups = Lookups(clock, breaker, tally, timeout_s=0.5)
    transfers = Transfers(clock, breaker, tally, TransferConfig(100, 8, 8, 8))
    for number, scope in enumerate(("acme", "stranger", "")):
        lookups.open(scope, Wish(scope))
        lookups.answer(scope, b"key")
        (question,) = lookups.take_questions()
        lookups.settle(question, [Outcome.HIT if scope == "acme" else Outcome.NO_KEY])
        job = Job(number, scope, scope, (b"a", b"b"), (0, 1))
        (call,) = transfers.store(job, wanted=True)
        transfers.settle(call, [Outcome.HIT, Outcome.OVER_QUOTA])
    (call,) = transfers.load(Job(9, "acme", "acme", (b"a",), (0,)))
    transfers.settle(call, [Outcome.CORRUPT])
    assert {finished.scope for finished in transfers.take_finished()} == {"acme", "stranger", ""}
    found = samples(ScopeCounts(SCOPES), tally)
    expected: dict[tuple[str, ...], float] = {
        (scope_counts.KEYS, "acme", "lookup", "hit"): 1,
        (scope_counts.KEYS, "acme", "load", "corrupt"): 1,
        (scope_counts.KEYS, OTHER, "lookup", "no_key"): 1,
        (scope_counts.KEYS, "", "lookup", "no_key"): 1,
    }
    for name in ("acme", OTHER, ""):
        expected[scope_counts.KEYS, name, "store", "hit"] = 1
        expected[scope_counts.KEYS, name, "store", "over_quota"] = 1
        expected[scope_counts.BYTES, name, Direction.STORE.value] = 100
    assert found == expected
    assert tally.take()[Series.STORES, "over_quota"] == 3
    assert samples(ScopeCounts(SCOPES), tally) == {}


def test_strangers_make_one_series() -> None:
    """A thousand scopes that nobody has listed are one name."""
    tally = Tally(by_scope=True)
    for number in range(1000):
        tally.add(Series.SECONDS_SAVED, "load", 0.5, scope=f"scope-{number}")
    assert samples(ScopeCounts(SCOPES), tally) == {(scope_counts.SECONDS_SAVED, OTHER): 500.0}


def test_without_tenants_nothing_is_kept() -> None:
    """Nobody asks for counts by scope: none are made."""
    tally = Tally()
    tally.add(Series.LOADS, "hit", scope="acme")
    assert tally.take_scoped() == {}
    assert tally.take() == {(Series.LOADS, "hit"): 1}


def test_what_a_store_says_of_scopes() -> None:
    """Occupancy and quota as they are; evictions since the last time, of parts together."""
    counts = ScopeCounts(SCOPES)

    def stats(evicted: int) -> StoreStats:
        part = StoreStats(None, None, None, scopes={"acme": ScopeStats(2, 200, 500, evicted)})
        return summed([part, part, StoreStats(None, None, None)])

    gauges, evicted = counts.holdings(stats(3))
    assert gauges == [
        Sample(scope_counts.ENTRIES, ("acme",), 4),
        Sample(scope_counts.USED_BYTES, ("acme",), 400),
        Sample(scope_counts.QUOTA_BYTES, ("acme",), 1000),
    ]
    assert evicted == [Sample(scope_counts.EVICTED, ("acme",), 6)]
    assert counts.holdings(stats(3)) == ([], [])
    assert counts.holdings(stats(4)) == (gauges, [Sample(scope_counts.EVICTED, ("acme",), 2)])
    unknown = StoreStats(None, None, None, scopes={"acme": ScopeStats(None, None, None)})
    assert ScopeCounts(SCOPES).holdings(unknown) == ([], [])
