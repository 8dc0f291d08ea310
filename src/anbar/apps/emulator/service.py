"""The engine's endpoints: which request is for whom, what it must carry, and how its end is noted."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, cast

from anbar.adapters.http.message import Answer, Header, Request
from anbar.adapters.http.server import Exchange
from anbar.apps.emulator.adapter_pages import AdapterPages
from anbar.apps.emulator.admin import Admin
from anbar.apps.emulator.body import dump, parse_json
from anbar.apps.emulator.embedding import Embedding, parse_embed
from anbar.apps.emulator.errors import ApiError, FrameworkError, LateError, Unauthorized, failed
from anbar.apps.emulator.generate_request import parse_generate
from anbar.apps.emulator.generation import Generation
from anbar.apps.emulator.pages import Later, Pages
from anbar.apps.emulator.playing import Playing
from anbar.apps.emulator.records import Ending, Seen
from anbar.apps.emulator.settings import Runner
from anbar.apps.emulator.sink import JSON, FaultStruck, FaultySink, Sink
from anbar.apps.emulator.state import EngineState
from anbar.apps.emulator.token_pages import TokenPages
from anbar.apps.tasks import Tasks

Page = Callable[[Request], Answer | Later]

_VARY: Sequence[Header] = ((b"vary", b"Origin"),)
"""vLLM's server allows other origins by default, which its answers may therefore depend on."""

logger = logging.getLogger(__name__)

