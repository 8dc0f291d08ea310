"""When a prompt is worth to be computed by another engine than the one that answers."""

import pytest
from msgspec.structs import replace

from anbar.core.cost import PrefillCost
from anbar.core.fleet import NO_MATCH, Prediction, PrefixMatch
from anbar.core.ids import RequestId
from anbar.core.request import RouteQuery
from anbar.route.predict import predict
from anbar.route.split import Leg, SplitRule, SplitVerdict, gain_s, handed, judge
from tests.unit.route.builders import view

COST = PrefillCost(1e-3, 0.0, 0.0)
"""A thousand tokens a second."""


def query(num_tokens: int = 1000) -> RouteQuery:
    return RouteQuery(RequestId("r"), "m", range(num_tokens), num_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "cached", "verdict"),
    [
        (99, 0, SplitVerdict.SHORT),
        (100, 0, SplitVerdict.SPLIT),
        (1000, 901, SplitVerdict.CACHED),
        (1000, 900, SplitVerdict.SPLIT),
    ],
)
def test_short_and_mostly_cached_prompts_are_not_split(
    num_tokens: int, cached: int, verdict: SplitVerdict
) -> None:
    """What counts is what the engine that answers would have to compute, from whichever tier the rest is."""
    match = PrefixMatch(0, 0, cached)
    assert judge(SplitRule(100), query(num_tokens), Prediction(match)) is verdict


def gain(num_decoding: int, queued: int = 0) -> float:
    """Of splitting a prompt of 1,000 tokens, half of which the prefill engine has, with a store that takes a
    tenth of the time."""
    decode = view("d", prefill=COST, decoding=num_decoding, in_flight=num_decoding, queued=queued)
    prefill = replace(view("p"), prefill=COST)
    asked = query()
    unsplit = Leg(decode, predict(asked, decode, NO_MATCH))
    first = Leg(prefill, predict(asked, prefill, PrefixMatch(500, 500, 500)))
    return gain_s(asked, unsplit, first, handed(NO_MATCH, 1000))


def test_the_gain_is_what_others_do_not_lose() -> None:
    """Alone 1 s; split 0.5 s on the prefill engine, 0.1 s for loading and one token. Ten answers that run are
    spared a second each."""
    assert gain(0) == pytest.approx(1 - 0.5 - 0.1, abs=0.01)
    assert gain(10) == pytest.approx(0.4 + 10, abs=0.03)


def test_a_queue_goes_on_while_the_prompt_is_computed_elsewhere() -> None:
    """With 0.4 s of work queued, the answer waits 0.4 s less after a prefill of 0.5 s."""
    assert gain(0, queued=400) == pytest.approx(gain(0) + 0.4, abs=0.01)


def test_what_an_engine_has_besides_is_kept() -> None:
    """A handover adds to the shared tier what is not there yet, and takes nothing from those before it."""
    match = PrefixMatch(32, 64, 96, unproven=16)
    assert handed(match, 64) == match
    assert handed(match, 128) == PrefixMatch(32, 64, 128, unproven=16)
    assert handed(NO_MATCH, 128).total == 128
