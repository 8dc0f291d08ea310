"""Compares the router's tokens with an engine's own, whenever an engine is taken in.

A tokenizer that is not the engine's makes every prediction wrong, and nothing else would say why. Where one
token differs, the prompts of that model are tokenized by asking the engines, until all of them agree.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Executor

from anbar.adapters.vllm.remote_tokens import chat_request, completion_request
from anbar.adapters.vllm.tokens import Tokenizer
from anbar.apps.router.engine import Engine, TokenCheck
from anbar.apps.router.prompts import Prompts, ask_tokens
from anbar.apps.router.token_texts import chats, completions
from anbar.core.errors import UpstreamError
from anbar.core.ids import EngineId
from anbar.core.outcome import Emit, SupervisorCaught, TokensCompared

PATIENCE_S = 2.0
"""How long a new engine waits for the comparison before it gets requests; then it goes on beside them."""

TIMEOUT_S = 30.0
"""For each text. An engine answers in milliseconds, unless it has just begun to warm up."""


class TokenProbe:
    """Gives tokenizers to `prompts`, and takes them away. Use within one event loop."""

    def __init__(
        self, prompts: Prompts, executor: Executor, emit: Emit, patience_s: float = PATIENCE_S
    ) -> None:
        self._prompts = prompts
        self._executor = executor
        self._emit = emit
        self._patience_s = patience_s
        self._tasks: dict[EngineId, asyncio.Task[None]] = {}
        self._adopted: defaultdict[str, dict[EngineId, Tokenizer]] = defaultdict(dict)
        """By model: its engines' tokenizers; the one that came last is used."""
        self._denied: defaultdict[str, set[EngineId]] = defaultdict(set)
        """By model: the engines that compute other tokens."""

    async def adopt(self, engine: Engine, tokenizer: Tokenizer, path: str) -> None:
        """Use a tokenizer, loaded from `path`, for an engine's models, and compare it; returns when that is
        done or takes long."""
        self._cancel(engine)
        engine.tokenizer_note, engine.tokens = path, TokenCheck.COMPARING
        self._forget(engine, engine.facts.names)
        for name in engine.facts.names:
            self._adopted[name].pop(engine.id, None)
            self._adopted[name][engine.id] = tokenizer
            self._settle(name)
        task = asyncio.get_running_loop().create_task(self._compare(engine, tokenizer, path))
        self._tasks[engine.id] = task
        task.add_done_callback(self._done)
        await asyncio.wait((task,), timeout=self._patience_s)

    def leave(self, engine: Engine) -> None:
        """The engine is gone, or asks for no tokenizer of ours any more."""
        self._cancel(engine)
        self._forget(engine, frozenset())

    async def stop(self) -> None:
        """Give up what still runs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget(self, engine: Engine, kept: frozenset[str]) -> None:
        """The engine has no say any more in who tokenizes for a model, unless it is one of `kept`."""
        for name in (self._adopted.keys() | self._denied.keys()) - kept:
            if engine.id in self._adopted[name] or engine.id in self._denied[name]:
                self._adopted[name].pop(engine.id, None)
                self._denied[name].discard(engine.id)
                self._settle(name)

    def _settle(self, model: str) -> None:
        """Who tokenizes for a model: we, if one of its engines has our tokenizer and none computes something
        else."""
        adopted = self._adopted[model]
        if self._denied[model] or not adopted:
            self._prompts.ask_engines(model)
        else:
            self._prompts.use(model, adopted[next(reversed(adopted))])

    async def _compare(self, engine: Engine, tokenizer: Tokenizer, path: str) -> None:
        try:
            difference = await self._difference(engine, tokenizer)
        except UpstreamError as error:
            engine.tokens, detail = TokenCheck.UNVERIFIED, f"not compared: {error}"
            engine.tokenizer_note = f"{path}, {detail}"
        else:
            engine.tokens = TokenCheck.DIFFERS if difference else TokenCheck.AGREES
            detail = difference
            if difference:
                engine.tokenizer_note = f"the engine's /tokenize, because {path} differs: {difference}"
        for name in engine.facts.names:
            denied = self._denied[name]
            if engine.tokens is TokenCheck.DIFFERS:
                denied.add(engine.id)
            elif engine.tokens is TokenCheck.AGREES:
                denied.discard(engine.id)
            self._settle(name)
        self._emit(TokensCompared(engine.id, engine.tokens.value, detail))

    async def _difference(self, engine: Engine, tokenizer: Tokenizer) -> str:
        """The first text of which the tokens differ, and where; "": none does. Raises UpstreamError."""
        names = engine.facts.names
        model = min(names - engine.facts.adapters or names)
        num_compared = 0
        for texts, compute, ask in (
            (chats(model), tokenizer.chat, chat_request),
            (completions(model), tokenizer.completion, completion_request),
        ):
            for name, body in texts:
                own = await asyncio.get_running_loop().run_in_executor(self._executor, compute, body)
                asked = ask(body)
                assert isinstance(asked, Mapping), "no text of ours is beyond /tokenize"
                theirs = await ask_tokens(engine, asked, TIMEOUT_S)
                if isinstance(own, list) and theirs is not None:
                    num_compared += 1
                    if own != theirs:
                        return _where(name, own, theirs)
        if not num_compared:
            raise UpstreamError("no text could be tokenized on both sides")
        return ""

    def _cancel(self, engine: Engine) -> None:
        task = self._tasks.pop(engine.id, None)
        if task is not None:
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._emit(SupervisorCaught.of("token_probe", error))


def _where(name: str, own: list[int], theirs: list[int]) -> str:
    pairs = zip(own, theirs, strict=False)
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(own), len(theirs)))
    return f"the probe {name!r} at token {place} ({len(own)} tokens here, {len(theirs)} there)"
