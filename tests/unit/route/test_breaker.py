"""The breaker of an engine: any sequence of requests and probes keeps its promises."""

from hypothesis import given
from hypothesis import strategies as st

from anbar.core.ids import EngineId
from anbar.route.breaker import Breaker, BreakerConfig, BreakerState, Signal, Ticket, ejected

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
CONFIG = BreakerConfig(max_failures=3, pause_s=1.0)


def fail(breaker: Breaker, times: int = 1, signal: Signal = Signal.FAILED, now_s: float = 0.0) -> None:
    for _ in range(times):
        breaker.end(breaker.begin(), signal, now_s)


STEPS = st.one_of(
    st.tuples(st.just("begin"), st.just(Signal.NOTHING)),
    st.tuples(st.just("byte"), st.just(Signal.NOTHING)),
    st.tuples(st.just("end"), st.sampled_from(Signal)),
    st.tuples(st.just("probe"), st.just(Signal.NOTHING)),
)


@given(st.lists(st.tuples(STEPS, st.floats(0, 2)), max_size=100))
def test_promises(steps: list[tuple[tuple[str, Signal], float]]) -> None:
    """It opens only by a failure or a stall, half-opens only by a probe after the pause, and lets one request
    at a time pass while half open; without a request in flight it is never stuck."""
    changes: list[BreakerState] = []
    breaker, now_s, opened_s = Breaker(CONFIG, changes.append), 0.0, 0.0
    held: list[tuple[Ticket, int]] = []
    """What is in flight, and how many changes there had been when it was sent."""
    for (step, signal), passed_s in steps:
        now_s += passed_s
        before = breaker.state
        if step == "begin" and breaker.admits:
            held.append((breaker.begin(), len(changes)))
        elif step == "byte" and held:
            breaker.first_byte(held[-1][0])
            assert breaker.state is before or (before, breaker.state) == (HALF_OPEN, CLOSED)
        elif step == "end" and held:
            breaker.end(held.pop()[0], signal, now_s)
            if breaker.state is OPEN and before is not OPEN:
                assert signal in (Signal.FAILED, Signal.STALLED)
                opened_s = now_s
        elif step == "probe":
            breaker.probed(now_s)
            assert breaker.state is before or (before is OPEN and now_s - opened_s >= 1.0)
        num_now = sum(since == len(changes) for _, since in held)
        if breaker.state is not CLOSED:
            assert num_now <= 1
        assert breaker.admits is (breaker.state is CLOSED or (breaker.state is HALF_OPEN and not num_now))
    for ticket, _ in reversed(held):
        breaker.end(ticket, Signal.NOTHING, now_s)
    breaker.probed(now_s + 2.0)
    assert breaker.admits


@given(st.lists(st.sampled_from([Signal.OK, Signal.FAILED, Signal.NOTHING])))
def test_failures_in_a_row_open(signals: list[Signal]) -> None:
    """Three failures without a success between them, however many client errors are; one by one."""
    breaker, in_a_row, opened = Breaker(CONFIG), 0, False
    for signal in signals:
        breaker.end(breaker.begin(), signal, 0.0)
        in_a_row = 0 if signal is Signal.OK else in_a_row + (signal is Signal.FAILED)
        opened = opened or in_a_row >= 3
        if opened:
            assert breaker.state is OPEN
            return
        assert breaker.state is CLOSED


def test_stall_opens_at_once() -> None:
    """Whoever meets an engine that hangs waits the whole patience: one is enough."""
    breaker = Breaker(CONFIG)
    fail(breaker, signal=Signal.STALLED)
    assert breaker.state is OPEN


def test_client_errors_never_count() -> None:
    """A storm of requests that say nothing leaves it closed, and a half-open one half open for the next."""
    breaker = Breaker(CONFIG)
    fail(breaker, 1000, Signal.NOTHING)
    assert breaker.state is CLOSED
    fail(breaker, 3)
    breaker.probed(1.0)
    fail(breaker, 5, Signal.NOTHING)
    assert breaker.state is HALF_OPEN
    assert breaker.admits


def test_way_back() -> None:
    """Open; a probe within the pause changes nothing, one behind it lets one request pass; its first byte
    closes; the next failure opens again, and a whole answer forgives all."""
    seen: list[BreakerState] = []
    breaker = Breaker(CONFIG, seen.append)
    fail(breaker, 3)
    breaker.probed(0.9)
    assert not breaker.admits
    breaker.probed(1.0)
    trial = breaker.begin()
    assert not breaker.admits
    breaker.first_byte(trial)
    assert breaker.admits
    fail(breaker, now_s=2.0)
    assert breaker.state is OPEN
    breaker.probed(3.0)
    trial = breaker.begin()
    breaker.first_byte(trial)
    breaker.end(trial, Signal.OK, 4.0)
    fail(breaker, 2)
    assert seen == [OPEN, HALF_OPEN, CLOSED, OPEN, HALF_OPEN, CLOSED]


def test_late_failures_of_an_earlier_time_change_nothing() -> None:
    """A hundred requests were in flight when it opened: their failures, after it came back, are old news."""
    breaker = Breaker(CONFIG)
    old = [breaker.begin() for _ in range(100)]
    fail(breaker, 3)
    breaker.probed(1.0)
    breaker.end(breaker.begin(), Signal.OK, 1.0)
    for ticket in old:
        breaker.end(ticket, Signal.STALLED, 2.0)
    assert breaker.state is CLOSED


@given(st.lists(st.floats(0, 9), max_size=9), st.integers(0, 9), st.floats(0, 1))
def test_a_share_of_the_fleet_is_ejected(opened: list[float], num_more: int, share: float) -> None:
    """Never more than the share, and those that opened first."""
    shut = [(at_s, EngineId(str(index))) for index, at_s in enumerate(opened)]
    num_serving = len(shut) + num_more
    out = ejected(shut, num_serving, share)
    assert len(out) == min(len(shut), int(share * num_serving))
    kept = [at_s for at_s, engine in shut if engine not in out]
    assert all(at_s <= min(kept, default=9) for at_s, engine in shut if engine in out)
