"""Carries one decided request to an engine and its answer back, with fallbacks before the first byte.

What is retried on the next engine, all of it before the first byte of the answer's body and within the budget
(`route/retry_budget.py`):
- no connection, or one that broke: the engine is UNHEALTHY from then on;
- no first byte in time: likewise;
- an answer of 502, 503 or 504: the engine says itself that it cannot serve this now;
- 429, and 503 with Retry-After: the engine rests for so long;
- 500: nothing was delivered, and a completion has no effect but its cost.
Engines that breakers keep out are asked last. When no other engine can be asked, the engine's answer is the
client's, Retry-After included. Everything else that an engine answers, every other 4xx included, is
passed on. A request that two engines failed on after they had it is not given to a third: it may be what
kills them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from anbar.adapters.http.message import Header
from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.server import Exchange
from anbar.adapters.http.transcript import Transcript
from anbar.adapters.http.upstream import Reply
from anbar.adapters.http.usage import find_usage
from anbar.adapters.http.usage_event import UsageFilter
from anbar.adapters.vllm.reading import Reading
from anbar.apps.router.attempt import (
    SIGNALS,
    Declined,
    Interrupted,
    Trial,
    Walk,
    failure_of,
    noted,
)
from anbar.apps.router.caches import Caches, degraded
from anbar.apps.router.continuation import Rest, is_continuable, rest_of
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.handover import Handed
from anbar.apps.router.headers import answer_headers
from anbar.apps.router.idempotency import Claim, kept_headers
from anbar.apps.router.load import Plan, by_reported_times
from anbar.apps.router.outgoing import OutOfTime, ask, ask_for_rest, is_event_stream
from anbar.apps.router.prompts import Prompts
from anbar.apps.router.record import Record
from anbar.apps.router.relay import Relay
from anbar.apps.router.self_check import SelfCheck
from anbar.apps.router.standing import Standing
from anbar.core.clock import Clock
from anbar.core.errors import RouterStopped, UpstreamBroken, UpstreamError
from anbar.core.fleet import NO_PREDICTION, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailure, Emit, Outcome, RetryRefused
from anbar.core.request import RouteQuery
from anbar.route import Sight
from anbar.route.breaker import Signal, Ticket
from anbar.route.retry_budget import RetryBudget

_T = TypeVar("_T")


class Job(msgspec.Struct, frozen=True):
    """One request on its way to an engine."""

    exchange: Exchange
    api: ApiRequest
    query: RouteQuery
    reading: Reading
    """Of the prompt's tokens, as far as they were needed."""
    route: Route
    told: Mapping[EngineId, PrefixMatch]
    """By engine: what its events told of its cache when the route was decided."""
    head: bytes
    tokens_note: str
    until_s: float
    """When it must be over, on the router's clock."""
    sight: Sight
    explanation: Sequence[Header] = ()
    """What the client's answer carries beside the headers that all have."""
    claim: Claim | None = None
    """Where a good answer is kept for repetitions."""
    handed: Handed | None = None
    """Its prompt was computed by another engine: what the one that answers reports of its cache and takes to
    begin says nothing of either."""


@dataclass(frozen=True, slots=True)
class ForwardParts:
    """What a forwarder works with."""

    fleet: Fleet
    caches: Caches
    check: SelfCheck
    emit: Emit
    clock: Clock
    standing: Standing
    budget: RetryBudget
    prompts: Prompts
    continues: bool
    """Whether streams that break off are gone on with."""


