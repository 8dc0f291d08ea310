"""The engine that is measured, over its public API."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from anbar.adapters.http.fetch import Fetched, fetch
from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.message import Header, render_headers
from anbar.adapters.http.upstream import UpstreamPool, parse_endpoint
from anbar.adapters.vllm.probe import ServedModel, parse_metrics, parse_models, parse_version
from anbar.apps.calibrate.metrics_page import Counters, parse_counters
from anbar.apps.calibrate.target import Ask, EngineFacts, Timeline
from anbar.core.errors import ConfigError, MeasureError, UpstreamBroken, UpstreamError, WireError

_PROBE_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 300.0
_MAX_SHOWN = 300


class EngineClient:
    """`Target` over HTTP. Use within one event loop, and close."""

    def __init__(self, url: str, key: str | None = None) -> None:
        try:
            endpoint = parse_endpoint(url)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        self.url = url
        self.model = ""
        """What is asked for; "": the first that the engine serves, found out when it is needed."""
        self._headers: list[Header] = [(b"authorization", f"Bearer {key}".encode())] if key else []
        self._pool = UpstreamPool(endpoint, UpstreamLimits(max_idle=1024))

    async def aclose(self) -> None:
        """Close unused connections."""
        self._pool.close()

    async def facts(self) -> EngineFacts:
        """Ask what it is. Raises MeasureError when it is no vLLM engine that can be measured."""
        card = await self._card()
        try:
            version = parse_version(await self._get("/version"))
            page = await self._get("/metrics")
            cache, counters = parse_metrics(page), parse_counters(page)
        except WireError as error:
            raise MeasureError(f"{self.url} is not a vLLM engine: {error}") from error
        if cache is None:
            raise MeasureError(f"{self.url} does not tell its block size in /metrics")
        return EngineFacts(
            url=self.url,
            model=card.name,
            root=card.root,
            vllm=version,
            max_model_len=card.max_model_len or 2048,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks or 0,
            has_offload=counters.has_offload,
        )

    async def counters(self) -> Counters:
        try:
            return parse_counters(await self._get("/metrics"))
        except WireError as error:
            raise MeasureError(f"{self.url}: {error}") from error

    async def clear_device(self) -> bool:
        reply = await self._fetch("/reset_prefix_cache", b"{}")
        return reply.status == 200 and b"false" not in reply.body

    async def tokenize(self, text: str) -> list[int]:
        """The token ids of `text`, nothing added."""
        return list((await self._tokenize(text)).tokens)

    async def tokenize_s(self, text: str) -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        tokens = await self._tokenize(text)
        return loop.time() - start_s, tokens.count

    async def run(self, asks: Sequence[Ask]) -> list[Timeline]:
        model = await self._served()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(ask, model)) for ask in asks]
        except* MeasureError as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _served(self) -> str:
        if not self.model:
            self.model = (await self._card()).name
        return self.model

    async def _card(self) -> ServedModel:
        """The first model that it serves, adapters not counted."""
        try:
            cards = [card for card in parse_models(await self._get("/v1/models")) if card.parent is None]
        except WireError as error:
            raise MeasureError(f"{self.url} is not a vLLM engine: {error}") from error
        if not cards:
            raise MeasureError(f"{self.url} serves no model")
        return cards[0]

    async def _ask(self, ask: Ask, model: str) -> Timeline:
        if ask.delay_s:
            await asyncio.sleep(ask.delay_s)
        body = json.dumps(
            {
                "model": model,
                "prompt": ask.prompt,
                "max_tokens": ask.num_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            }
        ).encode()
        headers = [(b"host", self._pool.endpoint.host_header), (b"content-type", b"application/json")]
        headers += [(b"content-length", b"%d" % len(body)), *self._headers]
        target = self._pool.endpoint.prefix + b"/v1/completions"
        head = b"POST %b HTTP/1.1\r\n%b\r\n" % (target, render_headers(headers))
        loop = asyncio.get_running_loop()
        sink = _Tokens(loop)
        sent_s = loop.time()
        try:
            reply = await self._pool.ask(head, body, _ANSWER_TIMEOUT_S)
            try:
                reply.pump(sink)
                await sink.done
            finally:
                reply.close()
        except (UpstreamError, UpstreamBroken) as error:
            raise MeasureError(f"{self.url}: {error}") from error
        if reply.status != 200:
            raise MeasureError(f"{self.url}: a completion answers {reply.status}: {_shown(sink.text)}")
        return sink.timeline(sent_s, ask.num_tokens, self.url)

    async def _tokenize(self, text: str) -> "_Tokenized":
        model = await self._served()
        body = json.dumps({"model": model, "prompt": text, "add_special_tokens": False}).encode()
        reply = await self._fetch("/tokenize", body)
        try:
            if reply.status == 200:
                return msgspec.json.decode(reply.body, type=_Tokenized)
        except msgspec.DecodeError as error:
            raise MeasureError(f"{self.url}: /tokenize cannot be understood: {error}") from error
        raise MeasureError(f"{self.url}: /tokenize answers {reply.status}: {_shown(reply.body)}")

    async def _get(self, path: str) -> bytes:
        reply = await self._fetch(path)
        if reply.status in (401, 403):
            raise MeasureError(
                f"{self.url} asks for an API key; --api-key-env NAME says which variable has it"
            )
        if reply.status != 200:
            hint = ", and the address without /v1" if self.url.endswith("/v1") else ""
            raise MeasureError(f"{self.url}{path} answers {reply.status}; is it a vLLM engine{hint}?")
        return reply.body

    async def _fetch(self, path: str, body: bytes = b"") -> Fetched:
        try:
            return await fetch(self._pool, path, headers=self._headers, body=body, timeout_s=_PROBE_TIMEOUT_S)
        except UpstreamError as error:
            raise MeasureError(f"{self.url}: {error}") from error


class _Tokenized(msgspec.Struct):
    tokens: list[int]
    count: int


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class _Tokens:
    """A `BodySink` that notes when each token of a stream came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.text = b""
        self._loop = loop
        self._rest = b""
        self._token_s: list[float] = []
        self._usage = _Usage()

    def body(self, data: bytes) -> None:
        now_s = self._loop.time()
        self.text = self.text or data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._event(line[6:], now_s)

    def ended(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def broke(self, error: UpstreamBroken) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def timeline(self, sent_s: float, num_tokens: int, url: str) -> Timeline:
        """What came; MeasureError unless it is all that was asked for."""
        details = self._usage.prompt_tokens_details
        if len(self._token_s) != num_tokens:
            what = f"{len(self._token_s)} of {num_tokens} tokens came: {_shown(self._rest or self.text)}"
            raise MeasureError(f"{url}: a completion ended early, {what}")
        if details is None or details.cached_tokens is None:
            raise MeasureError(
                f"{url} does not say how many tokens were cached; "
                "start it with --enable-prompt-tokens-details"
            )
        cached = details.cached_tokens
        return Timeline(sent_s, tuple(self._token_s), self._usage.prompt_tokens, cached)

    def _event(self, text: bytes, now_s: float) -> None:
        try:
            chunk = _decode(text)
        except msgspec.DecodeError as error:
            self.broke(UpstreamBroken(f"an event of its stream cannot be understood: {error}"))
            return
        if chunk.error is not None:
            self.broke(UpstreamBroken(f"it says {_shown(text)}"))
        elif chunk.usage is not None:
            self._usage = chunk.usage
            self._token_s += [now_s] * (chunk.usage.completion_tokens - len(self._token_s))


def _shown(text: bytes) -> str:
    return text[:_MAX_SHOWN].decode("utf-8", "replace").strip()
