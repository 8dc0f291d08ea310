"""Sessions stay where they are, until load or a lost engine moves them."""

from collections import Counter
from random import Random

import pytest

from anbar.core.fleet import EngineState, EngineView, Route
from anbar.core.ids import RequestId
from anbar.core.request import RouteQuery
from anbar.route.options import PolicyOptions
from anbar.route.policies.session import FLOOR, Session
from anbar.route.rendezvous import lot

from .builders import view

NAMES = "abcd"


def asked(session: str) -> RouteQuery:
    return RouteQuery(RequestId("r"), "m", (), 100, session=session)


def decide(session: str, views: list[EngineView], bound: float = 1.5) -> Route:
    return Session(Random(0), PolicyOptions(session_bound=bound)).decide(asked(session), views, {})


def home(session: str) -> str:
    return decide(session, [view(name) for name in NAMES]).target


def test_sessions_are_spread_and_each_stays() -> None:
    """A thousand sessions are spread evenly over four engines (the counts are what the hash gives, on every
    machine), and each goes to the same one again."""
    homes = {str(at): home(str(at)) for at in range(1000)}
    assert all(200 < count < 300 for count in Counter(homes.values()).values())
    assert all(home(session) == homes[session] for session in list(homes)[:50])


def test_only_the_sessions_of_a_lost_engine_move() -> None:
    """When one of four engines is not ready, its sessions are spread over the others, the rest stay; when it
    is back, all are where they were."""
    views = [view(name, state=EngineState.UNHEALTHY if name == "b" else EngineState.READY) for name in NAMES]
    moved = Counter()
    for at in range(400):
        target = decide(str(at), views).target
        if home(str(at)) == "b":
            moved[target] += 1
        else:
            assert target == home(str(at))
    assert set(moved) == {"a", "c", "d"}


def test_fallbacks_are_the_engines_that_would_be_next() -> None:
    """Whoever a request is given to when its engine fails is the engine that its session goes to from
    then."""
    views = [view(name) for name in NAMES]
    for at in range(50):
        route = decide(str(at), views)
        left = [engine for engine in views if engine.id != route.target]
        assert decide(str(at), left).target == route.fallbacks[0]


@pytest.mark.parametrize(("at_home", "stays"), [(FLOOR - 1, True), (FLOOR, False)])
def test_few_in_flight_are_no_load(at_home: int, stays: bool) -> None:
    """On an otherwise idle fleet an engine takes four requests at once, whatever the mean is."""
    views = [view(name, in_flight=at_home if name == home("s") else 0) for name in NAMES]
    assert (decide("s", views).target == home("s")) is stays


@pytest.mark.parametrize(("at_home", "stays"), [(18, True), (19, False)])
def test_the_bound_is_a_multiple_of_the_mean(at_home: int, stays: bool) -> None:
    """Ten in flight at each of three others, and one and a half times the mean, this request counted and
    rounded up, is 19: the home engine takes its nineteenth and no twentieth. With a bound of 1 it is full
    before."""
    views = [view(name, in_flight=at_home if name == home("s") else 10) for name in NAMES]
    assert (decide("s", views).target == home("s")) is stays
    assert decide("s", views, bound=1.0).fallbacks[-1] == home("s")


def test_the_reason_says_who_was_full() -> None:
    """A person can see why a session left its engine."""
    views = [view(name, in_flight=9 if name == home("s") else 0) for name in NAMES]
    route = decide("s", views)
    assert route.reason == (
        f"{route.target} is the session's next engine (0 in flight, room for 4), since {home('s')} has 9 "
        "in flight"
    )
    assert decide("t", views).reason.endswith("is the session's engine (0 in flight, room for 4)")


def test_without_a_session_the_least_loaded() -> None:
    """A request that names none is given to the engine with the least to do, and the reason says so."""
    route = decide("", [view("a", in_flight=2), view("b", in_flight=1), view("c", in_flight=3)])
    assert (route.target, route.fallbacks) == ("b", ("a", "c"))
    assert "names no session" in route.reason


@pytest.mark.parametrize("bound", [0.9, -1.0])
def test_a_bound_below_the_mean_is_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="leaves no engine"):
        PolicyOptions(session_bound=bound)


def test_lots_are_even() -> None:
    """Of ten thousand keys a tenth falls in each tenth of the range, to within what chance explains, and each
    key draws the same always."""
    drawn = Counter(int(lot(str(at)) * 10) for at in range(10_000))
    assert set(drawn) == set(range(10))
    assert all(900 < count < 1100 for count in drawn.values())
    assert lot("x") == lot("x") != lot("y")
