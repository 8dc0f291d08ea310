"""Stores and loads on their way, with the store's outcomes given by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.core.clock import ManualClock
from anbar.tier.breaker import Breaker, Verdict
from anbar.tier.store import Outcome
from anbar.tier.tally import Series, Tally
from anbar.tier.transfers import Change, Direction, Finished, Job, TransferConfig, Transfers

CONFIG = TransferConfig(row_bytes=100, max_store_rows=6, max_load_rows=4, rows_per_call=2)


def keys(text: str) -> tuple[bytes, ...]:
    return tuple(char.encode() for char in text)


class Rig:
    """Transfers with what they need."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock)
        self.tally = Tally()
        self.transfers = Transfers(self.clock, self.breaker, self.tally, CONFIG)

    def job(self, id: int, text: str, scope: str = "") -> Job:
        return Job(id, f"r{id}", scope, keys(text), tuple(range(10 * id, 10 * id + len(text))))

    def finished(self) -> Finished:
        (finished,) = self.transfers.take_finished()
        return finished

    def open_breaker(self) -> None:
        ticket = self.breaker.admit()
        assert ticket is not None
        self.breaker.record(ticket, Verdict.TIMED_OUT)

    def counted(self, series: Series) -> dict[str, float]:
        return {label: amount for (s, label), amount in self.tally.take().items() if s is series}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_each_call_says_what_its_keys_save(rig: Rig) -> None:
    """Of three keys in calls of two, where the middle one is being stored already."""
    rig.transfers.store(rig.job(1, "b"), wanted=True)
    job = replace(rig.job(2, "abcd"), saves_s=(4.0, 3.0, 2.0, 1.0))
    calls = rig.transfers.store(job, wanted=True)
    assert [(call.keys, call.saves_s) for call in calls] == [(keys("ac"), (4.0, 2.0)), (keys("d"), (1.0,))]


def test_a_store_is_cut_into_calls_and_ends_with_the_last(rig: Rig) -> None:
    """Five keys in calls of two; the job ends with its last call and tells what was written."""
    calls = rig.transfers.store(rig.job(1, "abcde"), wanted=True)
    assert [(call.keys, call.rows) for call in calls] == [
        (keys("ab"), (10, 11)),
        (keys("cd"), (12, 13)),
        (keys("e"), (14,)),
    ]
    assert [call.saves_s for call in calls] == [(), (), ()]
    rig.clock.advance(2.0)
    for call in reversed(calls):
        assert rig.transfers.take_finished() == []
        rig.transfers.settle(call, [Outcome.HIT] * len(call.keys))
    assert rig.finished() == Finished(1, "r1", Direction.STORE, True, keys("ecdab"), (), 2.0, 500)
    assert rig.transfers.num_running == 0
    assert [change.present for change in rig.transfers.take_changes()] == [True] * 3


def test_a_partly_failed_store_is_told_apart(rig: Rig) -> None:
    """One key written, one refused by a full store: the job failed, only the written one is announced."""
    (call,) = rig.transfers.store(rig.job(1, "ab"), wanted=True)
    rig.transfers.settle(call, [Outcome.HIT, Outcome.FULL])
    finished = rig.finished()
    assert (finished.ok, finished.good, finished.failed) == (False, keys("a"), keys("b"))
    assert rig.transfers.take_changes() == [Change(keys("a"), present=True)]
    assert rig.counted(Series.STORES) == {"hit": 1, "full": 1}


def test_keys_in_flight_are_not_written_twice(rig: Rig) -> None:
    """Two requests store one prefix at once: the second writes only what the first does not. When the first
    is done, the key may be written again. Another scope is another entry."""
    (first,) = rig.transfers.store(rig.job(1, "ab"), wanted=True)
    (second,) = rig.transfers.store(rig.job(2, "abc"), wanted=True)
    assert second.keys == keys("c")
    assert second.rows == (22,)
    (other,) = rig.transfers.store(rig.job(3, "a", scope="tenant"), wanted=True)
    assert other.keys == keys("a")
    assert rig.transfers.store(rig.job(4, "b"), wanted=True) == []
    assert rig.finished().ok
    rig.transfers.settle(first, [Outcome.HIT, Outcome.ERROR])
    (again,) = rig.transfers.store(rig.job(5, "b"), wanted=True)
    assert again.keys == keys("b")


def test_an_unwanted_store_is_acknowledged(rig: Rig) -> None:
    """The request asked not to be stored: the job ends well, nothing is sent or announced."""
    assert rig.transfers.store(rig.job(1, "abc"), wanted=False) == []
    assert rig.finished() == Finished(1, "r1", Direction.STORE, True, (), (), 0.0, 0)
    assert rig.transfers.take_changes() == []
    assert rig.counted(Series.STORES) == {"unwanted": 3}


def test_pinned_rows_are_bounded(rig: Rig) -> None:
    """Six rows may be pinned by stores: of four and four the last two are skipped, and room comes back."""
    calls = rig.transfers.store(rig.job(1, "abcd"), wanted=True)
    more = rig.transfers.store(rig.job(2, "efgh"), wanted=True)
    assert [call.keys for call in more] == [keys("ef")]
    assert rig.transfers.store(rig.job(3, "i"), wanted=True) == []
    assert rig.finished().ok
    rig.transfers.settle(calls[0], [Outcome.HIT] * 2)
    assert [call.keys for call in rig.transfers.store(rig.job(4, "jkl"), wanted=True)] == [keys("jk")]
    assert rig.counted(Series.STORES) == {"hit": 2, "queue_full": 4}


