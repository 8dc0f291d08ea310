"""How far a log can be trusted."""

from dataclasses import replace

import pytest

from anbar.plan.catalogue import MODELS
from anbar.plan.confidence import share_of_other_verdicts
from anbar.plan.deployment import Deployment
from anbar.plan.facts import Facts
from anbar.plan.options import Options
from anbar.plan.reasons import Choice, Kind
from anbar.plan.stack import Stack
from anbar.plan.synthetic import BLOCK, documents
from anbar.plan.verdict import Verdict, verdict_of
from anbar.plan.workload import Asked, Workload

GB = 10**9
SMALL = Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100")
STACK = Stack(SMALL, host_bytes=100 * GB)
CYCLE = documents(60, 10_000, 4, every_s=3.0)


def alone(num: int, every_s: float = 10.0) -> Workload:
    """No prompt has anything in common with another."""
    asked = [Asked(n * every_s, 8_000, 100, tuple(range(n << 20, (n << 20) + 8))) for n in range(num)]
    return Workload(asked, 1_000)


def doubt(verdict: Verdict, words: str) -> bool:
    return any(words in text for text in verdict.doubts)


@pytest.mark.parametrize("num", [1, 3, 99])
def test_a_log_of_few_requests_tells_nothing(num: int) -> None:
    """A share found in n requests is known within 1 / sqrt(n): more than ten points is nobody's basis."""
    verdict = verdict_of(alone(num), STACK)
    assert verdict.confidence == "low"
    assert doubt(verdict, f"the log has only {num} request")
    assert doubt(verdict, f"known within {100 / num**0.5:.3g} points")


def test_nothing_found_in_a_short_log_may_be_chance() -> None:
    """By the rule of three: 3 / n of the requests may come again though none did, and storing pays from some
    per cent on. A longer log settles it."""
    short, long = (verdict_of(alone(num), STACK) for num in (60, 1_000))
    assert short.reasons[0].kind is long.reasons[0].kind is Kind.NO_REUSE
    assert doubt(short, "nothing came again in 60 requests, and it may be 5 %")
    assert (long.confidence, long.doubts) == ("high", ())


def test_three_arrivals_are_no_rate() -> None:
    """Overload that a few requests within a second show may be an accident of these seconds."""
    burst = verdict_of(alone(3, every_s=0.1), STACK)
    assert burst.reasons[0].kind is Kind.OVERLOAD
    assert doubt(burst, "3 arrivals tell a rate within 113 %")
    many = verdict_of(alone(10_000, every_s=0.1), STACK)
    assert many.reasons[0].kind is Kind.OVERLOAD
    assert not doubt(many, "arrivals")


def test_samples_of_a_log_that_turns_on_one_part_of_it() -> None:
    """A ninth of it has all that comes again, just enough for the verdict: many samples have too little.
    Where every part is like the others none gives another verdict."""
    assert share_of_other_verdicts(Facts(Options(CYCLE, STACK)), Choice.NATIVE) == 0.0
    again = documents(60, 8_000, 4).requests
    once = documents(1_960, 8_000, 1).requests[60:]
    asked = [replace(one, at_s=3.0 * place) for place, one in enumerate([*once[:900], *again, *once[900:]])]
    facts = Facts(Options(Workload(asked, BLOCK), STACK))
    choice = Choice.NATIVE if facts.pays(facts.native, facts.neither) else Choice.NEITHER
    other = Choice.NEITHER if choice is Choice.NATIVE else Choice.NATIVE
    share = share_of_other_verdicts(facts, choice)
    assert 0.05 < share < 0.95
    assert share == share_of_other_verdicts(facts, choice)
    assert share_of_other_verdicts(facts, other) == pytest.approx(1.0 - share)


def test_requests_that_do_not_tell_their_blocks() -> None:
    """Count as if nothing of them came again: of a few that is a doubt, of many the log tells nothing."""
    for share, confidence in ((20, "medium"), (3, "low")):
        mute = [
            replace(asked, blocks=()) if place % share == 0 else asked
            for place, asked in enumerate(CYCLE.requests)
        ]
        verdict = verdict_of(replace(CYCLE, requests=mute), STACK)
        assert doubt(verdict, f"{240 // share} of 240 requests do not tell what they have in common")
        assert verdict.confidence == confidence
