"""/v1/embeddings of a pooling model. Source: vLLM 0.32 `entrypoints/pooling/embed/`.

An embedding is made up from its input's tokens: a unit vector, always the same for the same tokens.
"""

import asyncio
import base64
import hashlib
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from anbar.adapters.http.message import Answer, Request
from anbar.adapters.vllm.block_hash import Identity
from anbar.apps.emulator.answers import AnswerRules, Finish
from anbar.apps.emulator.body import dump
from anbar.apps.emulator.body_models import EMBED, EmbedInput, fits, typed
from anbar.apps.emulator.errors import ApiError, Json, refused
from anbar.apps.emulator.fields import check_generation_prompt, check_salt
from anbar.apps.emulator.generate_request import Served, request_id
from anbar.apps.emulator.prompts import (
    chat_prompt,
    check_vocabulary,
    completion_prompts,
    has_ids,
    too_long,
)
from anbar.apps.emulator.records import Ending, Seen
from anbar.apps.emulator.sequence import SequencePlan, SequenceRun
from anbar.apps.emulator.sink import FaultStruck, Sink
from anbar.apps.emulator.state import EngineState
from anbar.apps.emulator.text import ModelText

_SLICE = 32
"""Sequences that are begun in one turn of the event loop: other engines must answer meanwhile."""


@dataclass(frozen=True, slots=True)
class Embed:
    """A valid request for embeddings."""

    id: str
    model: str
    lora: str | None
    salt: str | None
    prompts: tuple[tuple[int, ...], ...]
    is_text: bool
    """The prompts came as text, and have to be tokenized."""
    as_base64: bool
    size: int


def parse_embed(request: Request, body: Json, *, text: ModelText, served: Served, size: int) -> Embed:
    """ApiError for what vLLM refuses."""
    if "normalize" in body:
        raise refused("Parameter `normalize` was removed; use `use_activation` instead.", "normalize")
    check_salt(body)
    check_generation_prompt(body)
    body = {**_typed(body), "max_tokens": 0}  # -1 truncates to the whole context: no answer follows
    model = _model(body, served)
    if cast(int, body.get("truncate_prompt_tokens") or 0) > text.max_model_len:
        what = "truncate_prompt_tokens value is greater than max_model_len."
        raise ApiError(f"{what} Please request a smaller truncation size.")
    prompts = _prompts(body, text)
    longest = max(map(len, prompts))
    if longest > text.max_model_len:
        raise too_long(longest if _has_ids(body) else text.max_model_len + 1, text.max_model_len)
    check_vocabulary(prompts, text)
    return Embed(
        id=request_id(request, body, "embd"),
        model=model,
        lora=model if model in served.loras else None,
        salt=cast(str | None, body.get("cache_salt")),
        prompts=prompts,
        is_text=not _has_ids(body),
        as_base64=body.get("encoding_format") == "base64",
        size=_dimensions(body, size, served.models[0], text),
    )


def _typed(body: Json) -> Json:
    """Of several forms that it fits, a chat is preferred to an input; an input may be a chat, or chats."""
    given = body.get("input")
    is_chat = _is_chat(given) or (isinstance(given, list) and given and all(map(_is_chat, given)))
    if is_chat and "messages" not in body:
        body = {**body, "messages": given}
    kinds = EMBED[1:3] + EMBED[:1] if body.get("messages") else EMBED[:3]
    for kind in kinds:
        found = fits(body, kind)
        if found is not None:
            found.pop("messages" if kind is EmbedInput else "input", None)
            return found
    return typed(body, *EMBED)


def _is_chat(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in value)


def _model(body: Json, served: Served) -> str:
    model = cast(str, body.get("model") or served.models[0])
    if model in served.models or model in served.loras:
        return model
    raise ApiError(f"The model `{model}` does not exist.", status=404, kind="NotFoundError")


def _prompts(body: Json, text: ModelText) -> tuple[tuple[int, ...], ...]:
    if "messages" in body:
        messages = cast(list[object], body["messages"])
        chats = messages if messages and isinstance(messages[0], list) else [messages]
        plain = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
        return tuple(chat_prompt({**plain, "messages": chat}, text, answers=False) for chat in chats)
    given = body["input"]
    first = given[0] if given and isinstance(given, list) else None
    if _has_ids(body):
        rows = cast(list[list[int]], given if isinstance(first, list) else [given])
        check_vocabulary(filter(None, rows), text)
    return completion_prompts(body, text, field="input")[1]


