"""From requests to token ids, off the event loop: by a tokenizer of ours, or by asking the engine."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import msgspec

from anbar.adapters.http.fetch import fetch
from anbar.adapters.http.openai import ApiRequest, Endpoint, beyond_context, is_beyond_context, truncates
from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.remote_tokens import chat_request, completion_request, token_ids
from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer
from anbar.apps.router.engine import Engine
from anbar.core.errors import UpstreamError

REMOTE_TIMEOUT_S = 2.0
"""How long a request waits for an engine's /tokenize before it is routed by load alone."""


class Tokens(msgspec.Struct, frozen=True):
    """The ids of a prompt; none, with a `note` why, when they could not be had."""

    ids: tuple[int, ...]
    note: str


NO_TOKENS = Tokens((), "not_needed")
"""Of a prompt whose tokens nobody wants."""


class Prompts:
    """Tokenizes with the tokenizers it was given, on the threads of `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._tokenizers: dict[str, Tokenizer] = {}

    def use(self, model: str, tokenizer: Tokenizer) -> None:
        """Tokenize prompts for `model` with `tokenizer` from now on."""
        self._tokenizers[model] = tokenizer

    async def tokens(self, api: ApiRequest, serving: Sequence[Engine]) -> Tokens:
        """The ids that the engines in `serving` will compute. Raises RequestError for a prompt whose mere
        number of characters is beyond their context."""
        if self.is_beyond(api, serving):
            return Tokens((), Reason.TOO_LONG.value)
        tokenizer = self._tokenizers.get(api.model)
        if tokenizer is None:
            return await self._ask(api, serving)
        compute = tokenizer.chat if api.endpoint is Endpoint.CHAT else tokenizer.completion
        if api.endpoint is Endpoint.COMPLETIONS and _is_tokens(api.body.get("prompt")):
            return _tokens(compute(api.body))
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, compute, api.body)
        return _tokens(found)

    @staticmethod
    def is_beyond(api: ApiRequest, serving: Sequence[Engine]) -> bool:
        """Whether a prompt is not worth tokenizing, since the engine will truncate so much text. Raises
        RequestError where it will not."""
        longest = max(engine.facts.max_model_len for engine in serving)
        if not longest or not is_beyond_context(api, longest):
            return False
        if not truncates(api):
            raise beyond_context(api, longest)
        return True

    async def _ask(self, api: ApiRequest, serving: Sequence[Engine]) -> Tokens:
        """Let a ready engine tokenize."""
        engine = next((engine for engine in serving if engine.is_ready), None)
        if engine is None:
            return Tokens((), "no_tokenizer")
        request = chat_request(api.body) if api.endpoint is Endpoint.CHAT else completion_request(api.body)
        if not isinstance(request, dict):
            return _tokens(request)
        try:
            return _tokens(await _tokenize(engine, request))
        except UpstreamError:
            return Tokens((), "tokenize_failed")


def _is_tokens(prompt: object) -> bool:
    """Nothing is left to compute that would be worth a thread."""
    return isinstance(prompt, list) and isinstance(prompt[0], int)


async def _tokenize(engine: Engine, request: Mapping[str, object]) -> list[int] | NotReproducible:
    body = msgspec.json.encode(request)
    reply = await fetch(engine.pool, "/tokenize", headers=engine.auth, body=body, timeout_s=REMOTE_TIMEOUT_S)
    if reply.status != 200:
        raise UpstreamError(f"/tokenize answered {reply.status}")
    return token_ids(reply.body)


def _tokens(found: list[int] | NotReproducible) -> Tokens:
    if isinstance(found, NotReproducible):
        return Tokens((), found.reason.value)
    return Tokens(tuple(found), "")
