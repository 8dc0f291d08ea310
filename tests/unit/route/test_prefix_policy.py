"""The approximate policy: a match that is long enough wins, unless its engine is overloaded."""

from random import Random

import pytest

from anbar.core.fleet import EngineView, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.route.options import PolicyOptions
from anbar.route.policies.prefix import Prefix

from .builders import query, view

PROMPT = query([7] * 1000)


def sent(**tokens: int) -> dict[EngineId, PrefixMatch]:
    """What was sent to each engine of this prompt's beginning."""
    return {EngineId(name): PrefixMatch(count, count, count, count) for name, count in tokens.items()}


def decide(
    views: list[EngineView], matches: dict[EngineId, PrefixMatch], options: PolicyOptions | None = None
) -> Route:
    return Prefix(Random(0), options or PolicyOptions()).decide(PROMPT, views, matches)


@pytest.mark.parametrize(("matched", "target"), [(299, "b"), (300, "a")])
def test_a_match_must_be_long_enough(matched: int, target: str) -> None:
    """Three tenths of the prompt are worth the busier engine, less is not."""
    route = decide([view("a", in_flight=1), view("b")], sent(a=matched))
    assert route.target == target


def test_the_longest_match_wins_and_the_next_are_fallbacks() -> None:
    """Engines in the order of what they hold; those with too little by load."""
    views = [view("a"), view("b", in_flight=3), view("c", in_flight=2), view("d", in_flight=1)]
    route = decide(views, sent(a=10, b=900, c=500))
    assert (route.target, route.fallbacks) == ("b", ("c", "a", "d"))
    assert route.reason.startswith("b was sent 900 of these 1000 tokens before (3 in flight")


@pytest.mark.parametrize(("in_flight", "stays"), [(5, True), (6, False)])
def test_an_overloaded_engine_gets_nothing_for_its_cache(in_flight: int, stays: bool) -> None:
    """Four above the mean are chance, more is imbalance: five of five requests on four engines (mean 1.25)
    are within, six of six (mean 1.5) are not."""
    route = decide([view("a", in_flight=in_flight), *(view(name) for name in "bcd")], sent(a=900))
    assert (route.target == "a") is stays
    assert ("the longest match, 900 of 1000 tokens, is overloaded" in route.reason) is not stays


def test_the_ratio_gates_large_fleets_loads() -> None:
    """At a mean of a hundred, two deviations are 120; a ratio of 1.5 lets the engine have up to 150."""
    views = [view("a", in_flight=140), *(view(name, in_flight=90) for name in "bcde")]
    assert decide(views, sent(a=900)).target == "a"
    tight = PolicyOptions(prefix_spill_ratio=1.1)
    assert decide(views, sent(a=900), tight).target != "a"


def test_nothing_matched_is_the_least_loaded() -> None:
    """A new prompt, or one without tokens, goes by load, and the reason says how little was matched."""
    views = [view("a", in_flight=2), view("b", in_flight=1)]
    route = decide(views, {})
    assert (route.target, route.fallbacks) == ("b", ("a",))
    assert "the longest match, 0 of 1000 tokens, is less than the 300 that count" in route.reason
    nothing_counts = PolicyOptions(prefix_min_match=0.0)
    assert decide(views, {}, nothing_counts).target == "b"


def test_a_match_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"1\.5, must be from 0 to 1"):
        PolicyOptions(prefix_min_match=1.5)
