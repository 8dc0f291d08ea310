"""Generation: from a valid request to its answer, whole or streamed."""

import asyncio
import time
from collections.abc import Sequence

from anbar.adapters.vllm.block_hash import Identity
from anbar.apps.emulator import shapes
from anbar.apps.emulator.answers import Answer, Finish, Token
from anbar.apps.emulator.body import dump
from anbar.apps.emulator.errors import Json
from anbar.apps.emulator.generate_request import Generate
from anbar.apps.emulator.logprobs import Logprobs
from anbar.apps.emulator.records import Ending, Seen
from anbar.apps.emulator.sequence import SequencePlan, SequenceRun
from anbar.apps.emulator.shapes import Finished, Piece, Usage
from anbar.apps.emulator.sink import FaultStruck, Sink
from anbar.apps.emulator.state import EngineState

_SLICE_TOKENS = 2048
"""Tokens that are drawn in one turn of the event loop: a few milliseconds' worth. A request may ask for many
thousands of sequences, and other engines of the process must answer meanwhile."""
_SEQUENCE_TOKENS = 64
"""What making a sequence takes, in tokens."""


class _Choice:
    """One choice of the answer while it grows."""

    __slots__ = (
        *("answer", "finish", "index", "logprobs", "num_sent", "num_tokens", "run", "said", "stop_reason"),
        *("texts", "unsent"),
    )

    def __init__(self, index: int, answer: Answer) -> None:
        self.index = index
        self.answer = answer
        self.run: SequenceRun
        self.num_tokens = 0
        self.num_sent = 0
        self.texts: list[str] = []
        """Not sent yet."""
        self.said = ""
        """All of the text that was sent, of a streamed call."""
        self.unsent: list[int] = []
        self.logprobs: Logprobs | None = None
        """None: not wanted."""
        self.finish: Finish | None = None
        self.stop_reason: str | int | None = None

    @property
    def ids(self) -> list[int]:
        return self.answer.ids[: self.num_tokens]


