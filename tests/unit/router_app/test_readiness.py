"""When /ready is green, and what it says of each model."""

import json
from dataclasses import replace
from typing import Any

import pytest
from scripted import engine_at
from tests.ports import free_port

from anbar.adapters.http.message import Request
from anbar.apps.router.engine import Engine, EngineFacts, Fleet
from anbar.apps.router.engine_admin import EngineAdmin
from anbar.apps.router.readiness import ready_page
from anbar.apps.router.standing import Standing
from anbar.core.clock import ManualClock
from anbar.core.errors import RequestError
from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId
from anbar.core.outcome import EngineStateChanged, Event
from anbar.route.breaker import Signal
from anbar.route.targets import Target, Targets


def engine(name: str, *models: str) -> Engine:
    made = engine_at(free_port(), name)
    made.facts = replace(made.facts, names=frozenset(models))
    return made


def page(
    *engines: Engine, draining: bool = False, names: dict[str, list[Target]] | None = None
) -> tuple[int, dict[str, Any]]:
    fleet = Fleet(engines)
    standing = Standing(fleet, ManualClock(), 0.5)
    answer = ready_page(fleet, Targets(names or {}), standing, draining)
    return answer.status, json.loads(answer.body)


def test_a_model_that_left_the_configuration_is_missed_by_nobody() -> None:
    """The only engine of a model is no longer in the configuration, and finishes a stream: still green."""
    a, b = engine("a", "m"), engine("b", "n")
    b.health.drain("no longer in the configuration")
    status, found = page(a, b)
    assert (status, list(found["models"])) == (200, ["m"])


def test_each_model_needs_an_engine() -> None:
    """Two models: red when the only engine of one is down, though the other is served, and back."""
    a, b, c = engine("a", "m", "n"), engine("b", "m"), engine("c", "m")
    assert page(a, b, c)[0] == 200
    c.health.connection_failed("gone")
    assert page(a, b, c)[1]["models"]["m"] == {"routable": ["a", "b"], "others": {"c": "unhealthy: gone"}}
    a.health.connection_failed("refused")
    status, found = page(a, b, c)
    assert (status, found["ready"], found["reason"]) == (503, False, "no engine is ready for n")
    assert found["models"]["n"] == {"routable": [], "others": {"a": "unhealthy: refused"}}
    a.health.probe_succeeded()
    assert page(a, b, c)[0] == 200


def test_engines_that_never_answered_make_nobody_wait() -> None:
    """One engine is up, another was never seen: green; with none that was ever seen: red, and why."""
    never = engine("never")
    never.facts = EngineFacts()
    never.health.state, never.health.reason = EngineState.STARTING, "refused"
    assert page(engine("a", "m"), never)[0] == 200
    status, found = page(never)
    assert (status, found["reason"]) == (503, "no engine is ready")
    assert found["others"] == {"never": "starting: refused"}


def test_an_open_breaker_keeps_out_while_others_are_left() -> None:
    """One of two engines failed too often: it gets nothing, and the page says why. The other one is away too:
    it is asked after all, so the model is served, until it asks for a pause as well."""
    a, b = engine("a", "m"), engine("b", "m")
    a.breaker.end(a.breaker.begin(), Signal.STALLED, 0.0)
    reason = "resting: failed too often: it answered with errors"
    assert page(a, b)[1]["models"]["m"] == {"routable": ["b"], "others": {"a": reason}}
    b.draining = True
    status, found = page(a, b)
    assert (status, found["models"]["m"]["routable"]) == (200, ["a"])
    a.rest_until_s = 1.0
    assert page(a, b)[0] == 503


def test_engines_at_rest_are_not_ready() -> None:
    """Each engine asked for a pause: red, with the time, since every request is refused until one is over;
    with one left that did not it is green."""
    a, b = engine("a", "m"), engine("b", "m")
    a.rest_until_s = 14.2
    status, found = page(a, b)
    assert (status, found["engines"]) == (200, ["b"])
    assert found["models"]["m"]["others"] == {"a": "resting: asked for a pause, over in 15 s"}
    b.rest_until_s = 1.0
    assert page(a, b)[0] == 503
    status, found = page(a, b, names={"chat": [Target("m", group("a")), Target("m", group("b"))]})
    assert (status, found["engines"]) == (503, [])
    assert set(found["names"]["chat"]["others"]) == {"a", "b"}


def test_draining_is_red() -> None:
    """The router drains, or its only engine does."""
    a = engine("a", "m")
    assert page(a, draining=True)[1]["reason"] == "draining"
    a.draining = True
    assert page(a)[1]["models"]["m"]["others"] == {"a": "draining: by an admin call"}


