"""The life of a routed request.

parse → tokenize → match → decide → forward (`forward.py`) → one event.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from anbar.adapters.http.message import Answer, Header, error_answer
from anbar.adapters.http.openai import (
    ApiRequest,
    ClientKv,
    Endpoint,
    check_length,
    check_output_length,
    parse,
)
from anbar.adapters.http.server import Exchange
from anbar.apps.router.caches import Matched, imprecise
from anbar.apps.router.engine import Engine
from anbar.apps.router.explain import ExplainLog
from anbar.apps.router.failures import internal, no_engine, overloaded, stopped, upstream_failed
from anbar.apps.router.forward import Forwarder, ForwardParts, Job
from anbar.apps.router.handover import Handed, Handover, Wanted
from anbar.apps.router.headers import check_content_type, forwarded, id_headers, request_id
from anbar.apps.router.idempotency import REPLAYED, Claim, Idempotency
from anbar.apps.router.naming import Naming
from anbar.apps.router.prompts import NO_TOKENS, Tokens, is_beyond
from anbar.apps.router.record import Record
from anbar.apps.router.recorder import Recorder
from anbar.apps.router.sessions import session_of
from anbar.apps.router.tenancy import Tenancy
from anbar.apps.tasks import Tasks
from anbar.core.errors import NoEngine, RequestError, UpstreamError
from anbar.core.fleet import EngineState, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import Outcome, SupervisorCaught
from anbar.core.refusals import unknown_model
from anbar.core.request import RouteQuery
from anbar.route import Policy, Sight
from anbar.route.admission import AdmissionConfig, seconds_to_wait
from anbar.route.explain import note_decision
from anbar.route.match import may_grow

CLIENT_CLOSED = 499
"""The status in logs and metrics of a request whose client went away (nginx's number)."""
BYTES_PER_TOKEN = 4
"""To estimate the length of a prompt that the router cannot tokenize."""


@dataclass(frozen=True, slots=True)
class FlowParts(ForwardParts):
    """What a flow works with, its forwarder's parts among them."""

    policy: Policy
    client_kv: ClientKv
    explain: ExplainLog
    idempotency: Idempotency
    admission: AdmissionConfig
    total_timeout_s: float
    """For everything from a request's arrival to the last byte of its answer."""
    session_header: bytes
    """In small letters."""
    recorder: Recorder
    naming: Naming
    handover: Handover
    awaited: Callable[[], str] = str
    """Why it is not known yet which engines there are; "" when it is."""
    tenancy: Tenancy = field(default_factory=Tenancy)


class Audience(NamedTuple):
    """Who a request is for, and from whom."""

    serving: list[Engine]
    """Engines that serve its model, ready or not; at least one."""
    engines: frozenset[EngineId]
    """As in `RouteQuery`."""
    session: str
    num_body_bytes: int
    max_model_len: int
    """The longest context that one of `serving` has, in tokens; 0: none says."""


class Flow:
    """Runs each routed request in a task of its own, which ends when the client goes away."""

    def __init__(self, parts: FlowParts) -> None:
        self.parts = parts
        self._matched: tuple[RouteQuery | None, Matched] = None, Matched()
        self._forwarder = Forwarder(parts)
        self._tasks = Tasks()
        self._stopping = False

    def start(self, exchange: Exchange, endpoint: Endpoint) -> None:
        """Serve an exchange."""
        exchange.on_gone = self._tasks.start(self._supervise(exchange, endpoint)).cancel

    def retune(self, parts: FlowParts) -> None:
        """Go on with other parts, also while requests run; those that were sent end with the old ones."""
        self.parts, self._forwarder = parts, Forwarder(parts)

    async def stop(self) -> None:
        """Give up what still runs, and tell its clients; what comes from now on is refused."""
        self._stopping = True
        await self._tasks.give_up()

    async def _supervise(self, exchange: Exchange, endpoint: Endpoint) -> None:
        parts = self.parts
        record = Record(
            request_id=request_id(exchange.request.headers),
            endpoint=endpoint,
            started_s=parts.clock.now_s(),
        )
        ids: list[Header] = [*id_headers(record.request_id)]
        try:
            await self._serve(exchange, endpoint, record)
        except asyncio.CancelledError:
            if exchange.over:
                record.ended(Outcome.CLIENT_GONE, CLIENT_CLOSED)
            else:  # the router ends
                exchange.closing = True
                self._answer_failure(exchange, record, Outcome.BROKEN, stopped(ids))
        except RequestError as error:
            record.ended(Outcome.REFUSED, error.status)
            record.refusal = error.code or "other"
            exchange.answer(error_answer(error, ids))
        except NoEngine as error:
            ids += parts.explain.headers(exchange.request, record)
            self._answer_failure(exchange, record, Outcome.NO_ENGINE, no_engine(error, ids))
        except UpstreamError as error:
            ids += parts.explain.headers(exchange.request, record)
            self._answer_failure(exchange, record, Outcome.UPSTREAM_FAILED, upstream_failed(error, ids))
        except Exception as error:  # noqa: BLE001 - the supervisor of a request
            parts.emit(SupervisorCaught.of("request", error))
            self._answer_failure(exchange, record, Outcome.INTERNAL, internal(ids))
        finally:
            finished = record.finished(parts.clock.now_s())
            parts.emit(finished)
            parts.recorder.end(record, finished)

    @staticmethod
    def _answer_failure(exchange: Exchange, record: Record, outcome: Outcome, answer: Answer) -> None:
        record.ended(outcome, answer.status)
        if exchange.begun:
            exchange.cut()
        else:
            exchange.answer(answer)

    async def _serve(self, exchange: Exchange, endpoint: Endpoint, record: Record) -> None:
        parts = self.parts
        if self._stopping:
            raise asyncio.CancelledError
        tenants = parts.tenancy.table
        owner = b"" if tenants is None else tenants.of(exchange.request).tenant
        check_content_type(exchange.request)
        api = parse(endpoint, exchange.request.body, parts.client_kv)
        record.stream = api.stream
        claim = None if api.stream else await parts.idempotency.claim(exchange.request, owner)
        if claim is None:
            await self._route(exchange, self._owned(exchange, api, record), record)
        elif isinstance(claim, Answer):
            self._replay(exchange, claim, record)
        else:
            with claim:
                await self._route(exchange, self._owned(exchange, api, record), record, claim)

    def _owned(self, exchange: Exchange, api: ApiRequest, record: Record) -> ApiRequest:
        """The request as its tenant's, with the salt of this moment: it may have waited for a claim. Raises
        RequestError (403)."""
        tenants = self.parts.tenancy.table
        if tenants is None:
            return api
        member = tenants.of(exchange.request)
        record.scope = member.scope
        exchange.request, api = member.put_into(exchange.request, api)
        return api

    def _replay(self, exchange: Exchange, answer: Answer, record: Record) -> None:
        """Give the answer that the same request had."""
        record.replayed = True
        record.ended(Outcome.OK, answer.status)
        headers = (*answer.headers, REPLAYED, *id_headers(record.request_id))
        exchange.answer(Answer(answer.status, answer.body, headers))

    async def _route(
        self, exchange: Exchange, api: ApiRequest, record: Record, claim: Claim | None = None
    ) -> None:
        parts = self.parts
        session = session_of(exchange.request, api.body, parts.session_header)
        key = session or record.request_id
        asked = api.model
        exchange.request, api, group = parts.naming.resolved(exchange.request, api, key)
        splits = parts.handover.is_on
        able = parts.handover.answering(api.model, group) if splits else group
        serving = self._serving(api.model, able, asked)
        max_model_len = max([engine.facts.max_model_len for engine in serving])
        meant = Audience(serving, able, session, len(exchange.request.body), max_model_len)
        record.model = api.model
        if max_model_len:
            check_output_length(api, max_model_len)
        tokens, query = await self._read(api, meant, record)
        if query.token_ids and query.is_whole and max_model_len:
            check_length(api, len(query.token_ids), max_model_len)
        record.num_prompt_tokens = query.num_tokens
        record.pending = parts.recorder.begin(query, serving[0])
        route, matched = self._decide(query, api, tokens.note, record)
        head = forwarded(exchange.request, record.request_id)
        until_s = record.started_s + parts.total_timeout_s
        parts.budget.request(parts.clock.now_s())
        handed: Handed | None = None
        if splits:
            wanted = Wanted(exchange.request, api, query, tokens.reading, head, until_s, tokens.note)
            handed = await parts.handover.prepare(wanted, route, group, record)
            if handed is not None:
                exchange.request = handed.request
                query = replace(query, num_tokens=handed.num_tokens)  # the engine has counted them
                # All have gone, or asked for a pause: those of the first choice, if they come back.
                with suppress(NoEngine, RequestError):
                    route, matched = self._decide(query, api, tokens.note, record, handed)
            route = parts.handover.with_last_resorts(route, query, group)
        record.policy = route.policy
        explanation = parts.explain.headers(exchange.request, record)
        if handed is not None:
            explanation = (*explanation, handed.header)
        job = Job(
            exchange=exchange,
            api=api,
            query=query,
            reading=tokens.reading,
            route=route,
            told=matched.told,
            head=head,
            tokens_note=tokens.note,
            until_s=until_s,
            sight=parts.policy.sight,
            explanation=explanation,
            claim=claim,
            handed=handed,
        )
        await self._forwarder.forward(job, record)

    async def _read(self, api: ApiRequest, meant: Audience, record: Record) -> tuple[Tokens, RouteQuery]:
        """The prompt's tokens, as far as the policy looks at them: on from the first while some engine holds
        all that is known."""
        parts = self.parts
        if parts.policy.sight is Sight.NOTHING and not parts.recorder.needs_tokens:
            is_beyond(api, meant.max_model_len)
            return NO_TOKENS, self._query(record, api, NO_TOKENS, meant)
        before_s = parts.clock.now_s()
        whole = not self._is_told(meant.serving)
        tokens = await parts.prompts.tokens(api, meant.serving, meant.num_body_bytes, whole=whole)
        query = self._query(record, api, tokens, meant)
        while not query.is_whole and self._may_grow(query, api):
            tokens = await parts.prompts.more(tokens)
            query = self._query(record, api, tokens, meant)
        record.tokenize_s = parts.clock.now_s() - before_s
        return tokens, query

    def _is_told(self, serving: list[Engine]) -> bool:
        """Whether engines tell what they hold. If not, all of each prompt is needed, to compare later ones
        with it; so it is for the block log."""
        parts = self.parts
        if parts.policy.sight is not Sight.CACHES or parts.recorder.needs_tokens:
            return False
        return parts.caches.are_told(serving)

    def _may_grow(self, query: RouteQuery, api: ApiRequest) -> bool:
        fleet, num_tokens = self.parts.fleet, len(query.token_ids)
        return any(
            may_grow(match, num_tokens, fleet[engine].unit_tokens())
            for engine, match in self._match(query, api).believed.items()
        )

    def _serving(self, model: str, group: frozenset[EngineId], asked: str) -> list[Engine]:
        """`asked`: the name that the client sent."""
        fleet = self.parts.fleet
        serving = fleet.serving(model)
        if group:
            serving = [engine for engine in serving if engine.id in group]
        if serving:
            return serving
        if any(engine.health.state is EngineState.STARTING for engine in fleet):
            raise NoEngine(f"no engine that serves {asked[:200]!r} has started yet")
        if self.parts.awaited():
            raise NoEngine("it is not known yet which engines there are")
        raise unknown_model(asked)

    @staticmethod
    def _query(record: Record, api: ApiRequest, tokens: Tokens, meant: Audience) -> RouteQuery:
        return RouteQuery(
            request_id=record.request_id,
            model=api.model,
            token_ids=tokens.ids,
            num_tokens=tokens.reading.num_tokens or meant.num_body_bytes // BYTES_PER_TOKEN,
            lora=api.model if api.model in meant.serving[0].facts.adapters else None,
            cache_salt=api.cache_salt,
            session=meant.session,
            engines=meant.engines,
            is_whole=tokens.is_whole,
        )

    def _match(self, query: RouteQuery, api: ApiRequest) -> Matched:
        """What each engine holds of a prompt; of the last one the answer is at hand, for it is decided on
        without a pause."""
        if not query.token_ids or not api.reads_cache:
            return Matched()
        if self._matched[0] is not query:
            ready = [engine.id for engine in self.parts.fleet.engines if engine.is_ready]
            self._matched = query, self.parts.caches.match(query, ready, self.parts.policy.sight)
        return self._matched[1]

    def _decide(
        self,
        query: RouteQuery,
        api: ApiRequest,
        tokens_note: str,
        record: Record,
        handed: Handed | None = None,
    ) -> tuple[Route, Matched]:
        """Choose; `handed`: its prompt has been computed, so the request is taken on in any case."""
        parts = self.parts
        matched = self._match(query, api)
        if handed is not None:
            matched = parts.handover.raised(matched, query, handed.num_tokens)
        record.decided_s = parts.clock.now_s()
        views = parts.standing.views(query.model, query.engines)
        degraded = imprecise(parts.policy.sight, parts.fleet.engines)
        route = None
        try:
            route = parts.policy.decide(query, views, matched.believed)
        finally:  # also that nothing could serve it is to be explained
            record.decision = note_decision(query, tokens_note, views, degraded, route)
            if handed is None:
                parts.explain.add(record)
        refused_s = 0.0 if handed else seconds_to_wait(parts.admission, views, route.predictions)
        if refused_s:
            raise overloaded(refused_s)
        return route, matched
