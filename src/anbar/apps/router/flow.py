"""The life of a routed request.

parse → tokenize → match → decide → forward, with fallbacks before the first byte → stream → one event.

Which failures are retried on the next engine, all of them before the first byte of the answer's body:
- no connection, or one that broke: the engine is UNHEALTHY from then on;
- no first byte in time: likewise;
- an answer of 502, 503 or 504: the engine said itself that it cannot serve this now. Its state is the probes'
  matter. The last such answer is passed through when no engine is left.
Everything else an engine answers, 4xx, 429 and 500 included, is the answer. A request that two engines failed
on after they had it is not given to a third: it may be what kills them.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from anbar.adapters.http.message import Answer, error_answer
from anbar.adapters.http.openai import (
    ApiRequest,
    ClientKv,
    Endpoint,
    check_length,
    check_output_length,
    parse,
)
from anbar.adapters.http.server import Exchange
from anbar.adapters.http.upstream import ConnectFailed, NoDescriptor, Reply
from anbar.adapters.http.usage import find_usage
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.failures import internal, no_engine, upstream_failed
from anbar.apps.router.headers import answer_headers, check_content_type, forwarded, id_headers, request_id
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.record import Record
from anbar.apps.router.relay import Relay
from anbar.core.clock import Clock
from anbar.core.errors import NoEngine, RequestError, UpstreamError, UpstreamTimeout
from anbar.core.fleet import EngineState, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailed, AttemptFailure, Emit, Outcome, SupervisorCaught
from anbar.core.refusals import unknown_model
from anbar.core.request import RouteQuery
from anbar.route import Policy, PrefixIndex
from anbar.route.learn import PrefillSample

RETRIED_STATUSES = frozenset((502, 503, 504))
MAX_EXECUTIONS = 2
"""Engines that may have begun to work on one request."""
CLIENT_CLOSED = 499
"""The status in logs and metrics of a request whose client went away (nginx's number)."""
BYTES_PER_TOKEN = 4
"""To estimate the length of a prompt that the router cannot tokenize."""

_ENGINES_FAULT = frozenset((AttemptFailure.UNREACHABLE, AttemptFailure.TIMEOUT))
"""Failures after which an engine gets nothing until a probe succeeds."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FlowParts:
    """What a flow works with."""

    fleet: Fleet
    index: PrefixIndex
    policy: Policy
    prompts: Prompts
    emit: Emit
    clock: Clock
    client_kv: ClientKv


@dataclass(frozen=True, slots=True)
class _Job:
    """One request on its way to an engine."""

    exchange: Exchange
    api: ApiRequest
    query: RouteQuery
    route: Route
    head: bytes
    tokens_note: str


class _Unavailable(UpstreamError):
    """The engine answered 502, 503 or 504, and another one was ready when it was asked."""


class Flow:
    """Runs each routed request in a task of its own, which ends when the client goes away."""

    def __init__(self, parts: FlowParts) -> None:
        self._parts = parts
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve an exchange."""
        task = asyncio.get_running_loop().create_task(self._supervise(exchange, endpoint))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        exchange.on_gone = task.cancel

    async def stop(self) -> None:
        """Give up what still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _supervise(self, exchange: Exchange, endpoint: Endpoint) -> None:
        parts = self._parts
        record = Record(
            request_id=request_id(exchange.request.headers),
            endpoint=endpoint.value,
            started_s=parts.clock.now_s(),
        )
        ids = id_headers(record.request_id)
        try:
            await self._serve(exchange, endpoint, record)
        except asyncio.CancelledError:
            gone = exchange.over
            record.ended(Outcome.CLIENT_GONE if gone else Outcome.BROKEN, CLIENT_CLOSED if gone else 503)
            exchange.cut()
        except RequestError as error:
            record.ended(Outcome.REFUSED, error.status)
            exchange.answer(error_answer(error, ids))
        except NoEngine as error:
            self._answer_failure(exchange, record, Outcome.NO_ENGINE, no_engine(error, ids))
        except UpstreamError as error:
            self._answer_failure(exchange, record, Outcome.UPSTREAM_FAILED, upstream_failed(error, ids))
        except Exception as error:  # noqa: BLE001 - the supervisor of a request
            parts.emit(SupervisorCaught("request", type(error).__name__))
            self._answer_failure(exchange, record, Outcome.INTERNAL, internal(ids))
        finally:
            parts.emit(record.finished(parts.clock.now_s()))

    @staticmethod
    def _answer_failure(exchange: Exchange, record: Record, outcome: Outcome, answer: Answer) -> None:
        record.ended(outcome, answer.status)
        if exchange.begun:
            exchange.cut()
        else:
            exchange.answer(answer)

    async def _serve(self, exchange: Exchange, endpoint: Endpoint, record: Record) -> None:
        parts = self._parts
        check_content_type(exchange.request)
        api = parse(endpoint, exchange.request.body, parts.client_kv)
        record.stream = api.stream
        serving = self._serving(api.model)
        record.model = api.model
        max_model_len = max(engine.facts.max_model_len for engine in serving)
        if max_model_len:
            check_output_length(api, max_model_len)
        before_s = parts.clock.now_s()
        num_body_bytes = len(exchange.request.body)
        tokens = await parts.prompts.tokens(api, serving)
        record.tokenize_s = parts.clock.now_s() - before_s
        if tokens.ids and max_model_len:
            check_length(api, len(tokens.ids), max_model_len)
        query = self._query(record, api, tokens.ids, serving[0], num_body_bytes)
        record.num_prompt_tokens = query.num_tokens
        route = self._decide(query, api)
        record.policy, record.reason = route.policy, route.reason
        head = forwarded(exchange.request, record.request_id)
        await self._forward(_Job(exchange, api, query, route, head, tokens.note), record)

    def _serving(self, model: str) -> list[Engine]:
        fleet = self._parts.fleet
        serving = fleet.serving(model)
        if serving:
            return serving
        if any(engine.health.state is EngineState.STARTING for engine in fleet):
            raise NoEngine(f"no engine that serves {model[:200]!r} has started yet")
        raise unknown_model(model)

    @staticmethod
    def _query(
        record: Record, api: ApiRequest, ids: tuple[int, ...], engine: Engine, num_body_bytes: int
    ) -> RouteQuery:
        return RouteQuery(
            request_id=record.request_id,
            model=api.model,
            token_ids=ids,
            num_tokens=len(ids) or num_body_bytes // BYTES_PER_TOKEN,
            lora=api.model if api.model in engine.facts.adapters else None,
            cache_salt=api.cache_salt,
        )

    def _decide(self, query: RouteQuery, api: ApiRequest) -> Route:
        parts = self._parts
        matches: dict[EngineId, PrefixMatch] = {}
        if query.token_ids and api.reads_cache:
            ready = [engine.id for engine in parts.fleet if engine.is_ready]
            matches = parts.index.match(query, ready, parts.clock.now_s())
        return parts.policy.decide(query, parts.fleet.views(), matches)

    async def _forward(self, job: _Job, record: Record) -> None:
        """Try the engines of the route in order until one answers; raises what the last one failed with."""
        failure = UpstreamError("no engine was tried")
        num_executions = 0
        engines = [self._parts.fleet[engine] for engine in (job.route.target, *job.route.fallbacks)]
        for place, engine in enumerate(engines):
            if place > 0 and not engine.is_ready:
                continue
            record.num_attempts += 1
            has_next = any(other.is_ready for other in engines[place + 1 :])
            try:
                await self._try(job, engine, record, must_answer=not has_next)
            except UpstreamError as error:
                failure = error
                self._attempt_failed(engine, error)
                num_executions += not isinstance(error, ConnectFailed | NoDescriptor | _Unavailable)
                if num_executions >= MAX_EXECUTIONS:
                    break
            else:
                return
        raise failure

    def _attempt_failed(self, engine: Engine, error: UpstreamError) -> None:
        match error:
            case _Unavailable():
                kind = AttemptFailure.UNAVAILABLE
            case NoDescriptor():
                kind = AttemptFailure.NO_DESCRIPTOR
            case UpstreamTimeout():
                kind = AttemptFailure.TIMEOUT
            case _:
                kind = AttemptFailure.UNREACHABLE
        self._parts.emit(AttemptFailed(engine.id, kind))
        if kind in _ENGINES_FAULT:
            engine.health.connection_failed(str(error))

    async def _try(self, job: _Job, engine: Engine, record: Record, must_answer: bool) -> None:
        """Ask one engine and carry its answer. Raises UpstreamError when the next one should be asked."""
        record.engine = engine.id
        prediction = job.route.predictions[engine.id]
        num_predicted = prediction.match.total
        record.predicted_cached_tokens = num_predicted
        record.predicted_ttft_s = prediction.ttft_s
        record.degraded = job.tokens_note or engine.degraded()
        num_queued = engine.load.queued_prefill_tokens
        sent_s = self._parts.clock.now_s()
        with engine.load.hold(max(0, job.query.num_tokens - num_predicted)) as share:
            reply = await engine.pool.ask(_render(job, engine), job.exchange.request.body)
            try:
                if reply.status in RETRIED_STATUSES and not must_answer:
                    raise _Unavailable(f"engine {engine.id} answered {reply.status}")
                share.first_byte()
                now_s = self._parts.clock.now_s()
                record.ttft_s = now_s - record.started_s
                await self._relay(job, reply, record)
            finally:
                reply.close()
        sample = PrefillSample(
            num_tokens=job.query.num_tokens,
            num_cached=_first(record.reported_cached_tokens, num_predicted),
            num_queued=num_queued,
            ttft_s=now_s - sent_s,
            load_s=prediction.load_s,
        )
        if job.api.stream and record.outcome is Outcome.OK and job.query.token_ids:
            engine.learner.observe(sample)
        self._check_hints(engine, job, record)

    def _check_hints(self, engine: Engine, job: _Job, record: Record) -> None:
        """A store's blocks are believed in until an engine that was to load them reports fewer."""
        match = job.route.predictions[engine.id].match
        reported = record.reported_cached_tokens
        if reported is not None and reported < match.total and match.shared > match.host:
            self._parts.index.refute_shared(engine.id, job.query, reported)

    async def _relay(self, job: _Job, reply: Reply, record: Record) -> None:
        headers = answer_headers(
            reply.headers,
            record.request_id,
            engine=_first(record.engine, EngineId("")),
            num_predicted=record.predicted_cached_tokens,
            policy=job.route.policy,
            degraded=record.degraded,
        )
        job.exchange.begin(reply.status, headers, reply.length)
        is_stream = any(k == b"content-type" and b"text/event-stream" in v for k, v in reply.headers)
        relay = Relay(job.exchange, self._parts.clock, is_stream)
        relay.attach(reply)
        try:
            whole = relay.done.result() if relay.done.done() else await relay.done
        finally:
            record.num_chunks = relay.num_chunks
            record.mean_gap_s, record.max_gap_s = relay.mean_gap_s, relay.max_gap_s
            record.num_body_bytes = job.exchange.num_body_bytes
        ended = Outcome.OK if reply.status < 400 else Outcome.ENGINE_ERROR
        record.ended(ended if whole else Outcome.BROKEN, reply.status)
        usage = find_usage(relay.tail.bytes()) if job.api.wants_usage and reply.status == 200 else None
        if usage is not None:
            record.num_output_tokens = usage.completion_tokens
            record.reported_cached_tokens = usage.cached_tokens


def _render(job: _Job, engine: Engine) -> bytes:
    """The head of the request as this engine gets it."""
    end = engine.pool.endpoint
    key = b"".join([b"%b: %b\r\n" % header for header in engine.auth])
    target = end.prefix + job.exchange.request.target
    return b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (target, end.host_header, key, job.head)


def _first(value: _T | None, default: _T) -> _T:
    return default if value is None else value
