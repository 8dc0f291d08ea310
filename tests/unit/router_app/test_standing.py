"""Which engines are asked, and what the client reads when none may be."""

import pytest
from scripted import engine_at
from tests.ports import free_port

from anbar.adapters.http.message import Request
from anbar.adapters.http.openai import ClientKv, Endpoint, parse
from anbar.apps.router.attempt import kind_of_status, pause_asked
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.naming import Naming
from anbar.apps.router.standing import MAX_REST_S, Standing
from anbar.core.clock import ManualClock
from anbar.core.errors import RequestError
from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailure
from anbar.route.breaker import Signal
from anbar.route.rendezvous import lot
from anbar.route.targets import Target, Targets


def open_breaker(engine: Engine, now_s: float = 0.0) -> None:
    engine.breaker.end(engine.breaker.begin(), Signal.STALLED, now_s)


class Scene:
    """Four engines of one model and their standing."""

    def __init__(self, num: int = 4) -> None:
        self.engines = [engine_at(free_port(), f"e{index}") for index in range(num)]
        self.clock = ManualClock()
        fleet = Fleet(self.engines)
        self.standing = Standing(fleet, self.clock, 0.5)
        groups = [Target("m", frozenset({engine.id})) for engine in self.engines]
        self._naming = Naming(Targets({"name": groups}), fleet, self.standing)

    def asked(self, *group: str) -> list[str]:
        views = self.standing.views("m", frozenset(map(EngineId, group)))
        return [view.id for view in views if view.state is EngineState.READY]

    def drawn(self, key: str) -> list[str]:
        """The group that gets a request to a name that stands for each engine alone."""
        api = parse(Endpoint.COMPLETIONS, NAMED, ClientKv.REFUSE)
        return list(self._naming.resolved(Request(b"POST", b"/", (), NAMED), api, key)[2])


NAMED = b'{"model": "name", "prompt": "x"}'
KEYS = {int(2 * lot(f"name\0{key}")): str(key) for key in range(20)}
"""By engine, of two, a key that draws it."""


def test_open_breakers_are_passed_over_while_others_are_left() -> None:
    """Three of four are open: the fourth serves alone, since it is known to be good."""
    fleet = Scene()
    for engine in fleet.engines[:3]:
        open_breaker(engine)
    assert fleet.asked() == ["e3"]
    assert [engine.breaker.admits for engine in fleet.engines] == [False, False, False, True]


def test_never_all_are_ejected() -> None:
    """All breakers are open: the half that opened first is out, the other half is asked all the same."""
    fleet = Scene()
    for at_s, engine in enumerate(reversed(fleet.engines)):
        open_breaker(engine, float(at_s))
    assert fleet.asked() == ["e0", "e1"]


def test_only_engine_is_always_asked() -> None:
    """One engine whose breaker is open: there is nobody else."""
    fleet = Scene(1)
    open_breaker(fleet.engines[0])
    assert fleet.asked() == ["e0"]


def test_rest_is_respected_and_bounded() -> None:
    """An engine that asked for a pause gets nothing until it is over; an hour becomes half a minute."""
    fleet = Scene(2)
    fleet.standing.rest(fleet.engines[0], 5.0)
    assert fleet.asked() == ["e1"]
    assert not fleet.standing.may_ask(fleet.engines[0])
    fleet.clock.advance(5.0)
    assert fleet.asked() == ["e0", "e1"]
    fleet.standing.rest(fleet.engines[0], 3600.0)
    fleet.clock.advance(MAX_REST_S)
    assert fleet.standing.may_ask(fleet.engines[0])


def test_all_at_rest_is_told_with_the_time() -> None:
    """All asked for a pause: 429 with the seconds until the first is over."""
    fleet = Scene(2)
    fleet.standing.rest(fleet.engines[0], 9.0)
    fleet.standing.rest(fleet.engines[1], 4.5)
    fleet.clock.advance(1.0)
    with pytest.raises(RequestError) as caught:
        fleet.standing.views("m", frozenset())
    assert (caught.value.status, caught.value.retry_after_s) == (429, 4)


@pytest.mark.parametrize("index", [0, 1])
def test_a_group_that_may_not_be_asked_leaves_its_requests_to_another(index: int) -> None:
    """The only engine of the drawn group asked for a pause, or its breaker is open: the other one's group is
    drawn until that is over. When both are kept out, rather the one with an open breaker than the one that
    asked for a pause; when they are alike, the one that was drawn."""
    key, own, other = KEYS[index], [f"e{index}"], [f"e{1 - index}"]
    fleet = Scene(2)
    engine, another = fleet.engines[index], fleet.engines[1 - index]
    assert fleet.drawn(key) == own
    fleet.standing.rest(engine, 5.0)
    assert fleet.drawn(key) == other
    open_breaker(another)
    assert fleet.drawn(key) == other
    fleet.clock.advance(5.0)
    assert fleet.drawn(key) == own
    open_breaker(engine)
    assert fleet.drawn(key) == own
    another.breaker.probed(5.0)
    assert fleet.drawn(key) == other


def test_nobody_is_left_in_a_group() -> None:
    """Others serve the model, but not for this name: a group's only engine is asked though its breaker is
    open, and that it asked for a pause is told with the time."""
    fleet = Scene(2)
    open_breaker(fleet.engines[0])
    assert fleet.asked("e0") == ["e0", "e1"]
    assert fleet.asked() == ["e1"]
    fleet.standing.rest(fleet.engines[0], 5.0)
    with pytest.raises(RequestError) as caught:
        fleet.asked("e0")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 5)


def test_drained_engines_get_nothing() -> None:
    """Somebody drains an engine: not asked, first or later, though it is healthy."""
    fleet = Scene(2)
    fleet.engines[0].draining = True
    assert fleet.asked() == ["e1"]
    assert not fleet.standing.may_ask(fleet.engines[0])
    assert fleet.engines[0].view(0.0).state is EngineState.DRAINING
    assert fleet.standing.reason(fleet.engines[0]) == "by an admin call"
    fleet.engines[0].health.drain("no longer in the configuration")
    assert fleet.standing.reason(fleet.engines[0]) == "no longer in the configuration"


@pytest.mark.parametrize(
    ("status", "pause_s", "kind"),
    [
        (200, None, None),
        (400, None, None),
        (429, None, AttemptFailure.BUSY),
        (429, 1.0, AttemptFailure.BUSY),
        (500, None, AttemptFailure.ERROR),
        (501, None, None),
        (503, None, AttemptFailure.UNAVAILABLE),
        (503, 1.0, AttemptFailure.BUSY),
    ],
)
def test_what_an_answer_means(status: int, pause_s: float | None, kind: AttemptFailure | None) -> None:
    """Statuses for which another engine is asked, and what they are called."""
    assert kind_of_status(status, pause_s) is kind


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"7", 7.0), (b"0", 0.0), (b"", None), (b"-1", None), (b"Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
def test_retry_after(value: bytes, seconds: float | None) -> None:
    """Seconds are read; a date is not, since whose clock it is by is unknown."""
    assert pause_asked([(b"retry-after", value)]) == seconds
