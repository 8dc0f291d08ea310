"""Generation: from a valid request to its answer, whole or streamed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from anbar.testing.fake_engine import shapes
from anbar.testing.fake_engine.answers import Answer, AnswerRules, Token, fixed_ids, token_ids
from anbar.testing.fake_engine.api import Generate, dump
from anbar.testing.fake_engine.blocks import Allocation, Identity
from anbar.testing.fake_engine.records import Seen
from anbar.testing.fake_engine.shapes import Finished, Usage
from anbar.testing.fake_engine.sink import Sink
from anbar.testing.fake_engine.state import EngineState


class Generation:
    """One request while it runs."""

    def __init__(self, state: EngineState, request: Generate, seen: Seen) -> None:
        self._state = state
        self._request = request
        self._seen = seen
        self._created = int(time.time())
        self._cached: int | None = None

    async def run(self, sink: Sink) -> None:
        """Answer into `sink`."""
        try:
            if self._request.stream:
                await self._stream(sink)
            else:
                await self._whole(sink)
        except asyncio.CancelledError:
            self._state.counters.finished["abort"] += 1
            raise

    async def _whole(self, sink: Sink) -> None:
        choices: list[Finished] = []
        for index in range(len(self._request.prompts) * self._request.n):
            tokens = [token async for token in self._tokens(index)]
            text = "".join(token.text for token in tokens)
            last = tokens[-1] if tokens else Token(0, "", "length")
            ids = [token.id for token in tokens]
            choices.append(Finished(text, ids, last.finish_reason or "length", last.stop_reason))
        usage = self._usage(sum(len(choice.ids) for choice in choices))
        await sink.whole(200, dump(shapes.whole(self._request, self._created, choices, usage)))

    async def _stream(self, sink: Sink) -> None:
        request, created = self._request, self._created
        await sink.start_stream()
        num_tokens = 0
        for index in range(len(request.prompts) * request.n):
            first = True
            async for token in self._tokens(index):
                if first:
                    await self._open_choice(sink, index)
                    first = False
                num_tokens += 1
                usage = self._usage(num_tokens, details=False) if request.continuous_usage else None
                await sink.event(shapes.token_chunk(request, created, index, token, usage))
        if request.include_usage:
            await sink.event(shapes.usage_chunk(request, created, self._usage(num_tokens)))
        await sink.done()

    async def _open_choice(self, sink: Sink, index: int) -> None:
        """A chat's role chunk, or the echoed prompt of a completion."""
        request = self._request
        usage = self._usage(0, details=False) if request.continuous_usage else None
        if request.chat:
            await sink.event(shapes.role_chunk(request, self._created, index, usage))
        elif request.echo:
            echoed = Token(0, request.prompt_texts[index // request.n])
            await sink.event(shapes.token_chunk(request, self._created, index, echoed, usage))

    async def _tokens(self, index: int) -> AsyncIterator[Token]:
        """The tokens of one choice, while its sequence holds blocks."""
        request, state = self._request, self._state
        prompt = request.prompts[index // request.n]
        rules = AnswerRules(request.max_tokens, request.min_tokens, request.ignore_eos, request.stop)
        if state.answer is not None:
            ids = fixed_ids(state.tokenizer, state.answer)
        else:
            ids = token_ids(state.tokenizer, prompt, request.seed, index % request.n)
        answer = Answer(state.tokenizer, ids, rules)
        async with AsyncExitStack() as stack:
            identity = Identity(request.lora, request.salt)
            sequence = await stack.enter_async_context(
                state.scheduler.run(prompt, identity, reads_cache=request.reads_cache)
            )
            self._note_cached(sequence)
            while request.max_tokens > 0:
                token = answer.next()
                state.counters.generated_tokens += 1
                self._seen.num_generated += 1
                if answer.finished:
                    # The last token's KV is never computed; its blocks go before the client hears of it.
                    await stack.aclose()
                    state.counters.finished[token.finish_reason or "stop"] += 1
                    yield token
                    return
                yield token
                await state.scheduler.step(sequence, token.id)

    def _note_cached(self, sequence: Allocation) -> None:
        if self._cached is None:
            self._cached = self._seen.num_cached_tokens = sequence.num_cached_tokens

    def _usage(self, num_completion: int, *, details: bool = True) -> Usage:
        prompt = sum(len(ids) for ids in self._request.prompts)
        shown = details and self._state.config.prompt_tokens_details
        return Usage(prompt, num_completion, (self._cached or 0) if shown else None)