class Forwarder:
    """Asks the engines of a route in order, and accounts for what came of it."""

    def __init__(self, parts: ForwardParts) -> None:
        self._fleet = parts.fleet
        self._caches = parts.caches
        self._check = parts.check
        self._emit = parts.emit
        self._clock = parts.clock
        self._standing = parts.standing
        self._budget = parts.budget
        self._prompts = parts.prompts
        self._continues = parts.continues

    async def forward(self, job: Job, record: Record) -> None:
        """Try the engines of the route in order until one answers; raises what the last one failed with."""
        known = map(self._fleet.get, (job.route.target, *job.route.fallbacks))
        engines = [engine for engine in known if engine is not None]
        engines += self._standing.last_resorts(job.query, engines)
        walk = Walk(engines, self._standing, self._budget, self._clock, record.num_executions)
        engine: Engine | None = walk.first()
        while engine is not None:
            record.asks(engine.id)
            try:
                with Trial(engine, self._clock) as trial:
                    trial.signal = await self._ask(job, engine, record, walk, trial.ticket)
                return
            except Interrupted as broken:
                self._note(engine, broken, record)
                await self._go_on(job, walk, broken, record)
                return
            except UpstreamError as error:
                self._note(engine, error, record)
                is_over = isinstance(error, OutOfTime) or self._clock.now_s() >= job.until_s
                engine = None if is_over else walk.next(error)
                if engine is None:
                    raise
                job = _for_the_next(job)
            finally:
                if walk.refused:
                    self._emit(RetryRefused())

    async def _go_on(self, job: Job, walk: Walk, broken: Interrupted, record: Record) -> None:
        """Let another engine go on with a stream; if that is not possible, tell the client that it broke."""
        engine: Engine | None = None
        try:
            rest = await self._rest(job, broken.relay) if walk.has_more else None
            if rest is not None:
                engine = walk.next(broken)  # not before: an engine may leave while the rest is tokenized
            if rest is not None and engine is not None:
                await self._append(job, engine, record, rest, broken.relay)
        except UpstreamError as error:
            if engine is not None:
                self._note(engine, error, record)
        finally:
            broken.relay.give_up()

    async def _rest(self, job: Job, broken: Relay) -> Rest | None:
        """What is to be asked for after a stream that broke; None if nothing can be."""
        if broken.transcript is None:
            return None
        ids = job.query.token_ids if job.query.is_whole else ()
        serving = self._fleet.serving(job.api.model)
        return await rest_of(job.api, broken.transcript, ids, self._prompts, serving)

    async def _append(self, job: Job, engine: Engine, record: Record, rest: Rest, broken: Relay) -> None:
        record.asks(engine.id)
        plan = Plan(rest.num_tokens)
        with Trial(engine, self._clock) as trial, engine.load.hold(plan, self._clock) as share:
            reply = await ask_for_rest(engine, job.head, rest.body, job.until_s - self._clock.now_s())
            try:
                if reply.status != 200:
                    raise Declined(engine, reply.status, AttemptFailure.UNAVAILABLE)
                share.first_byte()
                broken.error = None
                relay = Relay(job.exchange, self._clock, True, rest.splicer)
                relay.attach(reply)
                whole = await self._whole(job, relay)
            finally:
                reply.close()
            trial.signal = Signal.OK if whole else relay.signal
        record.engine, record.continued = engine.id, True
        record.num_chunks += relay.pace.told().num_chunks
        record.ended(Outcome.OK if whole else Outcome.BROKEN, 200)
        record.broken = relay.why
        usage = find_usage(relay.tail.bytes())
        record.num_output_tokens = rest.num_before + (usage.completion_tokens if usage is not None else 0)

    def _note(self, engine: Engine, error: UpstreamError, record: Record) -> None:
        self._emit(noted(engine, error, record, self._clock.now_s()))

    async def _ask(self, job: Job, engine: Engine, record: Record, walk: Walk, ticket: Ticket) -> Signal:
        """Ask one engine and carry its answer; returns what that says of the engine. Raises UpstreamError
        when the next one may be asked."""
        record.engine = engine.id
        prediction = job.route.predictions.get(engine.id, NO_PREDICTION)
        num_predicted = prediction.match.total
        record.predicted_cached_tokens = num_predicted if job.query.token_ids else None
        if job.handed is not None and job.handed.num_cached is not None:
            record.predicted_cached_tokens = job.handed.num_cached
        record.predicted_ttft_s = prediction.ttft_s
        record.degraded = degraded(job.sight, job.tokens_note, engine)
        sent_s = self._clock.now_s()
        plan = Plan(job.query.num_tokens, prediction, job.api.stream)
        with (
            engine.load.hold(plan, self._clock) as share,
            self._caches.sent(engine.id, job.query, job.reading) as placement,
        ):
            reply, sieve = await ask(engine, job.exchange.request, job.api, job.head, job.until_s - sent_s)
            try:
                failure = failure_of(engine, reply, self._standing)
                if failure is not None and walk.goes_on(failure):
                    raise Declined(engine, reply.status, failure)
                share.first_byte(reply.status)
                self._caches.first_byte(engine.id, placement, reply.status)
                now_s = self._clock.now_s()
                record.ttft_s = now_s - record.started_s
                record.engine_ttft_s = now_s - sent_s
                if reply.status < 400:
                    engine.breaker.first_byte(ticket)
                broken = await self._relay(job, reply, sieve, record)
            finally:
                reply.close()
        if record.outcome is not Outcome.OK:
            return broken if failure is None else SIGNALS[failure]
        if job.handed is not None:
            return Signal.OK
        now_s = self._clock.now_s()
        tells_time = job.api.stream or record.reported_ttft_s is not None
        if job.query.token_ids and tells_time and engine.costs.is_due(now_s):
            num_cached = _first(record.reported_cached_tokens, num_predicted)
            seen = share.finished(num_cached, record.num_prompt_tokens)
            since_s = now_s - sent_s
            known = seen if job.api.stream else by_reported_times(seen, record, since_s)
            if known is not None:
                engine.costs.observe(known)
        self._caches.compare(engine.id, job.query, prediction.match, record.reported_cached_tokens)
        self._check.answered(engine, job.query, job.told.get(engine.id), record)
        return Signal.OK

    async def _relay(self, job: Job, reply: Reply, sieve: UsageFilter | None, record: Record) -> Signal:
        """Carry the answer; returns what its end says about the engine, if it is bad."""
        headers = answer_headers(reply.headers, record, job.explanation)
        job.exchange.begin(reply.status, headers, reply.length if sieve is None else None)
        relay = Relay(job.exchange, self._clock, is_event_stream(reply), sieve)
        relay.copy = job.claim
        if self._continues and reply.status == 200 and is_continuable(job.api):
            relay.transcript = Transcript()
        relay.attach(reply)
        try:
            whole = relay.done.result() if relay.done.done() else await self._whole(job, relay)
        except asyncio.CancelledError:
            if job.exchange.over:
                raise
            whole = False  # the client is there: the router ends
            relay.broke(RouterStopped(), Signal.NOTHING)
        finally:
            gaps = relay.pace.told()
            record.num_chunks, record.gap_counts, record.mean_gap_s, record.max_gap_s = gaps
            record.num_body_bytes = job.exchange.num_body_bytes
        if whole and job.claim is not None and reply.status < 300:
            job.claim.keep(reply.status, kept_headers(reply.headers))
        ended = Outcome.OK if reply.status < 400 else Outcome.ENGINE_ERROR
        record.ended(ended if whole else Outcome.BROKEN, reply.status)
        record.broken = relay.why
        if reply.status == 200:
            record.reported(relay.tail.bytes(), is_estimated=not job.query.is_whole)
        if relay.error is not None:
            raise Interrupted(relay)
        return Signal.NOTHING if whole else relay.signal

    async def _whole(self, job: Job, relay: Relay) -> bool:
        try:
            async with asyncio.timeout(max(0.0, job.until_s - self._clock.now_s())):
                return await relay.done
        except TimeoutError:
            relay.broke(UpstreamBroken("the answer took longer than router.total_timeout_s"), Signal.NOTHING)
            return False


def _for_the_next(job: Job) -> Job:
    """What the next engine gets: what one has fetched over NIXL is not there for another, which finds of the
    prompt what it would have found without a split."""
    handed = job.handed
    if handed is None:
        return job
    job.exchange.request = handed.again
    return job if handed.unsplit is None else replace(job, handed=None, route=handed.unsplit)


def _first(value: _T | None, default: _T) -> _T:
    return default if value is None else value
