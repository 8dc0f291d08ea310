"""`GET /ready`: whether this router can do its work, for load balancers and for people.

Green only while every model that the fleet has served has an engine that a request may go to now: healthy,
not drained, not at rest. One that its breaker keeps out counts where nobody better is left, since it is asked
then. An engine that has never answered has named no model yet: it makes nobody wait.

The names of `router.models` are promised by the configuration, so each of them needs such an engine from the
start: one that serves what one of its targets stands for, in that target's group.
"""

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

from anbar.adapters.http.message import Answer, json_answer
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.standing import Standing
from anbar.core.fleet import EngineState
from anbar.core.ids import EngineId
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


def ready_page(
    fleet: Fleet, targets: Targets, standing: Standing, draining: bool, awaited: str = ""
) -> Answer:
    """200 or 503, with the reason and the state of each model, and of each name that stands for others.
    `awaited`: why it is not known yet which engines there are; "" when it is."""
    models, names = _model_states(fleet, standing), _name_states(fleet, targets, standing)
    states = [*models.items(), *names.items()]
    lacking = sorted({name for name, state in states if not state["routable"]})
    routable = {engine for state in models.values() for engine in state["routable"]}
    engines: list[str] = [engine.id for engine in fleet if engine.id in routable]
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
        page["others"] = {engine.id: _away(engine, standing) for engine in fleet}
    return json_answer(503 if reason else 200, page)


def _model_states(fleet: Fleet, standing: Standing) -> dict[str, ModelState]:
    """Every model that an engine has served, but for engines that have left the configuration and only finish
    what they have."""
    staying = _staying(fleet)
    names = sorted({name for engine in staying for name in engine.facts.names})
    serving = {name: [engine for engine in staying if name in engine.facts.names] for name in names}
    return {name: _state(_obstacles(engines, standing)) for name, engines in serving.items()}


def _name_states(fleet: Fleet, targets: Targets, standing: Standing) -> Mapping[str, ModelState]:
    """Every name of `router.models`, with the engines of all its targets. An engine that one target may use
    counts, whatever keeps it from another."""
    states: dict[str, ModelState] = {}
    for name in targets.names:
        found: dict[EngineId, str] = {}
        for target in targets.of(name, ""):
            for engine, obstacle in _meant(target, _staying(fleet), standing).items():
                found[engine] = obstacle if found.get(engine, obstacle) else ""
        states[name] = _state(dict(sorted(found.items())))
    return states


def _state(obstacles: Mapping[EngineId, str]) -> ModelState:
    routable: list[str] = [engine for engine, obstacle in obstacles.items() if not obstacle]
    others: dict[str, str] = {engine: obstacle for engine, obstacle in obstacles.items() if obstacle}
    return {"routable": routable, "others": others}


def _staying(fleet: Fleet) -> list[Engine]:
    """Without those that have left the configuration."""
    return [engine for engine in fleet if engine.health.state is not EngineState.DRAINING]


def _meant(target: Target, engines: Sequence[Engine], standing: Standing) -> dict[EngineId, str]:
    """The engines that a target is about, each with what keeps it from serving it, or "": those that serve
    its model, and where a group is named, or nobody serves it, all others."""
    group = [engine for engine in engines if not target.engines or engine.id in target.engines]
    serving = [engine for engine in group if target.model in engine.facts.names]
    found = _obstacles(serving, standing)
    for engine in group:
        if engine.id not in found and (target.engines or not serving or not engine.facts.names):
            found[engine.id] = _away(engine, standing) or f"does not serve {target.model}"
    return found


def _obstacles(engines: Sequence[Engine], standing: Standing) -> dict[EngineId, str]:
    """Why each of the engines, which could serve the same, gets no requests; "" when it may."""
    held = standing.held_back([engine for engine in engines if engine.is_ready])
    return {engine.id: _away(engine, standing, engine.id in held) for engine in engines}


def _away(engine: Engine, standing: Standing, is_held: bool = False) -> str:
    if engine.is_ready and not is_held:
        return ""
    return f"{standing.state(engine).value}: {standing.reason(engine)}"