def test_a_load_tells_what_came_and_what_is_gone(rig: Rig) -> None:
    """Of four keys one is missing, one damaged, one late: only the first came; the missing and the damaged
    are known to be gone, the late one is not."""
    one, two = rig.transfers.load(rig.job(1, "abcd"))
    rig.transfers.settle(one, [Outcome.HIT, Outcome.MISS])
    rig.transfers.settle(two, [Outcome.CORRUPT, Outcome.TIMEOUT])
    finished = rig.finished()
    assert (finished.ok, finished.good, finished.failed) == (False, keys("a"), keys("bcd"))
    assert rig.transfers.take_changes() == [
        Change(keys("b"), present=False),
        Change(keys("a"), present=True),
        Change(keys("c"), present=False),
    ]
    assert rig.counted(Series.LOADS) == {"hit": 1, "miss": 1, "corrupt": 1, "timeout": 1}


def test_loads_past_the_bound_fail_at_once(rig: Rig) -> None:
    """Four rows may be pinned by loads: of five keys the last fails; a further job fails whole."""
    rig.transfers.load(rig.job(1, "abcde"))
    assert rig.transfers.load(rig.job(2, "xy")) == []
    finished = rig.finished()
    assert (finished.job, finished.ok, finished.failed) == (2, False, keys("xy"))
    assert rig.counted(Series.LOADS) == {"queue_full": 3}


def test_an_open_breaker_refuses(rig: Rig) -> None:
    """Stores are acknowledged without writing, loads fail, both at once."""
    rig.open_breaker()
    assert rig.transfers.store(rig.job(1, "ab"), wanted=True) == []
    assert rig.finished().ok
    assert rig.transfers.load(rig.job(2, "ab")) == []
    assert not rig.finished().ok
    assert rig.counted(Series.STORES) == {"refused": 2}


def test_a_breaker_that_opens_meanwhile_ends_jobs(rig: Rig) -> None:
    """A queued call is refused when its turn comes: the job ends, and its key may be stored later."""
    (call,) = rig.transfers.store(rig.job(1, "ab"), wanted=True)
    rig.transfers.settle(call, None)
    assert not rig.finished().ok
    assert rig.counted(Series.STORES) == {"refused": 2}
    assert len(rig.transfers.store(rig.job(2, "ab"), wanted=True)) == 1


def test_a_job_without_keys_ends(rig: Rig) -> None:
    """Nothing to move is a success at once, in both directions."""
    assert rig.transfers.store(rig.job(1, ""), wanted=True) == []
    assert rig.transfers.load(rig.job(2, "")) == []
    assert [finished.ok for finished in rig.transfers.take_finished()] == [True, True]


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["store", "load"]), st.text("abcdefgh", max_size=8), st.booleans()),
        st.tuples(st.just("settle"), st.integers(0, 20), st.sampled_from([*Outcome, None])),
        st.tuples(st.just("break"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(operations)
def test_every_job_ends_once_and_nothing_stays_pinned(events: list[tuple[str, object, object]]) -> None:
    """Jobs of any keys, calls settled in any order with any outcome, a breaker that opens: every job ends
    exactly once, with each of its keys at most once, a key is never written by two calls at a time, and at
    the end everything can be used again."""
    rig = Rig()
    calls = []
    jobs: dict[int, Job] = {}
    for what, value, flag in events:
        if what in ("store", "load"):
            job = rig.job(len(jobs) + 1, "".join(sorted(set(value))))
            jobs[job.id] = job
            more = rig.transfers.load(job) if what == "load" else rig.transfers.store(job, wanted=flag)
            calls += more
            written = [key for call in calls if call.direction is Direction.STORE for key in call.keys]
            assert len(written) == len(set(written))
        elif what == "settle" and calls:
            call = calls.pop(value % len(calls))
            rig.transfers.settle(call, None if flag is None else [flag] * len(call.keys))
        elif what == "break":
            rig.open_breaker() if not rig.breaker.is_open() else rig.clock.advance(60.0)
    for call in calls:
        rig.transfers.settle(call, [Outcome.HIT] * len(call.keys))
    finished = rig.transfers.take_finished()
    assert sorted(f.job for f in finished) == sorted(jobs)
    for end in finished:
        ended = [*end.good, *end.failed]
        assert len(ended) == len(set(ended))
        assert set(ended) <= set(jobs[end.job].keys)
        assert end.direction is Direction.STORE or set(ended) == set(jobs[end.job].keys)
    rig.clock.advance(60.0)
    assert rig.transfers.num_running == 0
    assert sum(len(call.keys) for call in rig.transfers.load(rig.job(98, "abcd"))) == CONFIG.max_load_rows
    stored = rig.transfers.store(rig.job(99, "abcdef"), wanted=True)
    assert sum(len(call.keys) for call in stored) == CONFIG.max_store_rows
