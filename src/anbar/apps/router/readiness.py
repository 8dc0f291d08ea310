"""`GET /ready`: whether this router can do its work, for load balancers and for people.

Green only while every model that the fleet has served has an engine that may be given requests: healthy, not
drained, and not shut out by its breaker. An engine that has never answered has named no model yet: it makes
nobody wait. An engine that asked for a pause counts, since who asks meanwhile is told how long it takes.
"""

from collections.abc import Mapping
from typing import TypedDict

from anbar.adapters.http.message import Answer, json_answer
from anbar.apps.router.engine import Engine, Fleet
from anbar.core.fleet import EngineState
from anbar.route.breaker import BreakerState


class ModelState(TypedDict):
    """One model: the engines that may serve it, and why the others may not."""

    routable: list[str]
    others: dict[str, str]


def ready_page(fleet: Fleet, draining: bool) -> Answer:
    """200 or 503, with the reason and the state of each model."""
    models = model_states(fleet)
    lacking = [name for name, state in models.items() if not state["routable"]]
    engines = [engine.id for engine in fleet if not _obstacle(engine)]
    reason = ""
    if draining:
        reason = "draining"
    elif not engines:
        reason = "no engine is ready"
    elif lacking:
        reason = f"no engine is ready for {', '.join(lacking)}"
    page: dict[str, object] = {"ready": not reason, "reason": reason, "engines": engines, "models": models}
    if not models:
        page["others"] = {engine.id: _obstacle(engine) for engine in fleet}
    return json_answer(503 if reason else 200, page)


def model_states(fleet: Fleet) -> Mapping[str, ModelState]:
    """Every model that an engine has served, but for engines that have left the configuration and only finish
    what they have."""
    staying = [engine for engine in fleet if engine.health.state is not EngineState.DRAINING]
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


def _obstacle(engine: Engine) -> str:
    """Why an engine gets no requests; "" when it may."""
    if not engine.is_ready:
        reason = "" if engine.draining else f": {engine.health.reason}"
        return f"{engine.state.value}{reason}"
    if engine.breaker.state is BreakerState.OPEN:
        return f"failed too often: {engine.health.last_error or 'it answered with errors'}"
    return ""
