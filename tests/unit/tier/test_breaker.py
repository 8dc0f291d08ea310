"""The circuit breaker, in virtual time."""

import threading

import pytest

from anbar.core.clock import ManualClock
from anbar.tier.breaker import Breaker, BreakerConfig, BreakerState, Ticket, Verdict

CONFIG = BreakerConfig(max_failures=3, pause_s=1.0, max_pause_s=8.0)


class Rig:
    """A breaker and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.breaker = Breaker(self.clock, CONFIG)

    def call(self, verdict: Verdict) -> bool:
        """One call that ends at once; False when it was refused."""
        ticket = self.breaker.admit()
        if ticket is None:
            return False
        self.breaker.record(ticket, verdict)
        return True

    def fail_probe(self) -> None:
        assert self.breaker.state() is BreakerState.HALF_OPEN
        assert self.call(Verdict.FAILED)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_failures_in_a_row_open_it(rig: Rig) -> None:
    """Two failures, a success, then three failures: only three in a row open it; then calls are refused."""
    for verdict in (Verdict.FAILED, Verdict.FAILED, Verdict.OK, Verdict.FAILED, Verdict.FAILED):
        assert rig.call(verdict)
    assert rig.breaker.state() is BreakerState.CLOSED
    assert rig.call(Verdict.FAILED)
    assert rig.breaker.is_open()
    assert not rig.call(Verdict.OK)


def test_how_long_calls_have_gone_through(rig: Rig) -> None:
    """For ever, before anything failed; not while it is open, nor half open; since the probe, after that."""
    assert rig.breaker.has_been_closed(1e9)
    rig.call(Verdict.TIMED_OUT)
    assert not rig.breaker.has_been_closed()
    rig.clock.advance(1.0)
    assert not rig.breaker.has_been_closed()
    rig.call(Verdict.OK)
    assert rig.breaker.has_been_closed()
    rig.clock.advance(9.0)
    assert not rig.breaker.has_been_closed(10.0)
    rig.clock.advance(1.0)
    assert rig.breaker.has_been_closed(10.0)


def test_one_timeout_opens_it(rig: Rig) -> None:
    """A hung store costs every caller its deadline: the first timeout is enough."""
    rig.call(Verdict.TIMED_OUT)
    assert rig.breaker.is_open()


def test_one_probe_at_a_time(rig: Rig) -> None:
    """After the pause one call is let through; others are refused until it ended, then all go through."""
    rig.call(Verdict.TIMED_OUT)
    rig.clock.advance(0.99)
    assert rig.breaker.admit() is None
    rig.clock.advance(0.01)
    probe = rig.breaker.admit()
    assert probe is not None
    assert rig.breaker.admit() is None
    assert not rig.breaker.is_open()
    rig.breaker.record(probe, Verdict.OK)
    assert rig.breaker.state() is BreakerState.CLOSED
    assert rig.call(Verdict.OK)


def test_failed_probes_double_the_pause_up_to_a_bound(rig: Rig) -> None:
    """A store that stays down is asked after 1, 2, 4, 8, 8 seconds."""
    rig.call(Verdict.TIMED_OUT)
    for pause_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        rig.clock.advance(pause_s - 0.01)
        assert rig.breaker.is_open()
        rig.clock.advance(0.01)
        rig.fail_probe()
    assert rig.breaker.take_num_opened() == 6


def test_a_flapping_store_is_asked_less_often(rig: Rig) -> None:
    """Opening again soon after closing doubles the pause; after a long healthy time it starts small."""
    rig.call(Verdict.TIMED_OUT)
    rig.clock.advance(1.0)
    assert rig.call(Verdict.OK)
    rig.call(Verdict.TIMED_OUT)
    rig.clock.advance(1.0)
    assert rig.breaker.is_open()
    rig.clock.advance(1.0)
    assert rig.call(Verdict.OK)
    rig.clock.advance(8.0)
    rig.call(Verdict.TIMED_OUT)
    rig.clock.advance(1.0)
    assert not rig.breaker.is_open()


def test_calls_from_before_change_nothing(rig: Rig) -> None:
    """A call admitted before the breaker opened ends, well or badly, while a probe runs: the probe
    decides."""
    old = [rig.breaker.admit() for _ in range(3)]
    rig.call(Verdict.TIMED_OUT)
    rig.clock.advance(1.0)
    probe = rig.breaker.admit()
    assert isinstance(probe, int)
    for ticket, verdict in zip(old, (Verdict.OK, Verdict.FAILED, Verdict.TIMED_OUT), strict=True):
        assert ticket is not None
        rig.breaker.record(ticket, verdict)
    assert rig.breaker.state() is BreakerState.HALF_OPEN
    rig.breaker.record(Ticket(probe), Verdict.OK)
    assert rig.breaker.state() is BreakerState.CLOSED


def test_every_opening_is_told_once(rig: Rig) -> None:
    """One thread opens the breaker while another one asks how often: what it was told adds up."""
    told: list[int] = []

    def open_often() -> None:
        for _ in range(500):
            assert rig.call(Verdict.TIMED_OUT)
            rig.clock.advance(CONFIG.max_pause_s)

    thread = threading.Thread(target=open_often)
    thread.start()
    while thread.is_alive():
        told.append(rig.breaker.take_num_opened())
    thread.join()
    told.append(rig.breaker.take_num_opened())
    assert sum(told) == 500
    assert rig.breaker.take_num_opened() == 0
