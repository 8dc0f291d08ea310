"""/v1/embeddings of a pooling model. Source: vLLM 0.32 `entrypoints/pooling/embed/`.

An embedding is made up from its input's tokens: a unit vector, always the same for the same tokens.
"""

import base64
import hashlib
import random
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from anbar.adapters.http.message import Answer, Request
from anbar.adapters.vllm.block_hash import Identity
from anbar.apps.emulator.answers import AnswerRules, Finish
from anbar.apps.emulator.body import dump
from anbar.apps.emulator.errors import ApiError, Json, invalid, refused
from anbar.apps.emulator.fields import check_salt
from anbar.apps.emulator.generate_request import Served, request_id, served_model
from anbar.apps.emulator.prompts import chat_prompt, completion_prompts, too_long
from anbar.apps.emulator.records import Ending, Seen
from anbar.apps.emulator.sequence import SequencePlan, SequenceRun
from anbar.apps.emulator.sink import FaultStruck, Sink
from anbar.apps.emulator.state import EngineState
from anbar.apps.emulator.text import ModelText

_FORMATS = ("float", "base64")


@dataclass(frozen=True, slots=True)
class Embed:
    """A valid request for embeddings."""

    id: str
    model: str
    lora: str | None
    salt: str | None
    prompts: tuple[tuple[int, ...], ...]
    as_base64: bool
    size: int


def parse_embed(request: Request, body: Json, *, text: ModelText, served: Served, size: int) -> Embed:
    """ApiError for what vLLM refuses."""
    check_salt(body)
    form = body.get("encoding_format", "float")
    if form not in _FORMATS:
        where = "body.encoding_format"
        raise invalid(f"{{'type': 'literal_error', 'loc': '{where}'}}", where)
    model = served_model(body, served)
    if isinstance(body.get("messages"), list):
        prompts: tuple[tuple[int, ...], ...] = (chat_prompt(body, text),)
    elif "input" in body:
        _, prompts = completion_prompts(body, text, field="input")
    else:
        raise invalid("{'type': 'missing', 'loc': 'body.input', 'msg': 'Field required'}", "body.input")
    if max(map(len, prompts)) > text.max_model_len:
        raise too_long(text.max_model_len + 1, text.max_model_len)
    return Embed(
        id=request_id(request, body, "embd"),
        model=model,
        lora=model if model in served.loras else None,
        salt=cast(str | None, body.get("cache_salt")),
        prompts=prompts,
        as_base64=form == "base64",
        size=_dimensions(body, size),
    )


def _dimensions(body: Json, size: int) -> int:
    wanted = body.get("dimensions")
    if wanted is None:
        return size
    if type(wanted) is not int or not 0 < wanted <= size:
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
        self._num_open = 0

    def start(self) -> None:
        """Give the engine its sequences: a prompt, and one step that pools it."""
        self._runs = [self._run(prompt) for prompt in self._request.prompts]
        self._num_open = len(self._runs)
        for run in self._runs:
            self._state.submit(run)

    def abandon(self) -> None:
        """The client is gone."""
        self._seen.end(Ending.CANCELLED)
        for run in self._runs:
            self._state.withdraw(run)

    def _run(self, prompt: Sequence[int]) -> SequenceRun:
        state, request = self._state, self._request
        answer = state.write_answer(prompt, None, 0, AnswerRules(max_tokens=1, ignore_eos=True))
        plan = SequencePlan(request.id, prompt, answer, Identity(request.lora, request.salt))
        run = state.sequence(plan, lambda *_: self._one_done(run), self._aborted)
        return run

    def _one_done(self, run: SequenceRun) -> None:
        self._state.sequence_finished(run, Finish.STOP, 1)
        self._num_open -= 1
        if not self._num_open:
            self._answer(Answer(200, dump(self._page())), Ending.ANSWERED)

    def _aborted(self) -> None:
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
            {"index": index, "object": "embedding", "embedding": self._vector(prompt)}
            for index, prompt in enumerate(request.prompts)
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
        rng = random.Random(int.from_bytes(digest[:8], "big"))
        drawn = [rng.gauss(0.0, 1.0) for _ in range(self._request.size)]
        length = sum(value * value for value in drawn) ** 0.5
        vector = array("f", [value / length for value in drawn])
        if self._request.as_base64:
            return base64.b64encode(vector.tobytes()).decode()
        return vector.tolist()