class Generation:
    """One request while it runs. Exactly one of these ends it: the last token, `abandon`, or a fault."""

    def __init__(self, state: EngineState, request: Generate, sink: Sink, seen: Seen) -> None:
        self._state = state
        self._request = request
        self._sink = sink
        self._seen = seen
        self._created = int(time.time())
        self._cached: int | None = None
        self._has_begun = False
        self._num_open = 0
        self._choices: list[_Choice] = []
        """Those that have begun."""
        self._num_choices = len(request.prompts) * request.n
        self._open_by_prompt = [request.n] * len(request.prompts)
        self._rest: asyncio.Handle | None = None
        """The turn that begins the next ones."""
        self._is_aborted = False

    def start(self) -> None:
        """Give the engine its sequences, of very many the first ones."""
        if self._request.shown.stream:
            self._sink.start_stream()
        self._num_open = self._num_choices
        self._begin_some()

    def _begin_some(self) -> None:
        self._rest = None
        num_begun, left = len(self._choices), _SLICE_TOKENS
        while left > 0 and len(self._choices) < self._num_choices:
            choice = self._choice(len(self._choices))
            self._choices.append(choice)
            left -= _SEQUENCE_TOKENS + len(choice.answer.ids)
        begun = self._choices[num_begun:]
        if self._is_aborted:
            self._abort(begun)
        else:
            for choice in begun:
                self._state.submit(choice.run)
        if len(self._choices) < self._num_choices and self._seen.ending is Ending.RUNNING:
            self._rest = asyncio.get_running_loop().call_soon(self._begin_more)

    def _begin_more(self) -> None:
        self._state.supervise(self._begin_some, self._sink.give_up)

    def abandon(self) -> None:
        """The client is gone."""
        self._seen.end(Ending.CANCELLED)
        self._withdraw()

    def _choice(self, index: int) -> _Choice:
        request, state = self._request, self._state
        prompt = request.prompts[index // request.n]
        answer = state.write_answer(prompt, request.seed, index % request.n, request.rules)
        choice = _Choice(index, answer)
        shown = request.shown
        if shown.logprobs is not None:
            context = () if shown.echo and not request.chat else prompt
            choice.logprobs = Logprobs(state.text, context, shown.logprobs, as_ids=shown.tokens_as_ids)
        plan = SequencePlan(
            request.id,
            prompt,
            answer,
            Identity(request.lora, request.salt),
            request.session,
            request.reads_cache,
            request.transfer,
            self._sink.give_up,
            len(prompt) if request.is_text else 0,
        )
        choice.run = state.sequence(
            plan,
            lambda number, finished: self._advance(choice, number, finished),
            self._aborted,
        )
        return choice

    def _advance(self, choice: _Choice, number: int, finished: bool) -> None:
        """The engine generated tokens of a choice."""
        if self._cached is None or not self._request.shown.stream:
            self._cached = self._seen.num_cached_tokens = choice.run.request.num_cached_tokens
            if self._request.transfer.reported_cached is not None:
                self._cached = self._request.transfer.reported_cached
        self._seen.num_generated += number
        try:
            for _ in range(number):
                self._take(choice, choice.answer.token(choice.num_tokens))
            if finished:
                self._close(choice)
        except FaultStruck:
            self._seen.end(Ending.FAULT)
            self._withdraw()

    def _aborted(self) -> None:
        """The engine gave a sequence up, since it went to sleep, and with it the request: what has begun ends
        now, the rest as soon as it is made."""
        self._is_aborted = True
        self._abort([choice for choice in self._choices if choice.finish is None])

    def _abort(self, choices: Sequence[_Choice]) -> None:
        try:
            for choice in choices:
                self._state.withdraw(choice.run)
                self._take(choice, Token(0, "", Finish.ABORT), generated=False)
                self._close(choice)
        except FaultStruck:
            self._seen.end(Ending.FAULT)
            self._withdraw()

    def _take(self, choice: _Choice, token: Token, *, generated: bool = True) -> None:
        choice.num_tokens += generated
        choice.finish, choice.stop_reason = token.finish, token.stop_reason
        if not self._request.shown.stream:
            choice.texts.append(token.text)
            return
        if not self._has_begun:
            self._has_begun = True
            self._open()
        choice.texts.append(token.text)
        if generated:
            choice.unsent.append(token.id)
        is_due = choice.num_sent == 0 or len(choice.unsent) >= self._request.shown.stream_interval
        if is_due or token.finish is not None:
            self._send(choice, Token(token.id, "".join(choice.texts), token.finish, token.stop_reason))
            choice.texts.clear()
            choice.unsent.clear()

    def _open(self) -> None:
        """What comes before the first token: the role of each choice of a chat."""
        request, created, usage = self._request, self._created, self._continuous_usage(0, 0)
        if not request.chat:
            return
        for index in range(self._num_choices):
            chunk = shapes.role_chunk(request, created, index, usage, self._prompt_text())
            self._sink.event(chunk)
        if request.echoes[0]:
            for index in range(self._num_choices):
                self._sink.event(shapes.echo_chunk(request, created, index, usage))

    def _send(self, choice: _Choice, token: Token) -> None:
        """A chunk of what is not sent yet; `token` has its text, and why it is the last."""
        request, ids = self._request, list(choice.unsent)
        is_first = choice.num_sent == 0
        choice.num_sent = choice.num_tokens
        text = token.text
        if is_first and not request.chat:
            echo = shapes.echoed(request, choice.index)
            text = echo if request.echo_only else echo + text
        logprobs = None
        if choice.logprobs is not None and ids:
            logprobs = self._rendered(choice, choice.logprobs, ids, is_first)
        token = Token(token.id, text, token.finish, token.stop_reason)
        piece = Piece(choice.index, token, ids, logprobs, is_first, self._completes_call(choice, token))
        usage = self._continuous_usage(choice.index // request.n, choice.num_tokens)
        self._sink.event(shapes.token_chunk(request, self._created, piece, usage))

    def _completes_call(self, choice: _Choice, token: Token) -> bool:
        call = self._request.call
        if call is None:
            return False
        choice.said += token.text
        return token.finish is Finish.STOP and choice.said == call.text

    def _rendered(self, choice: _Choice, logprobs: Logprobs, ids: Sequence[int], is_first: bool) -> Json:
        """Log-probabilities of tokens, an echoed prompt's before the first ones."""
        request = self._request
        if request.chat:
            return logprobs.chat(ids)
        echoes = is_first and request.shown.echo
        if echoes:
            prompt = request.prompts[choice.index // request.n]
            ids = [*prompt, *(() if request.echo_only else ids)]
        return logprobs.completion(ids, first_is_unknown=echoes)

    def _close(self, choice: _Choice) -> None:
        """A choice is complete."""
        self._num_open -= 1
        self._state.sequence_finished(
            choice.run, choice.finish or Finish.STOP, self._request.rules.max_tokens
        )
        self._close_prompt(choice.index // self._request.n)
        if self._num_open:
            return
        if self._request.shown.stream:
            self._end_stream()
        else:
            self._answer()
        self._seen.end(Ending.ANSWERED)

    def _close_prompt(self, index: int) -> None:
        """A choice of a prompt is complete; all of them are one request to vLLM's metrics."""
        self._open_by_prompt[index] -= 1
        if not self._open_by_prompt[index]:
            n = self._request.n
            choices = self._choices[index * n : (index + 1) * n]
            self._state.stats.prompt_finished(n, max(choice.num_tokens for choice in choices))

    def _end_stream(self) -> None:
        request = self._request
        if request.shown.include_usage:
            self._sink.event(shapes.usage_chunk(request, self._created, self._usage(), self._metrics()))
        self._sink.done()

    def _answer(self) -> None:
        finished = [self._finished(choice) for choice in self._choices]
        text = self._prompt_text()
        usage, metrics = self._usage(), self._metrics()
        whole = shapes.whole(self._request, self._created, finished, usage, text, metrics)
        self._sink.whole(200, dump({**whole, "kv_transfer_params": self._place()}))

    def _place(self) -> Json | None:
        """Where another engine is to fetch the prompt, if it is."""
        nixl, request = self._state.settings.nixl, self._request
        if nixl is None or not request.transfer.gives or self._is_aborted:
            return None
        size = self._state.settings.shape.block_size
        return nixl.place(request.id, len(request.prompts[0]), self._cached or 0, size)

    def _metrics(self) -> Json | None:
        """Of several sequences vLLM tells none, since they are those of one."""
        settings = self._state.settings
        if not settings.per_request_metrics or self._num_choices != 1:
            return None
        (choice,) = self._choices
        return choice.run.times.reported(choice.num_tokens, settings.speed)

    def _prompt_text(self) -> str | None:
        request = self._request
        return self._state.text.decode(request.prompts[0]) if request.shown.prompt_text else None

    def _finished(self, choice: _Choice) -> Finished:
        request = self._request
        ids = choice.ids
        prompt = request.prompts[choice.index // request.n]
        logprobs = None
        if choice.logprobs is not None:
            logprobs = self._rendered(choice, choice.logprobs, ids, is_first=True)
        of_prompt = None
        if request.shown.prompt_logprobs is not None:
            number = request.shown.prompt_logprobs
            of_prompt = Logprobs(self._state.text, (), number).prompt(prompt)
        text = "" if request.echo_only else "".join(choice.texts)
        return Finished(text, ids, choice.finish or Finish.STOP, choice.stop_reason, logprobs, of_prompt)

    def _usage(self) -> Usage:
        prompt = sum(map(len, self._request.prompts))
        completion = sum(choice.num_tokens for choice in self._choices)
        if not self._state.settings.prompt_tokens_details:
            return Usage(prompt, completion, None)
        cached, created = self._cached or 0, None
        if self._request.chat:
            size = self._state.settings.shape.block_size
            created = max(0, prompt // size * size - cached)
        return Usage(prompt, completion, cached, created)

    def _continuous_usage(self, prompt: int, num_tokens: int) -> Usage | None:
        """Of one choice and its prompt."""
        if not self._request.shown.continuous_usage:
            return None
        return Usage(len(self._request.prompts[prompt]), num_tokens, None)

    def _withdraw(self) -> None:
        """Requests that clients left are in none of vLLM's counts of finished ones."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        for choice in self._choices:
            if choice.finish is None:
                choice.finish = Finish.ABORT
                self._state.withdraw(choice.run)
