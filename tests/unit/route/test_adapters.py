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


@pytest.mark.parametrize("name", ["predicted_ttft", "least_loaded"])
def test_loaded_comes_before_a_free_slot(name: str) -> None:
    """Of equally busy engines the one that has the adapter is chosen, for it need not be brought."""
    for seed in range(5):
        assert decide(name, [engine("a", "y"), engine("b", "x")], asked=asked(), seed=seed).target == "b"


def test_bringing_an_adapter_is_seconds_like_others() -> None:
    """It is part of the predicted wait: a cached prefix that saves more than that wins over a loaded adapter,
    and one that saves less does not."""
    views = [engine("a"), engine("b", "x")]
    assert decide("predicted_ttft", views, asked=asked()).predictions[views[0].id].wait_s == LOAD_S
    assert decide("predicted_ttft", views, cached(a=90), asked=asked()).target == "a"
    assert decide("predicted_ttft", views, cached(a=10), asked=asked()).target == "b"
