"""`GET /ready`: whether this router can do its work, for load balancers and for people.

Green only while every model that the fleet has served has an engine that may be given requests: healthy, not
drained, and not shut out by its breaker. An engine that has never answered has named no model yet: it makes
nobody wait. An engine that asked for a pause counts, since who asks meanwhile is told how long it takes.

The names of `router.models` are promised by the configuration, so each of them needs such an engine from the
start: one that serves what one of its targets stands for, in that target's group.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NotRequired, TypedDict

from anbar.adapters.http.message import Answer, json_answer
from anbar.apps.router.engine import Engine, Fleet
from anbar.core.fleet import EngineState
from anbar.route.breaker import BreakerState
from anbar.route.targets import Target, Targets


class ModelState(TypedDict):
    """One model or name: the engines that may serve it, and why the others may not."""

    routable: list[str]
    others: dict[str, str]


class ReadyPage(TypedDict):
    """What is answered."""

    ready: bool
    reason: str
    engines: list[str]
    models: dict[str, ModelState]
    names: NotRequired[Mapping[str, ModelState]]
    """Of `router.models`."""
    others: NotRequired[dict[str, str]]
    """While no model is known: why each engine is not ready."""


def ready_page(fleet: Fleet, targets: Targets, draining: bool, awaited: str = "") -> Answer:
    """200 or 503, with the reason and the state of each model, and of each name that stands for others.
    `awaited`: why it is not known yet which engines there are; "" when it is."""
    models, names = model_states(fleet), name_states(fleet, targets)
    states = [*models.items(), *names.items()]
    lacking = sorted({name for name, state in states if not state["routable"]})
    engines: list[str] = [engine.id for engine in fleet if not _obstacle(engine)]
    reason = ""
    if draining:
        reason = "draining"
    elif awaited:
        reason = awaited
    elif not engines:
        reason = "no engine is ready"
    elif lacking:
        reason = f"no engine is ready for {', '.join(lacking)}"
    page: ReadyPage = {"ready": not reason, "reason": reason, "engines": engines, "models": models}
    if names:
        page["names"] = names
    if not models:
        page["others"] = {engine.id: _obstacle(engine) for engine in fleet}
    return json_answer(503 if reason else 200, page)


def model_states(fleet: Fleet) -> dict[str, ModelState]:
    """Every model that an engine has served, but for engines that have left the configuration and only finish
    what they have."""
    staying = _staying(fleet)
    names = sorted({name for engine in staying for name in engine.facts.names})
    models: dict[str, ModelState] = {name: {"routable": [], "others": {}} for name in names}
    for engine in staying:
        obstacle = _obstacle(engine)
        for name in engine.facts.names:
            if obstacle:
                models[name]["others"][engine.id] = obstacle
            else:
                models[name]["routable"].append(engine.id)
    return models


def name_states(fleet: Fleet, targets: Targets) -> Mapping[str, ModelState]:
    """Every name of `router.models`, with the engines of all its targets. An engine that one target may use
    counts, whatever keeps it from another."""
    states: dict[str, ModelState] = {}
    for name in targets.names:
        found = [pair for target in targets.of(name, "") for pair in _meant(target, _staying(fleet))]
        routable = sorted({engine for engine, obstacle in found if not obstacle})
        others = {engine: obstacle for engine, obstacle in found if engine not in routable}
        states[name] = {"routable": routable, "others": others}
    return states


def _staying(fleet: Fleet) -> list[Engine]:
    """Without those that have left the configuration."""
    return [engine for engine in fleet if engine.health.state is not EngineState.DRAINING]


def _meant(target: Target, engines: Sequence[Engine]) -> Iterator[tuple[str, str]]:
    """The engines that a target is about, each with what keeps it from serving it, or ""."""
    for engine in engines:
        if target.engines and engine.id not in target.engines:
            continue
        serves = target.model in engine.facts.names
        if serves or target.engines or not engine.facts.names:
            yield engine.id, _obstacle(engine) or ("" if serves else f"does not serve {target.model}")


def _obstacle(engine: Engine) -> str:
    """Why an engine gets no requests; "" when it may."""
    if not engine.is_ready:
        reason = "" if engine.draining else f": {engine.health.reason}"
        return f"{engine.state.value}{reason}"
    if engine.breaker.state is BreakerState.OPEN:
        return f"failed too often: {engine.health.last_error or 'it answered with errors'}"
    return ""