_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""What an API key is needed for (vLLM's `AuthenticationMiddleware`)."""

_UNKNOWN = "(unknown)"
"""In the counts of requests: clients may make up any number of paths."""

_TOKENIZE = ("/tokenize", "/detokenize")

_LONG_BODY_BYTES = 16 * 1024
"""From here on tokenizing takes milliseconds, and is done on a thread, beside the event loop."""


class Work(Protocol):
    """A request in the engine."""

    def start(self) -> None: ...

    def abandon(self) -> None: ...


T = TypeVar("T")
Begin = Callable[[], Work]
Parse = Callable[[Request, Sink, Seen], Begin]
"""Validates a request, on a thread when it is long; what it returns makes the work, on the event loop."""


@dataclass(slots=True)
class _Call:
    """One request and where its answer goes."""

    path: str
    sink: Sink
    parse: Parse | None = None
    """For requests that the engine must work for; None: a small page."""
    seen: Seen | None = None

    def end(self, ending: Ending) -> None:
        if self.seen is not None:
            self.seen.end(ending)


class Service:
    """Answers requests for one engine. `die_for(seconds)` ends the engine's life, for ever if negative."""

    def __init__(self, state: EngineState, die_for: Callable[[float], None]) -> None:
        self._state = state
        self._tasks = Tasks()
        pages, tokens = Pages(state), TokenPages(state)
        admin = Admin(state, die_for)
        self._work: dict[str, Parse] = {"/v1/embeddings": self._embed}
        if state.settings.runner is Runner.GENERATE:
            self._work = {
                "/v1/chat/completions": partial(self._generate, True),
                "/v1/completions": partial(self._generate, False),
            }
        self._pages: dict[bytes, dict[str, Page]] = {
            b"GET": {
                "/health": pages.health,
                "/ping": pages.health,
                "/version": pages.version,
                "/load": pages.load,
                "/metrics": pages.metrics,
                "/v1/models": pages.models,
                "/kv_event_sources": pages.event_sources,
                "/emulator": admin.describe,
                "/emulator/requests": admin.requests,
            },
            b"POST": {
                "/ping": pages.health,
                "/tokenize": tokens.tokenize,
                "/detokenize": tokens.detokenize,
                **admin.posts(),
            },
        }
        self._add_optional(pages)

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever it is."""
        request, state = exchange.request, self._state
        path = request.path.decode("latin-1")
        extra = self._extra(request)
        if path.startswith("/emulator"):
            self._serve(_Call(path, Sink(exchange, extra)))
            return
        if state.is_dying:
            exchange.cut()
            return
        parse = self._work.get(path) if request.method == b"POST" else None
        seen = None
        if parse is not None:
            seen = state.records.open(request)
            exchange.on_gone = partial(seen.end, Ending.CANCELLED)
        else:
            state.records.others[path if self._methods(path) else _UNKNOWN] += 1
        fault = state.faults.take(generating=parse is not None)
        if fault is None:
            self._serve(_Call(path, Sink(exchange, extra), parse, seen))
            return
        sink = FaultySink(exchange, extra, fault, state.faults)
        call = _Call(path, sink, parse, seen)
        self._guard(call, lambda call: sink.begin(partial(self._serve, call)))

    async def stop(self) -> None:
        """Give up what is being read."""
        await self._tasks.give_up()

    def _add_optional(self, pages: Pages) -> None:
        """Pages that vLLM has only where its environment asks for them."""
        settings, post = self._state.settings, self._pages[b"POST"]
        if settings.dev_mode:
            self._pages[b"GET"]["/is_sleeping"] = pages.is_sleeping
            post["/reset_prefix_cache"] = pages.reset_prefix_cache
            post["/reset_mm_cache"] = post["/reset_encoder_cache"] = pages.reset_other_cache
            post["/sleep"], post["/wake_up"] = pages.sleep, pages.wake_up
        if settings.runtime_loras:
            adapters = AdapterPages(self._state)
            post["/v1/load_lora_adapter"] = adapters.load
            post["/v1/unload_lora_adapter"] = adapters.unload

    def _serve(self, call: _Call) -> None:
        if not call.sink.exchange.over:
            self._guard(call, self._small if call.parse is None else self._heavy)

    def _guard(self, call: _Call, act: Callable[[_Call], None]) -> None:
        """The supervisor of a request."""
        try:
            try:
                act(call)
            except LateError as error:
                _refuse_late(call, error)
                call.end(Ending.REFUSED)
            except ApiError as error:
                call.sink.refuse(error)
                call.end(Ending.REFUSED)
            except FaultStruck:
                raise
            except Exception as error:  # noqa: BLE001 - the supervisor of requests, counted
                self._state.num_defects += 1
                logger.error("%s failed: %s", call.path, type(error).__name__)
                if call.sink.exchange.begun:
                    call.sink.give_up()
                else:
                    call.sink.refuse(failed())
                call.end(Ending.REFUSED)
        except FaultStruck:
            call.end(Ending.FAULT)

    def _small(self, call: _Call) -> None:
        """Everything that is answered at once."""
        request = call.sink.exchange.request
        self._authenticate(request, call.path)
        page = self._pages.get(request.method, {}).get(call.path)
        if page is not None and call.path in _TOKENIZE and len(request.body) >= _LONG_BODY_BYTES:
            self._aside(call, partial(page, request), lambda answer: _send(call, cast(Answer, answer)))
        elif page is not None:
            answer = page(request)
            if isinstance(answer, Answer):
                _send(call, answer)
            else:
                answer(lambda answer: self._guard(call, lambda call: _send(call, answer)))
        elif allowed := self._methods(call.path):
            body = dump(FrameworkError("Method Not Allowed").body())
            call.sink.whole(405, body, (*JSON, (b"allow", allowed)))
        elif call.path.endswith("/") and self._methods(call.path.rstrip("/")):
            host = (request.header(b"host") or b"").decode("latin-1")
            location = f"http://{host}{call.path.rstrip('/')}"
            call.sink.whole(307, b"", ((b"location", location.encode("latin-1")),))
        else:
            raise FrameworkError("Not Found", status=404)

    def _methods(self, path: str) -> bytes:
        """The methods of a path, for `Allow`; empty when there is none."""
        found = [method for method, pages in self._pages.items() if path in pages]
        return b", ".join(found + [b"POST"] * (path in self._work))

    def _heavy(self, call: _Call) -> None:
        """Read the request and let the engine work."""
        exchange, parse, seen = call.sink.exchange, call.parse, call.seen
        assert parse is not None, "a page is answered elsewhere"
        assert seen is not None, "and not recorded"
        request = exchange.request
        self._authenticate(request, call.path)
        scripts = self._state.faults.scripts
        if scripts:
            script = scripts.popleft()
            _start(lambda: Playing(script, call.sink, seen), exchange)
            return
        read = partial(parse, request, call.sink, seen)
        if len(request.body) < _LONG_BODY_BYTES:
            _start(read(), exchange)
            return
        self._aside(call, read, lambda begin: _start(begin, exchange))

    def _aside(self, call: _Call, read: Callable[[], T], go_on: Callable[[T], None]) -> None:
        """Read a long request on a thread, and go on here."""
        self._tasks.start(self._read_long(call, read, go_on))

    async def _read_long(self, call: _Call, read: Callable[[], T], go_on: Callable[[T], None]) -> None:
        outcome: T | Exception
        try:
            outcome = await asyncio.to_thread(read)
        except Exception as error:  # noqa: BLE001 - raised again under the request's supervisor
            outcome = error
        if call.sink.exchange.over:
            return

        def begin(call: _Call) -> None:
            if isinstance(outcome, Exception):
                raise outcome
            go_on(outcome)

        self._guard(call, begin)

    def _generate(self, chat: bool, request: Request, sink: Sink, seen: Seen) -> Begin:
        state, body = self._state, parse_json(request)
        try:
            parsed = parse_generate(request, body, chat=chat, text=state.text, served=state.served)
        except LateError as error:
            error.streams = bool(body.get("stream"))
            raise
        return lambda: Generation(state, parsed, sink, seen)

    def _embed(self, request: Request, sink: Sink, seen: Seen) -> Begin:
        state, size = self._state, self._state.settings.embedding_size
        parsed = parse_embed(request, parse_json(request), text=state.text, served=state.served, size=size)
        return lambda: Embedding(state, parsed, sink, seen)

    def _authenticate(self, request: Request, path: str) -> None:
        keys = self._state.settings.api_keys
        if not keys or not path.startswith(_GUARDED):
            return
        scheme, _, given = (request.header(b"authorization") or b"").partition(b" ")
        if scheme.lower() != b"bearer" or given.decode("latin-1") not in keys:
            raise Unauthorized("Unauthorized", status=401)

    def _extra(self, request: Request) -> Sequence[Header]:
        """Headers of whatever is answered."""
        if not self._state.settings.request_id_headers:
            return _VARY
        return (
            *_VARY,
            (b"x-request-id", request.header(b"x-request-id") or os.urandom(16).hex().encode()),
        )


def _start(begin: Begin, exchange: Exchange) -> None:
    work = begin()
    exchange.on_gone = work.abandon
    work.start()


def _send(call: _Call, answer: Answer) -> None:
    call.sink.whole(answer.status, answer.body, answer.headers)


def _refuse_late(call: _Call, error: LateError) -> None:
    if not error.streams:
        call.sink.refuse(error)
        return
    call.sink.start_stream()
    call.sink.event(error.body())
    call.sink.done()