def group(*engines: str) -> frozenset[EngineId]:
    return frozenset(map(EngineId, engines))


def test_an_alias_needs_an_engine_of_one_of_its_groups() -> None:
    """A canary over two groups of one model: green while either has an engine; red, with each engine's
    obstacle, when neither has, though a third engine serves the model itself."""
    a, b, c = engine("a", "m"), engine("b", "m"), engine("c", "m")
    names = {"chat": [Target("m", group("a")), Target("m", group("b"), 0.1)]}
    status, found = page(a, b, c, names=names)
    assert (status, found["names"]) == (200, {"chat": {"routable": ["a", "b"], "others": {}}})
    a.draining = True
    assert page(a, b, c, names=names)[0] == 200
    b.health.connection_failed("gone")
    status, found = page(a, b, c, names=names)
    assert (status, found["reason"]) == (503, "no engine is ready for chat")
    assert found["models"]["m"]["routable"] == ["c"]
    others = {"a": "draining: by an admin call", "b": "unhealthy: gone"}
    assert found["names"]["chat"] == {"routable": [], "others": others}


def test_an_alias_is_promised_from_the_start() -> None:
    """A name for a model that no engine has served yet is red, and says of whom it waits; so is one for a
    model that the engines of its group do not serve. Any other engine is none of its business."""
    never = engine("never")
    names = {"chat": [Target("n")]}
    never.facts = EngineFacts()
    never.health.state, never.health.reason = EngineState.STARTING, "refused"
    status, found = page(engine("a", "m"), never, names=names)
    assert (status, found["reason"]) == (503, "no engine is ready for chat")
    others = {"a": "does not serve n", "never": "starting: refused"}
    assert found["names"]["chat"] == {"routable": [], "others": others}
    found = page(engine("a", "m"), names={"chat": [Target("n", group("a"))]})[1]
    assert found["names"]["chat"]["others"] == {"a": "does not serve n"}


def test_an_engine_of_two_targets_counts_once() -> None:
    """A name that stands for two models, one of which an engine serves: that is enough."""
    status, found = page(engine("a", "m"), names={"chat": [Target("n", group("a")), Target("m", group("a"))]})
    assert (status, found["names"]["chat"]) == (200, {"routable": ["a"], "others": {}})


def call(admin: EngineAdmin, target: bytes, *headers: tuple[bytes, bytes], method: bytes = b"POST") -> Any:
    return json.loads(admin.answer(Request(method, target, headers, b"", peer_is_local=True)).body)


def test_drain_and_undrain_are_told_once() -> None:
    """Each call answers with the state; what changed is an event, what did not is none."""
    events: list[Event] = []
    a = engine("a", "m")
    admin = EngineAdmin(Fleet([a]), events.append, lambda engine: None)
    for _ in range(2):
        assert call(admin, b"/admin/engines/a/drain") == {"id": "a", "state": "draining", "in_flight": 0}
    assert call(admin, b"/admin/engines/a/undrain?x=1")["state"] == "ready"
    assert [(e.before, e.after) for e in events if isinstance(e, EngineStateChanged)] == [
        (EngineState.READY, EngineState.DRAINING),
        (EngineState.DRAINING, EngineState.READY),
    ]


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        (b"POST", b"/admin/engines/b/drain", (), 404),
        (b"POST", b"/admin/engines/a/burn", (), 404),
        (b"POST", b"/admin/engines/a/drain/x", (), 404),
        (b"POST", b"/admin/engines/", (), 404),
        (b"POST", b"/admin/engines/a/drain", ((b"origin", b"http://localhost:1"),), 403),
        (b"POST", b"/admin/engines/a/drain", ((b"host", b"evil.example"),), 403),
    ],
)
def test_refusals(
    method: bytes, target: bytes, headers: tuple[tuple[bytes, bytes], ...], status: int
) -> None:
    """Unknown engines and calls, web pages and strangers change nothing."""
    a = engine("a", "m")
    with pytest.raises(RequestError) as caught:
        call(
            EngineAdmin(Fleet([a]), lambda event: None, lambda engine: None), target, *headers, method=method
        )
    assert caught.value.status == status
    assert not a.draining


def test_a_wrong_method_is_told_the_right_one() -> None:
    """GET drains nobody: 405, with `Allow`."""
    a = engine("a", "m")
    request = Request(b"GET", b"/admin/engines/a/drain", (), b"", peer_is_local=True)
    answer = EngineAdmin(Fleet([a]), lambda event: None, lambda engine: None).answer(request)
    assert answer.status == 405
    assert (b"allow", b"POST") in answer.headers
    assert not a.draining
