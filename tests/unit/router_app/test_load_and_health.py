"""An engine's load returns to zero on every path; its health follows probes and failed connections."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.apps.router.health import FAILURES_BEFORE_UNHEALTHY, Health
from anbar.apps.router.load import EngineLoad, Plan, Share
from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillWork
from anbar.core.events import Tier
from anbar.core.fleet import EngineState, Prediction, PrefixMatch

READY, STARTING, UNHEALTHY = EngineState.READY, EngineState.STARTING, EngineState.UNHEALTHY


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["begin", "byte", "end"]), st.integers(0, 100))))
def test_load_is_the_sum_of_what_is_open(steps: list[tuple[int, str, int]]) -> None:
    """Any interleaving of requests against a plain model: the counts are always those of the open ones."""
    load, clock = EngineLoad(), ManualClock()
    shares: dict[int, Share] = {}
    queued: dict[int, int] = {}
    for name, step, tokens in steps:
        if step == "begin" and name not in shares:
            shares[name] = load.hold(Plan(tokens), clock).__enter__()
            queued[name] = tokens
        elif step == "byte" and name in queued:
            shares[name].first_byte()
            del queued[name]
        elif step == "end" and name in shares:
            shares.pop(name).__exit__(None, None, None)
            queued.pop(name, None)
        assert load.num_in_flight == len(shares)
        assert load.queued_prefill_tokens == sum(queued.values())
        assert load.num_decoding == len(shares) - len(queued)
    for share in shares.values():
        share.__exit__(None, None, None)
    assert (load.num_in_flight, load.queued_prefill_tokens, load.num_decoding) == (0, 0, 0)


def test_share_is_returned_when_a_request_fails() -> None:
    """An exception within the share, before or after the first byte, leaves nothing behind."""
    load = EngineLoad()

    def fail(begun: bool) -> None:
        with load.hold(Plan(5), ManualClock()) as share:
            if begun:
                share.first_byte()
            raise RuntimeError

    for begun in (False, True):
        with pytest.raises(RuntimeError):
            fail(begun)
    assert (load.num_in_flight, load.queued_prefill_tokens, load.num_decoding) == (0, 0, 0)


def test_what_a_request_says_of_its_engine() -> None:
    """A prompt of 1,000 tokens behind one of 400 that the engine has worked on for a second; the first token
    comes three seconds later. The time is that of both prompts, and what was loaded is what was predicted, as
    far as the engine reports it. One that overtakes another, or comes
    behind one that loads, does not know what it waited for."""
    load, clock = EngineLoad(), ManualClock()
    match = PrefixMatch(100, 300, 600)
    with load.hold(Plan(400, Prediction(prefill_s=2.0)), clock) as first:
        clock.advance(1.0)
        with load.hold(Plan(1000, Prediction(match)), clock) as second:
            assert load.queued_prefill_tokens == 800
            clock.advance(1.0)
            first.first_byte()
            assert first.finished(0).seconds == 2.0
            clock.advance(2.0)
            second.first_byte()
            assert second.finished(0).is_clear
            whole, less, more = (second.finished(num_cached) for num_cached in (600, 200, 900))
    with load.hold(Plan(400), clock), load.hold(Plan(100), clock) as third:
        third.first_byte()
    assert not third.finished(0).is_clear
    loads = Plan(400, Prediction(PrefixMatch(0, 300, 300)))
    with load.hold(loads, clock) as ahead, load.hold(Plan(100), clock) as behind:
        ahead.first_byte()
        behind.first_byte()
    assert ahead.finished(0).is_clear
    assert not behind.finished(0).is_clear
    assert (whole.seconds, whole.queued) == (4.0, PrefillWork(400, 160_000))
    assert (whole.own, whole.loaded) == (PrefillWork.of(1000, 600), {Tier.HOST: 200, Tier.SHARED: 300})
    assert (less.own, less.loaded) == (PrefillWork.of(1000, 200), {Tier.HOST: 100, Tier.SHARED: 0})
    assert (more.own, more.loaded) == (PrefillWork.of(1000, 900), {Tier.HOST: 200, Tier.SHARED: 300})


def test_what_a_request_holds_and_how_long_its_answer_runs() -> None:
    """Of its prompt what no cache has, until it is over; from its first token, which only a stream shows."""
    load, clock = EngineLoad(), ManualClock()
    with load.hold(Plan(1000, Prediction(PrefixMatch(100, 300, 600))), clock) as share:
        with load.hold(Plan(50, streams=False), clock) as hidden:
            assert load.held_tokens == 450
            share.first_byte()
            hidden.first_byte()
            assert load.held_tokens == 450
            clock.advance(2.5)
            assert share.finished(600).answer_s == 2.5
            assert math.isnan(hidden.finished(0).answer_s)
        assert load.held_tokens == 400
    assert load.held_tokens == 0


def test_an_answer_that_is_not_streamed_is_decoding_when_its_prefill_must_be_over() -> None:
    """Its first token is not seen: it counts as queued for the seconds that were predicted."""
    load, clock = EngineLoad(), ManualClock()
    with load.hold(Plan(400, Prediction(prefill_s=2.0), streams=False), clock):
        load.queue.pass_time(1.0)
        assert (load.num_decoding, load.queued_prefill_tokens) == (0, 400)
        load.queue.pass_time(2.0)
        assert (load.num_decoding, load.queued_prefill_tokens, load.num_in_flight) == (1, 0, 1)
    assert (load.num_decoding, load.num_in_flight) == (0, 0)


def test_a_refusal_says_nothing_of_what_was_sent_before() -> None:
    """An engine refuses a request at once while it computes two others, one of them not streamed: both are
    still to be computed."""
    load, clock = EngineLoad(), ManualClock()
    hidden = Plan(400, Prediction(prefill_s=9.0), streams=False)
    with load.hold(hidden, clock), load.hold(Plan(300), clock), load.hold(Plan(50), clock) as refused:
        refused.first_byte(400)
        assert (load.queued_prefill_tokens, load.num_decoding, load.num_in_flight) == (700, 1, 3)
    assert (load.queued_prefill_tokens, load.num_decoding, load.num_in_flight) == (0, 0, 0)


class Changes:
    """Collects what a Health says."""

    def __init__(self) -> None:
        self.seen: list[tuple[EngineState, EngineState]] = []
        self.health = Health(lambda before, after, reason: self.seen.append((before, after)))


def test_failed_connection_is_unhealthy_at_once_and_only_a_probe_readmits() -> None:
    """READY, one failed connection: UNHEALTHY; it stays so until a good probe."""
    changes = Changes()
    health = changes.health
    health.probe_succeeded()
    health.connection_failed("refused")
    assert (health.state, health.reason) == (UNHEALTHY, "refused")
    health.connection_failed("refused again")
    health.probe_succeeded()
    assert health.state is READY
    assert health.last_error == "refused again"
    assert changes.seen == [(STARTING, READY), (READY, UNHEALTHY), (UNHEALTHY, READY)]


def test_late_probes_need_to_repeat() -> None:
    """A probe that is late once means a busy engine; several in a row, an engine that hangs."""
    health = Changes().health
    health.probe_succeeded()
    for _ in range(FAILURES_BEFORE_UNHEALTHY - 1):
        health.probe_was_late("slow")
    assert health.state is READY
    health.probe_succeeded()
    for _ in range(FAILURES_BEFORE_UNHEALTHY - 1):
        health.probe_was_late("slow")
    assert health.state is READY
    health.probe_was_late("slow")
    assert health.state is UNHEALTHY


def test_engine_that_has_never_answered_is_starting() -> None:
    """Refused connections before the first good probe: still STARTING, with the reason."""
    changes = Changes()
    for _ in range(5):
        changes.health.connection_failed("refused")
        changes.health.probe_was_late("slow")
    assert (changes.health.state, changes.health.reason, changes.seen) == (STARTING, "slow", [])