def _has_ids(body: Json) -> bool:
    """Whether the input is made of token ids: they are counted, text is read no further than it must."""
    return "messages" not in body and has_ids(body.get("input"))


def _dimensions(body: Json, size: int, model: str, text: ModelText) -> int:
    wanted = cast(int | None, body.get("dimensions"))
    if wanted is None:
        return size
    if not text.is_matryoshka:
        what = f"Model '{model}' does not support Matryoshka embeddings; dimensions must be unset"
        raise ApiError(f"{what} (received dimensions={wanted}).")
    if not 0 < wanted <= size:
        raise refused(f"Dimensions must be between 1 and {size}.", "dimensions", wanted)
    return wanted


class Embedding:
    """One request while it runs."""

    def __init__(self, state: EngineState, request: Embed, sink: Sink, seen: Seen) -> None:
        self._state = state
        self._request = request
        self._sink = sink
        self._seen = seen
        self._runs: list[SequenceRun] = []
        """Those that have begun."""
        self._vectors: list[list[float] | str | None] = [None] * len(request.prompts)
        self._num_open = len(request.prompts)
        self._rest: asyncio.Handle | None = None
        """The turn that begins the next ones."""

    def start(self) -> None:
        """Give the engine its sequences, each a prompt and a step that pools it; of very many, the first."""
        self._rest = None
        first = len(self._runs)
        prompts = self._request.prompts[first : first + _SLICE]
        some = [self._run(index, prompt) for index, prompt in enumerate(prompts, first)]
        self._runs += some
        for run in some:
            self._state.submit(run)
        if len(self._runs) < len(self._request.prompts):
            self._rest = asyncio.get_running_loop().call_soon(self._start_more)

    def _start_more(self) -> None:
        self._state.supervise(self.start, self._sink.give_up)

    def abandon(self) -> None:
        """The client is gone."""
        self._seen.end(Ending.CANCELLED)
        self._withdraw()

    def _withdraw(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        for run in self._runs:
            self._state.withdraw(run)

    def _run(self, index: int, prompt: Sequence[int]) -> SequenceRun:
        state, request = self._state, self._request
        answer = state.write_answer(prompt, None, 0, AnswerRules(max_tokens=1, ignore_eos=True))
        identity = Identity(request.lora, request.salt)
        num_text_tokens = len(prompt) if request.is_text else 0
        plan = SequencePlan(
            request.id,
            prompt,
            answer,
            identity,
            give_up=self._sink.give_up,
            num_text_tokens=num_text_tokens,
        )
        run = state.sequence(plan, lambda *_: self._one_done(index, run), self._aborted)
        return run

    def _one_done(self, index: int, run: SequenceRun) -> None:
        self._state.sequence_finished(run, Finish.STOP, 1)
        self._vectors[index] = self._vector(self._request.prompts[index])
        self._num_open -= 1
        if not self._num_open:
            self._answer(Answer(200, dump(self._page())), Ending.ANSWERED)

    def _aborted(self) -> None:
        """The engine gave a sequence up, and with it the request."""
        self._withdraw()
        error = ApiError("Request was aborted", status=500, kind="InternalServerError")
        self._answer(Answer(error.status, dump(error.body())), Ending.REFUSED)

    def _answer(self, answer: Answer, ending: Ending) -> None:
        try:
            self._sink.whole(answer.status, answer.body)
            self._seen.end(ending)
        except FaultStruck:
            self._seen.end(Ending.FAULT)

    def _page(self) -> Json:
        request = self._request
        num_tokens = sum(map(len, request.prompts))
        data = [
            {"index": index, "object": "embedding", "embedding": vector}
            for index, vector in enumerate(self._vectors)
        ]
        usage = {
            "prompt_tokens": num_tokens,
            "total_tokens": num_tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        head = {"id": request.id, "object": "list", "created": int(time.time()), "model": request.model}
        return {**head, "data": data, "usage": usage}

    def _vector(self, prompt: Sequence[int]) -> list[float] | str:
        digest = hashlib.sha256(array("I", prompt)).digest()
        drawn = np.random.default_rng(int.from_bytes(digest[:8], "big")).standard_normal(self._request.size)
        vector = (drawn / np.linalg.norm(drawn)).astype(np.float32)
        if self._request.as_base64:
            return base64.b64encode(vector.tobytes()).decode()
        return cast(list[float], vector.tolist())
