"""LoRA adapters: engines that have one in a slot first, then those with a free slot, then the others."""

import pytest
from msgspec.structs import replace

from anbar.core.fleet import EngineView
from anbar.core.request import RouteQuery
from anbar.route.adapters import LOAD_S
from anbar.route.filters import Verdict, candidates, verdict
from anbar.route.policies import POLICIES

from .builders import query, view
from .test_policies import cached, decide


def asked(tokens: int = 100) -> RouteQuery:
    return query([7] * tokens, lora="x", model="x")


def engine(name: str, *slots: str, full: bool = False, in_flight: int = 0) -> EngineView:
    """An engine that serves the adapter `x`, with these adapters in its slots."""
    base = view(name, models=("m", "x"), in_flight=in_flight)
    return replace(base, adapters=frozenset(slots), adapters_full=full)


FULL = engine("full", "y", full=True)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_slot_comes_last(name: str) -> None:
    """An engine whose slots all run other adapters is no candidate while another one has the adapter or a
    slot, whatever the policy; it is one where there is no other, and for the model without an adapter."""
    for other in (engine("a", "x", full=True, in_flight=3), engine("a", "y", in_flight=3)):
        route = decide(name, [FULL, other], asked=asked())
        assert (route.target, route.fallbacks) == ("a", ())
    assert decide(name, [FULL], asked=asked()).target == "full"
    assert len(decide(name, [FULL, engine("a")], asked=query([7] * 100)).fallbacks) == 1


def test_verdicts_name_the_rule() -> None:
    """What explains a decision says why an engine was passed over."""
    assert verdict(asked(), FULL) is Verdict.NO_ADAPTER_SLOT
    assert verdict(asked(), engine("a", "x", full=True)) is Verdict.ABLE
    assert verdict(asked(), engine("a", "y")) is Verdict.ABLE
    assert candidates(asked(), [FULL, FULL]) == [FULL, FULL]


@pytest.mark.parametrize("name", ["predicted_ttft", "least_loaded", "prefix", "session"])
def test_loaded_comes_before_a_free_slot(name: str) -> None:
    """Of equally busy engines the one that has the adapter is chosen, for it need not be brought. The request
    names no session."""
    for seed in range(5):
        assert decide(name, [engine("a", "y"), engine("b", "x")], asked=asked(), seed=seed).target == "b"


def test_bringing_an_adapter_is_seconds_like_others() -> None:
    """It is part of the predicted wait: a cached prefix that saves more than that wins over a loaded adapter,
    and one that saves less does not."""
    views = [engine("a"), engine("b", "x")]
    assert decide("predicted_ttft", views, asked=asked()).predictions[views[0].id].wait_s == LOAD_S
    assert decide("predicted_ttft", views, cached(a=90), asked=asked()).target == "a"
    assert decide("predicted_ttft", views, cached(a=10), asked=asked()).target == "b"


def test_a_match_is_worth_more_than_a_loaded_adapter() -> None:
    """`prefix`: the engine that was sent the prompt gets it; of two that were, the one with the adapter."""
    views = [engine("a", "y"), engine("b", "x"), engine("c", "x")]
    assert decide("prefix", views, cached(a=90), asked=asked()).target == "a"
    for seed in range(5):
        assert decide("prefix", views, cached(a=90, b=90), asked=asked(), seed=seed).target == "b"


def test_a_session_moves_for_load_and_then_to_the_adapter() -> None:
    """`session`: its engine keeps it, adapter or not. When that is full, the one with the adapter gets it
    before one that the session's hash would prefer, unless it is full too."""
    session = replace(asked(), session="ann")
    names = "abcd"
    order = decide("session", [engine(name) for name in names], asked=session)
    home, second, third, fourth = (order.target, *order.fallbacks)

    def moved(*adapter_at: str, **in_flight: int) -> str:
        views = [
            engine(name, "x" if name in adapter_at else "y", in_flight=in_flight.get(name, 0))
            for name in names
        ]
        return decide("session", views, asked=session).target

    assert moved(third) == home
    assert moved(third, fourth, **{home: 9}) == third
    assert moved(third, **{home: 9, third: 9}) == second
    assert moved(**{home: 9}) == second
