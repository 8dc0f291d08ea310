"""Which engines may serve a request at all."""

from collections.abc import Sequence

from anbar.core.errors import NoEngine
from anbar.core.fleet import EngineState, EngineView
from anbar.core.refusals import prompt_too_long, unknown_model
from anbar.core.request import RouteQuery


def fits(query: RouteQuery, engine: EngineView) -> bool:
    """Whether the prompt and one token of output fit the engine's context: vLLM 0.32 shortens an answer that
    does not fit behind its prompt, and refuses only a prompt that leaves no room at all.

    A prompt that was not tokenized has no known length, and an engine may not tell its context: then the
    engine itself is the judge.
    """
    return not query.token_ids or not engine.max_model_len or query.num_tokens < engine.max_model_len


def candidates(query: RouteQuery, engines: Sequence[EngineView]) -> list[EngineView]:
    """The engines that are ready, serve the model and have a context long enough, in the given order.

    Raises `RequestError` or `NoEngine` as `Policy.decide` does; never returns an empty list.
    """
    serving = [engine for engine in engines if query.model in engine.models]
    if not serving:
        if not engines or any(not engine.models for engine in engines):
            raise NoEngine(f"no engine is known to serve the model {query.model!r} yet")
        raise unknown_model(query.model)
    fitting = [engine for engine in serving if fits(query, engine)]
    if not fitting:
        raise prompt_too_long(query.num_tokens, max(engine.max_model_len for engine in serving))
    ready = [engine for engine in fitting if engine.state is EngineState.READY]
    if not ready:
        states = ", ".join(f"{engine.id} is {engine.state.value}" for engine in fitting)
        raise NoEngine(f"no engine that serves {query.model!r} is ready: {states}")
    return ready
