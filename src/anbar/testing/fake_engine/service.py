"""The engine's endpoints: generation, the small pages around it, and the admin calls of the fake."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar, cast

import msgspec

from anbar.testing.fake_engine import metrics, shapes
from anbar.testing.fake_engine.api import dump, parse_generate, parse_json
from anbar.testing.fake_engine.errors import ApiError, FrameworkError, Json, Unauthorized, invalid
from anbar.testing.fake_engine.faults import Fault
from anbar.testing.fake_engine.generate import Generation
from anbar.testing.fake_engine.http import Exchange, HttpRequest
from anbar.testing.fake_engine.records import Ending
from anbar.testing.fake_engine.scheduler import Pace
from anbar.testing.fake_engine.sink import JSON, FaultStruck, Sink
from anbar.testing.fake_engine.state import EngineState
from anbar.testing.fake_engine.tokenizer import TemplateError
from anbar.testing.fake_engine.wire import EventFaults

VERSION = "0.32.0"
_GENERATE = {"/v1/chat/completions": True, "/v1/completions": False}
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")

Settings = TypeVar("Settings")
Page = Callable[[HttpRequest], Json | bytes]


class Service:
    """Answers requests for one engine. `die_for(seconds)` ends the engine's life, for ever if negative."""

    def __init__(self, state: EngineState, die_for: Callable[[float], None]) -> None:
        self._state = state
        self._die_for = die_for
        self._get: dict[str, Page] = {
            "/v1/models": self._models,
            "/version": lambda _: {"version": VERSION},
            "/load": lambda _: {"server_load": self._state.counters.running + self._state.counters.waiting},
            "/kv_event_sources": self._event_sources,
            "/fake/requests": self._requests,
        }
        self._post: dict[str, Page] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/reset_prefix_cache": self._reset_prefix_cache,
            "/fake/fault": self._arm,
            "/fake/events": self._spoil_events,
            "/fake/pace": self._set_pace,
            "/fake/clear": self._clear,
            "/fake/die": self._die,
        }

    async def handle(self, request: HttpRequest, exchange: Exchange) -> None:
        """Answer one request, whatever it is."""
        request_id = request.header("x-request-id")
        if request_id is not None:
            exchange.extra.append((b"x-request-id", request_id.encode("latin-1")))
        generating = request.method == "POST" and request.path in _GENERATE
        if request.path.startswith("/fake/"):
            await self._small(request, Sink(exchange, self._state.faults, None), exchange)
            return
        faults = self._state.faults
        sink = Sink(exchange, faults, faults.take(generating=generating))
        if generating:
            await self._generate(request, sink, exchange)
            return
        others = self._state.records.others
        others[request.path] = others.get(request.path, 0) + 1
        try:
            await sink.begin()
            await self._small(request, sink, exchange)
        except ApiError as error:
            await exchange.respond(error.status, JSON, dump(error.body()))
        except FaultStruck:
            return

    async def _generate(self, request: HttpRequest, sink: Sink, exchange: Exchange) -> None:
        state = self._state
        with state.records.track(request) as seen:
            try:
                self._authenticate(request)
                await sink.begin()
                if state.faults.scripts:
                    await self._play(exchange)
                    seen.ending = Ending.ANSWERED
                    return
                body = parse_json(request)
                chat = _GENERATE[request.path]
                parsed = parse_generate(
                    request, body, chat=chat, tokenizer=state.tokenizer, limits=state.limits
                )
                await Generation(state, parsed, seen).run(sink)
                seen.ending = Ending.ANSWERED
            except ApiError as error:
                seen.ending = Ending.REFUSED
                await exchange.respond(error.status, JSON, dump(error.body()))
            except FaultStruck:
                seen.ending = Ending.FAULT

    async def _play(self, exchange: Exchange) -> None:
        script = self._state.faults.scripts.pop(0)
        if not script.chunked:
            await exchange.respond(script.status, script.headers, b"".join(script.chunks))
            return
        await exchange.start(script.status, script.headers)
        for chunk in script.chunks:
            await exchange.send(chunk)
        await exchange.finish()

    def _authenticate(self, request: HttpRequest) -> None:
        key = self._state.config.api_key
        if key is None or not request.path.startswith(_GUARDED):
            return
        scheme, _, given = (request.header("authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or given != key:
            raise Unauthorized("Unauthorized", status=401)

    async def _small(self, request: HttpRequest, sink: Sink, exchange: Exchange) -> None:
        """Everything that is not generation."""
        path, state = request.path, self._state
        try:
            self._authenticate(request)
            if request.method == "GET" and path == "/health":
                await sink.whole(200 if state.healthy else 503, b"", headers=())
            elif request.method == "GET" and path == "/metrics":
                page = metrics.render(state.config.models[0], state.cache, state.counters)
                await sink.whole(200, page, headers=((b"content-type", metrics.CONTENT_TYPE),))
            else:
                await sink.whole(200, _as_bytes(self._route(request)(request)))
        except ApiError as error:
            await exchange.respond(error.status, JSON, dump(error.body()))

    def _route(self, request: HttpRequest) -> Page:
        by_method = {"GET": self._get, "POST": self._post}
        page = by_method.get(request.method, {}).get(request.path)
        if page is not None:
            return page
        if request.path in {*self._get, *self._post, *_GENERATE, "/health", "/metrics"}:
            raise FrameworkError("Method Not Allowed", status=405)
        raise FrameworkError("Not Found", status=404)

    def _models(self, _: HttpRequest) -> Json:
        config = self._state.config
        root = config.root or str(config.tokenizer)
        return shapes.models(config.models, config.loras, root, config.max_model_len, self._state.started_s)

    def _event_sources(self, _: HttpRequest) -> Json:
        config = self._state.config
        if not config.events:
            return {}
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": config.events,
            "replay_endpoint": config.replay or None,
            "buffer_steps": config.replay_buffer,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": "",
        }
        return {"0": source}

    def _tokenize(self, request: HttpRequest) -> Json:
        body = parse_json(request)
        tokenizer = self._state.tokenizer
        if isinstance(body.get("messages"), list):
            try:
                text = tokenizer.chat_text(
                    cast(list[Json], body["messages"]),
                    add_generation_prompt=bool(body.get("add_generation_prompt", True)),
                    continue_final_message=bool(body.get("continue_final_message")),
                    variables=cast(Json, body.get("chat_template_kwargs") or {}),
                )
            except TemplateError as error:
                raise ApiError(str(error)) from error
            tokens = tokenizer.encode(text, special=bool(body.get("add_special_tokens", False)))
        elif isinstance(body.get("prompt"), str):
            special = bool(body.get("add_special_tokens", True))
            tokens = tokenizer.encode(cast(str, body["prompt"]), special=special)
        else:
            raise invalid("{'type': 'missing', 'loc': 'body.prompt', 'msg': 'Field required'}", "body.prompt")
        length = self._state.config.max_model_len
        return {"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": None}

    def _detokenize(self, request: HttpRequest) -> Json:
        tokens = parse_json(request).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise invalid("{'type': 'list_type', 'loc': 'body.tokens'}", "body.tokens")
        return {"prompt": self._state.tokenizer.decode(tokens)}

    def _reset_prefix_cache(self, _: HttpRequest) -> bytes:
        self._state.cache.clear()
        self._state.scheduler.publish()
        return b""

    def _requests(self, _: HttpRequest) -> Json:
        records = self._state.records
        endings = {ending.value: records.count(ending) for ending in Ending}
        return {"generation": endings, "others": records.others}

    def _arm(self, request: HttpRequest) -> Json:
        fault = _convert(parse_json(request), Fault)
        self._state.faults.arm(fault)
        return {"armed": fault.kind.value}

    def _spoil_events(self, request: HttpRequest) -> Json:
        wanted, faults = _convert(parse_json(request), EventFaults), self._state.event_faults
        faults.drop, faults.lose = wanted.drop, wanted.lose
        faults.duplicate, faults.swap = wanted.duplicate, wanted.swap
        return asdict(faults)

    def _set_pace(self, request: HttpRequest) -> Json:
        wanted, pace = _convert(parse_json(request), Pace), self._state.pace
        pace.prefill_s_per_token, pace.load_s_per_token = wanted.prefill_s_per_token, wanted.load_s_per_token
        pace.overhead_s, pace.token_s = wanted.overhead_s, wanted.token_s
        return asdict(pace)

    def _clear(self, _: HttpRequest) -> Json:
        self._state.faults.clear()
        self._state.records.clear()
        return {"cleared": True}

    def _die(self, request: HttpRequest) -> Json:
        dead_s = parse_json(request).get("for_s", -1)
        if not isinstance(dead_s, int | float):
            raise invalid("for_s must be seconds, negative for never", "for_s")
        self._die_for(float(dead_s))
        return {"dead_for_s": dead_s}


def _as_bytes(page: Json | bytes) -> bytes:
    return page if isinstance(page, bytes) else dump(page)


def _convert(body: Json, kind: type[Settings]) -> Settings:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise invalid(str(error), "body") from error
