"""Carries one decided request to an engine and its answer back, with fallbacks before the first byte.

Which failures are retried on the next engine, all of them before the first byte of the answer's body:
- no connection, or one that broke: the engine is UNHEALTHY from then on;
- no first byte in time: likewise;
- an answer of 502, 503 or 504: the engine said itself that it cannot serve this now. Its state is the probes'
  matter. The last such answer is passed through when no engine is left.
Everything else an engine answers, 4xx, 429 and 500 included, is the answer. A request that two engines failed
on after they had it is not given to a third: it may be what kills them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from anbar.adapters.http.message import Header
from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.server import Exchange
from anbar.adapters.http.upstream import ConnectFailed, NoDescriptor, Reply
from anbar.adapters.http.usage import find_usage
from anbar.adapters.http.usage_event import UsageFilter
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.headers import answer_headers
from anbar.apps.router.load import Plan
from anbar.apps.router.outgoing import ask, is_event_stream
from anbar.apps.router.record import FailedAttempt, Record
from anbar.apps.router.relay import Relay
from anbar.core.clock import Clock
from anbar.core.errors import UpstreamError, UpstreamTimeout
from anbar.core.fleet import Route
from anbar.core.outcome import AttemptFailed, AttemptFailure, Emit, Outcome
from anbar.core.request import RouteQuery

RETRIED_STATUSES = frozenset((502, 503, 504))
MAX_EXECUTIONS = 2
"""Engines that may have begun to work on one request."""

_ENGINES_FAULT = frozenset((AttemptFailure.UNREACHABLE, AttemptFailure.TIMEOUT))
"""Failures after which an engine gets nothing until a probe succeeds."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Job:
    """One request on its way to an engine."""

    exchange: Exchange
    api: ApiRequest
    query: RouteQuery
    route: Route
    head: bytes
    tokens_note: str
    explanation: Sequence[Header] = ()
    """What the client's answer carries beside the headers that all have."""


class _Unavailable(UpstreamError):
    """The engine answered 502, 503 or 504, and another one was ready when it was asked."""


class Forwarder:
    """Asks the engines of a route in order, and accounts for what came of it."""

    def __init__(self, fleet: Fleet, caches: Caches, emit: Emit, clock: Clock) -> None:
        self._fleet = fleet
        self._caches = caches
        self._emit = emit
        self._clock = clock

    async def forward(self, job: Job, record: Record) -> None:
        """Try the engines of the route in order until one answers; raises what the last one failed with."""
        failure = UpstreamError("no engine was tried")
        num_executions = 0
        engines = [self._fleet[engine] for engine in (job.route.target, *job.route.fallbacks)]
        for place, engine in enumerate(engines):
            if place > 0 and not engine.is_ready:
                continue
            record.num_attempts += 1
            has_next = any(other.is_ready for other in engines[place + 1 :])
            try:
                await self._try(job, engine, record, must_answer=not has_next)
            except UpstreamError as error:
                failure = error
                self._attempt_failed(engine, error, record)
                num_executions += not isinstance(error, ConnectFailed | NoDescriptor | _Unavailable)
                if num_executions >= MAX_EXECUTIONS:
                    break
            else:
                return
        raise failure

    def _attempt_failed(self, engine: Engine, error: UpstreamError, record: Record) -> None:
        match error:
            case _Unavailable():
                kind = AttemptFailure.UNAVAILABLE
            case NoDescriptor():
                kind = AttemptFailure.NO_DESCRIPTOR
            case UpstreamTimeout():
                kind = AttemptFailure.TIMEOUT
            case _:
                kind = AttemptFailure.UNREACHABLE
        self._emit(AttemptFailed(engine.id, kind, record.request_id))
        after_s = self._clock.now_s() - record.started_s
        record.failed.append(FailedAttempt(engine.id, kind, str(error), after_s))
        if kind in _ENGINES_FAULT:
            engine.health.connection_failed(str(error))

    async def _try(self, job: Job, engine: Engine, record: Record, must_answer: bool) -> None:
        """Ask one engine and carry its answer. Raises UpstreamError when the next one should be asked."""
        record.engine = engine.id
        prediction = job.route.predictions[engine.id]
        num_predicted = prediction.match.total
        record.predicted_cached_tokens = num_predicted
        record.predicted_ttft_s = prediction.ttft_s
        record.degraded = job.tokens_note or engine.degraded()
        sent_s = self._clock.now_s()
        plan = Plan(job.query.num_tokens, prediction, job.api.stream)
        with (
            engine.load.hold(plan, self._clock) as share,
            self._caches.sent(engine.id, job.query) as placement,
        ):
            reply, sieve = await ask(engine, job.exchange.request, job.api, job.head)
            try:
                if reply.status in RETRIED_STATUSES and not must_answer:
                    raise _Unavailable(f"engine {engine.id} answered {reply.status}")
                share.first_byte()
                self._caches.first_byte(engine.id, placement, reply.status)
                now_s = self._clock.now_s()
                record.ttft_s = now_s - record.started_s
                record.engine_ttft_s = now_s - sent_s
                await self._relay(job, reply, sieve, record)
            finally:
                reply.close()
        if job.api.stream and record.outcome is Outcome.OK and job.query.token_ids:
            engine.costs.observe(share.finished(_first(record.reported_cached_tokens, num_predicted)))
        self._check_hints(engine, job, record)

    def _check_hints(self, engine: Engine, job: Job, record: Record) -> None:
        """A store's blocks are believed in until an engine that was to load them reports fewer."""
        match = job.route.predictions[engine.id].match
        reported = record.reported_cached_tokens
        if reported is not None and reported < match.total and match.shared > match.host:
            self._caches.index.refute_shared(engine.id, job.query, reported)

    async def _relay(self, job: Job, reply: Reply, sieve: UsageFilter | None, record: Record) -> None:
        headers = answer_headers(reply.headers, record, job.explanation)
        job.exchange.begin(reply.status, headers, reply.length if sieve is None else None)
        relay = Relay(job.exchange, self._clock, is_event_stream(reply), sieve)
        relay.attach(reply)
        try:
            whole = relay.done.result() if relay.done.done() else await relay.done
        finally:
            record.num_chunks = relay.num_chunks
            record.mean_gap_s, record.max_gap_s = relay.mean_gap_s, relay.max_gap_s
            record.num_body_bytes = job.exchange.num_body_bytes
        ended = Outcome.OK if reply.status < 400 else Outcome.ENGINE_ERROR
        record.ended(ended if whole else Outcome.BROKEN, reply.status)
        usage = find_usage(relay.tail.bytes()) if reply.status == 200 else None
        if usage is not None:
            record.num_output_tokens = usage.completion_tokens
            record.reported_cached_tokens = usage.cached_tokens


def _first(value: _T | None, default: _T) -> _T:
    return default if value is None else value
