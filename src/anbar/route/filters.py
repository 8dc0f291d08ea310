"""Which engines may serve a request at all, and why the others may not."""

from collections.abc import Sequence
from enum import Enum
from operator import attrgetter

from anbar.core.errors import NoEngine
from anbar.core.fleet import EngineState, EngineView
from anbar.core.refusals import prompt_too_long, unknown_model
from anbar.core.request import RouteQuery
from anbar.route.adapters import AdapterPlace, adapter_place


class Verdict(Enum):
    """What the filters say of one engine for one request."""

    ABLE = "able"
    """It may serve the request."""
    NOT_PROBED = "not_probed"
    """It has not said yet which models it serves."""
    OTHER_MODEL = "other_model"
    """It does not serve the request's model."""
    OTHER_GROUP = "other_group"
    """It serves the model, but not for the name or the share of traffic that the request belongs to, or,
    where prefill and decode are split, not this part of it."""
    TOO_LONG = "too_long"
    """The prompt leaves no room in its context."""
    NO_ADAPTER_SLOT = "no_adapter_slot"
    """Running requests use all its slots for other LoRA adapters: only where no engine has a slot."""
    STARTING = "starting"
    """No probe of it has succeeded yet."""
    UNHEALTHY = "unhealthy"
    """Its last probe or a request to it failed."""
    DRAINING = "draining"
    """It finishes what it has and gets nothing new."""
    RESTING = "resting"
    """It asked for a pause, or failed too often: others are asked first."""


_ID = attrgetter("id")
_OF_STATE = {
    EngineState.READY: Verdict.ABLE,
    EngineState.STARTING: Verdict.STARTING,
    EngineState.UNHEALTHY: Verdict.UNHEALTHY,
    EngineState.DRAINING: Verdict.DRAINING,
    EngineState.RESTING: Verdict.RESTING,
}


def fits(query: RouteQuery, engine: EngineView) -> bool:
    """Whether the prompt and one token of output fit the engine's context: vLLM 0.32 shortens an answer that
    does not fit behind its prompt, and refuses only a prompt that leaves no room at all.

    A prompt that was not tokenized, or not all of it, has no known length, and an engine may not tell its
    context: then the engine itself is the judge.
    """
    if not query.token_ids or not query.is_whole or not engine.max_model_len:
        return True
    return query.num_tokens < engine.max_model_len


def in_group(query: RouteQuery, engine: EngineView) -> bool:
    """Whether the engine is one of those that the request's name stands for."""
    return not query.engines or engine.id in query.engines


def verdict(query: RouteQuery, engine: EngineView) -> Verdict:
    """Whether `engine` may serve `query`; if not, the first rule that is against it, lasting ones first."""
    if query.model not in engine.models:
        return Verdict.OTHER_MODEL if engine.models else Verdict.NOT_PROBED
    if not in_group(query, engine):
        return Verdict.OTHER_GROUP
    if not fits(query, engine):
        return Verdict.TOO_LONG
    found = _OF_STATE[engine.state]
    if found is Verdict.ABLE and adapter_place(query, engine) is AdapterPlace.NO_SLOT:
        return Verdict.NO_ADAPTER_SLOT
    return found


def _plainly_able(query: RouteQuery, engines: Sequence[EngineView]) -> list[EngineView]:
    """Those that any verdict but ABLE is out of the question for: mostly all, so mostly nothing is left to
    judge."""
    if query.lora is not None or query.engines:
        return []
    model, num_tokens = query.model, query.num_tokens
    return [
        engine
        for engine in engines
        if engine.state is EngineState.READY and model in engine.models and num_tokens < engine.max_model_len
    ]


def candidates(query: RouteQuery, engines: Sequence[EngineView]) -> list[EngineView]:
    """The engines that are ready, serve the model and have a context long enough, in the order of their ids;
    those without a slot for the request's adapter only if there are no others.

    Raises `RequestError` or `NoEngine` as `Policy.decide` does; never returns an empty list.
    """
    able = _plainly_able(query, engines)
    if len(able) == len(engines) and able:
        return sorted(able, key=_ID)
    verdicts = [verdict(query, engine) for engine in engines]
    for wanted in (Verdict.ABLE, Verdict.NO_ADAPTER_SLOT):
        able = [engine for engine, found in zip(engines, verdicts, strict=True) if found is wanted]
        if able:
            return sorted(able, key=_ID)
    serving = [engine for engine in engines if query.model in engine.models]
    if not serving:
        if not engines or any(not engine.models for engine in engines):
            raise NoEngine(f"no engine is known to serve the model {query.model!r} yet")
        raise unknown_model(query.model)
    meant = [engine for engine in serving if in_group(query, engine)]
    if not meant:
        raise NoEngine(f"no engine of the group that is to serve {query.model!r} is known to serve it")
    fitting = [engine for engine in meant if fits(query, engine)]
    if not fitting:
        raise prompt_too_long(query.num_tokens, max(engine.max_model_len for engine in meant))
    states = ", ".join(f"{engine.id} is {engine.state.value}" for engine in fitting)
    raise NoEngine(f"no engine that serves {query.model!r} is ready: {states}")
