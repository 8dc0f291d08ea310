"""From requests to token ids: by a tokenizer of ours, or by asking the engine.

A prompt is read as far as it is needed: what was encoded before and a first piece at once, more in steps of
growing size for as long as the caller finds that an engine may hold more (`anbar.apps.router.flow`). A thread
costs a tenth of a millisecond, so the little that takes less is done on the event loop.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeVar

import msgspec

from anbar.adapters.http.fetch import fetch
from anbar.adapters.http.openai import ApiRequest, Endpoint, beyond_context, is_beyond_context, truncates
from anbar.adapters.vllm.chat_messages import Reason
from anbar.adapters.vllm.reading import Reading, TokenIds, read_already
from anbar.adapters.vllm.remote_tokens import chat_request, completion_request, token_ids
from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer
from anbar.apps.router.engine import Engine
from anbar.core.errors import UpstreamError

REMOTE_TIMEOUT_S = 2.0
"""How long a request waits for an engine's /tokenize before it is routed by load alone."""


_T = TypeVar("_T")

INLINE_BYTES = 65_536
"""Bodies up to this size are rendered and begun on the event loop, which takes as long as handing them to a
thread: 0.1 ms for 32 KB, 50 µs for a new piece."""

_LONGEST_INLINE = 2048
"""Characters of the longest piece that is encoded there: a millisecond. Texts without spaces are one."""

_WHOLE_INLINE_BYTES = 4096
"""Bodies up to this size are also read to their end there."""

_FIRST_CHARS = 512
_CHARS_PER_TOKEN = 5
"""More than most languages have: the first piece is to fill what tiers keep as one."""

_FIRST_STEP_CHARS = 4096
_STEP_FACTOR = 8
"""Each step is so much larger than the one before, so that all together are few."""

_NEAR_CONTEXT = 0.9
"""A prompt that is estimated to fill so much of the context is read to its end: it may have to be refused."""


class Tokens(msgspec.Struct, frozen=True):
    """The ids of a prompt; none, with a `note` why, when they could not be had."""

    reading: Reading
    note: str
    step_chars: int = _FIRST_STEP_CHARS
    """How much is to be encoded next, at least."""

    @property
    def ids(self) -> TokenIds:
        """Those that are known."""
        return self.reading.ids

    @property
    def is_whole(self) -> bool:
        return self.reading.is_whole


def _none(note: str) -> Tokens:
    return Tokens(read_already(()), note)


NO_TOKENS = _none("not_needed")
"""Of a prompt whose tokens nobody wants."""


class Prompts:
    """Tokenizes with the tokenizers it was given, on the threads of `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._tokenizers: dict[str, Tokenizer] = {}

    def use(self, model: str, tokenizer: Tokenizer) -> None:
        """Tokenize prompts for `model` with `tokenizer` from now on."""
        self._tokenizers[model] = tokenizer

    def ask_engines(self, model: str) -> None:
        """Let engines tokenize prompts for `model` from now on."""
        self._tokenizers.pop(model, None)

    async def tokens(
        self, api: ApiRequest, serving: Sequence[Engine], num_bytes: int, *, whole: bool
    ) -> Tokens:
        """The ids that the engines in `serving` will compute: all of them, or what is known of them and one
        piece more. `num_bytes`: of the request's body. Raises RequestError for a prompt whose mere number
        of characters is beyond their context."""
        lengths = [engine.facts.max_model_len for engine in serving]
        if is_beyond(api, max(lengths)):
            return _none(Reason.TOO_LONG.value)
        tokenizer = self._tokenizers.get(api.model)
        if tokenizer is None:
            return await self._ask(api, serving)
        read = tokenizer.read_chat if api.endpoint is Endpoint.CHAT else tokenizer.read_completion
        num_chars = max(_FIRST_CHARS, _CHARS_PER_TOKEN * max([engine.unit_tokens() for engine in serving]))
        if whole:
            num_chars = sys.maxsize
        is_quick = tokenizer.has_short_pieces and num_bytes <= (
            _WHOLE_INLINE_BYTES if whole else INLINE_BYTES
        )
        if is_quick or (api.endpoint is Endpoint.COMPLETIONS and _is_tokens(api.body.get("prompt"))):
            tokens = _begin(read, api.body, num_chars, _LONGEST_INLINE)
            if tokens.reading.num_next > _LONGEST_INLINE:
                await self._aside(tokens.reading.take, num_chars)
        else:
            tokens = await self._aside(_begin, read, api.body, num_chars)
        # Only a whole prompt is kept from engines whose context is too short for it.
        if not tokens.is_whole:
            shortest = min(filter(None, lengths), default=0)
            if shortest and tokens.reading.num_tokens > _NEAR_CONTEXT * shortest:
                await self._aside(tokens.reading.whole)
        return tokens

    async def whole(self, api: ApiRequest, serving: Sequence[Engine]) -> Tokens:
        """All ids, on a thread; raises RequestError as `tokens` does."""
        return await self.tokens(api, serving, sys.maxsize, whole=True)

    async def more(self, tokens: Tokens) -> Tokens:
        """Read on; for a prompt that is not whole."""
        await self._aside(tokens.reading.take, tokens.step_chars)
        return Tokens(tokens.reading, tokens.note, tokens.step_chars * _STEP_FACTOR)

    async def _aside(self, work: Callable[..., _T], *args: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    async def _ask(self, api: ApiRequest, serving: Sequence[Engine]) -> Tokens:
        """Let the ready engine that has least to do tokenize."""
        ready = [engine for engine in serving if engine.is_ready]
        if not ready:
            return _none("no_tokenizer")
        engine = min(ready, key=lambda engine: engine.load.num_in_flight)
        request = chat_request(api.body) if api.endpoint is Endpoint.CHAT else completion_request(api.body)
        if isinstance(request, NotReproducible):
            return _none(request.reason.value)
        try:
            if isinstance(request, list):
                ids: list[int] | None = request
            else:
                ids = await ask_tokens(engine, request, REMOTE_TIMEOUT_S)
        except UpstreamError:
            ids = None
        return Tokens(read_already(ids), "") if ids is not None else _none("tokenize_failed")


def is_beyond(api: ApiRequest, max_model_len: int) -> bool:
    """Whether a prompt is not worth tokenizing, since the engine will truncate so much text; never where the
    context is not known (0). Raises RequestError where it will not."""
    if not max_model_len or not is_beyond_context(api, max_model_len):
        return False
    if not truncates(api):
        raise beyond_context(api, max_model_len)
    return True


def _is_tokens(prompt: object) -> bool:
    """Nothing is left to compute that would be worth a thread."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


async def ask_tokens(engine: Engine, request: Mapping[str, object], timeout_s: float) -> list[int] | None:
    """What an engine's /tokenize says; None where it refuses this text, as one whose template knows no tools
    does. Raises UpstreamError."""
    body = msgspec.json.encode(request)
    reply = await fetch(engine.pool, "/tokenize", headers=engine.auth, body=body, timeout_s=timeout_s)
    if reply.status in (400, 422):
        return None
    if reply.status != 200:
        raise UpstreamError(f"/tokenize answered {reply.status}")
    return token_ids(reply.body)


def _begin(
    read: Callable[[Mapping[str, object]], Reading | NotReproducible],
    body: Mapping[str, object],
    num_chars: int,
    longest: int = sys.maxsize,
) -> Tokens:
    found = read(body)
    if isinstance(found, NotReproducible):
        return _none(found.reason.value)
    found.take(num_chars, longest)
    return Tokens(found, "")
