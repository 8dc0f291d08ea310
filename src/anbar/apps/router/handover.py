"""Prefill on one engine, decode on another: the first leg of a split request.

A prefill engine is chosen by the policy among those of that role and computes the prompt: one token, whose
text nobody reads. Its KV then gets to the engine that answers through the shared store, or from engine to
engine with vLLM's NIXL handshake. Whatever fails here costs time and no request: the engine that answers can
compute by itself. Retries, breakers, load and learned costs count as for any request.
"""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from anbar.adapters.http.fetch import whole_body
from anbar.adapters.http.message import Header, Request
from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.rewrite import with_member
from anbar.adapters.vllm.reading import Reading
from anbar.apps.router.attempt import Declined, Trial, Walk, kind_of, kind_of_status, pause_asked
from anbar.apps.router.caches import Caches, Matched, imprecise
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.load import Plan, Share
from anbar.apps.router.outgoing import OutOfTime, ask_plainly
from anbar.apps.router.record import FailedAttempt, Record
from anbar.apps.router.self_check import SelfCheck
from anbar.apps.router.split_bodies import (
    PARAMS,
    REMOTE_DECODE,
    STORE,
    PrefillAnswer,
    can_be_split,
    expecting,
    prefill_body,
    read_answer,
)
from anbar.apps.router.standing import Standing
from anbar.config.split import Role, SplitVia
from anbar.core.clock import Clock
from anbar.core.errors import NoEngine, RequestError, UpstreamError
from anbar.core.fleet import NO_PREDICTION, EngineView, Prediction, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import AttemptFailed, AttemptFailure, Emit, Outcome, PrefillEnded
from anbar.core.request import RouteQuery
from anbar.route import Policy, Sight
from anbar.route.admission import AdmissionConfig, seconds_to_wait
from anbar.route.breaker import Signal
from anbar.route.explain import note_decision
from anbar.route.retry_budget import RetryBudget
from anbar.route.split import Leg, SplitRule, SplitVerdict, gain_s, handed, judge

PREFILL_ENGINE = b"x-anbar-prefill-engine"

_NOT_REACHED = frozenset((AttemptFailure.UNREACHABLE, AttemptFailure.TIMEOUT))


@dataclass(frozen=True, slots=True)
class SplitSetup:
    """`router.split`, and what else of the configuration bears on it. May change while requests run."""

    via: SplitVia
    rule: SplitRule
    wait_ms: int
    policy: Policy
    admission: AdmissionConfig


@dataclass(frozen=True, slots=True)
class HandoverParts:
    """What the first leg works with."""

    fleet: Fleet
    caches: Caches
    check: SelfCheck
    standing: Standing
    budget: RetryBudget
    emit: Emit
    clock: Clock


class Wanted(msgspec.Struct, frozen=True):
    """A request that may be split."""

    request: Request
    api: ApiRequest
    query: RouteQuery
    reading: Reading
    head: bytes
    until_s: float
    tokens_note: str


class Handed(msgspec.Struct, frozen=True):
    """A prompt that was computed elsewhere."""

    request: Request
    """For the engine that answers."""
    again: Request
    """For the next one, if that fails: what an engine has fetched over NIXL is not there any more."""
    num_tokens: int
    num_cached: int | None
    """What its answer is predicted to report as cached; None: what the engine that answers is to find. Over
    NIXL vLLM reports what the prefill engine had."""
    header: Header
    """For the client: who computed its prompt."""


class Handover:
    """Decides on splits and carries out first legs."""

    def __init__(self, parts: HandoverParts, setup: SplitSetup) -> None:
        self._parts = parts
        self.setup = setup

    @property
    def is_on(self) -> bool:
        return self.setup.via is not SplitVia.NONE

    def answering(self, model: str, group: frozenset[EngineId]) -> frozenset[EngineId]:
        """The engines of `group` (empty: all) that answer requests to `model`: those for prefill only where
        nobody else can be asked."""
        serving = [e for e in self._parts.fleet.serving(model) if not group or e.id in group]
        others = [engine for engine in serving if engine.role is not Role.PREFILL]
        if len(others) == len(serving) or not any(map(self._parts.standing.may_ask, others)):
            return group
        return frozenset(engine.id for engine in others)

    def raised(self, matched: Matched, query: RouteQuery, num_tokens: int) -> Matched:
        """What the engines that may answer find of a prompt after it was handed over; the self-check is not
        to compare it with what events told."""
        found: dict[EngineId, PrefixMatch] = dict(matched.believed)
        for engine in self._parts.fleet.serving(query.model):
            if query.engines and engine.id not in query.engines:
                continue
            unit = engine.unit_tokens() if self.setup.via is SplitVia.SHARED else 1
            found[engine.id] = handed(found.get(engine.id, PrefixMatch()), num_tokens // unit * unit)
        return Matched(found, {})

    def with_last_resorts(self, route: Route, query: RouteQuery, group: frozenset[EngineId]) -> Route:
        """Engines for prefill answer, too, when all others fail."""
        known = {route.target, *route.fallbacks}
        serving = self._parts.fleet.serving(query.model)
        more = tuple(
            e.id for e in serving if e.is_ready and e.id not in known and (not group or e.id in group)
        )
        return replace(route, fallbacks=(*route.fallbacks, *more)) if more else route

    async def prepare(
        self, wanted: Wanted, route: Route, group: frozenset[EngineId], record: Record
    ) -> Handed | None:
        """Let a prefill engine compute the prompt if that is worth it; None: the engine that answers does.
        `route`: where the request would go. Raises nothing on account of an engine."""
        verdict, leg = self._decide(wanted, route, group)
        if leg is None:
            record.split = verdict.value
            return None
        record.prefill = leg.record
        verdict, answer = await self._compute(wanted, leg, record)
        record.split = verdict.value
        record.prefill_engine = leg.record.engine
        record.prefill_s = self._parts.clock.now_s() - leg.record.started_s
        self._parts.emit(PrefillEnded(leg.record.engine or EngineId(""), verdict.value, record.prefill_s))
        return self._handed(wanted, answer, record) if answer is not None else None

    def _handed(self, wanted: Wanted, answer: PrefillAnswer, record: Record) -> Handed:
        num_tokens = answer.num_tokens or wanted.query.num_tokens
        via_store = self.setup.via is SplitVia.SHARED
        params = expecting(num_tokens, self.setup.wait_ms) if via_store else answer.where or b"null"
        body = with_member(wanted.request.body, PARAMS, params)
        request = replace(wanted.request, body=body)
        num_cached = None if via_store or record.prefill is None else record.prefill.predicted_cached_tokens
        header = PREFILL_ENGINE, (record.prefill_engine or "").encode()
        return Handed(request, request if via_store else wanted.request, num_tokens, num_cached, header)

    def _decide(
        self, wanted: Wanted, route: Route, group: frozenset[EngineId]
    ) -> "tuple[SplitVerdict, _Leg | None]":
        if not can_be_split(wanted.api):
            return SplitVerdict.UNFIT, None
        rule, query = self.setup.rule, wanted.query
        unsplit = route.predictions.get(route.target, NO_PREDICTION)
        verdict = judge(rule, query, unsplit)
        if verdict is not SplitVerdict.SPLIT:
            return verdict, None
        answering = self._parts.fleet.get(route.target)
        if answering is not None and answering.role is Role.PREFILL:
            return SplitVerdict.NO_DECODE_ENGINE, None
        leg = self._leg(wanted, group)
        if leg is None:
            return SplitVerdict.NO_PREFILL_ENGINE, None
        predictions = leg.route.predictions
        if seconds_to_wait(self.setup.admission, leg.views, predictions):
            return SplitVerdict.PREFILL_BUSY, None
        if rule.min_gain_s is not None and self._gain_s(query, route, unsplit, leg) < rule.min_gain_s:
            return SplitVerdict.NO_GAIN, None
        return SplitVerdict.SPLIT, leg

    def _gain_s(self, query: RouteQuery, route: Route, unsplit: Prediction, leg: "_Leg") -> float:
        views = {view.id: view for view in leg.views}
        first = Leg(views[leg.route.target], leg.route.predictions[leg.route.target])
        match = handed(unsplit.match, query.num_tokens)
        return gain_s(query, Leg(views[route.target], unsplit), first, match)

    def _leg(self, wanted: Wanted, group: frozenset[EngineId]) -> "_Leg | None":
        """Choose among the prefill engines; None when none may be asked."""
        parts, policy = self._parts, self.setup.policy
        serving = parts.fleet.serving(wanted.query.model)
        named = frozenset(e.id for e in serving if e.role is Role.PREFILL and (not group or e.id in group))
        if not named:
            return None
        query = replace(wanted.query, engines=named)
        ready = [engine.id for engine in serving if engine.id in named and engine.is_ready]
        sees = policy.sight is not Sight.NOTHING and query.token_ids
        matched = parts.caches.match(query, ready, policy.sight) if sees else Matched()
        now_s = parts.clock.now_s()
        record = Record(request_id=query.request_id, endpoint="", started_s=now_s, decided_s=now_s)
        try:
            views = parts.standing.views(query.model, named)
            route = policy.decide(query, views, matched.believed)
        except (NoEngine, RequestError):
            return None
        degraded = {engine.id: imprecise(policy.sight, engine) for engine in parts.fleet}
        record.decision = note_decision(query, wanted.tokens_note, views, degraded, route)
        return _Leg(query, views, route, matched, record)

    async def _compute(
        self, wanted: Wanted, leg: "_Leg", record: Record
    ) -> tuple[SplitVerdict, PrefillAnswer | None]:
        """Ask prefill engines in order until one has computed the prompt."""
        parts = self._parts
        parts.budget.request(parts.clock.now_s())
        known = map(parts.fleet.get, (leg.route.target, *leg.route.fallbacks))
        walk = Walk([e for e in known if e is not None], parts.standing, parts.budget, parts.clock)
        body = prefill_body(wanted.request.body, wanted.api, self._prefill_params())
        engine: Engine | None = walk.first()
        while engine is not None:
            leg.record.engine = engine.id
            try:
                return await self._try(wanted, leg, engine, body)
            except UpstreamError as error:
                kind = kind_of(error)
                parts.emit(AttemptFailed(engine.id, kind, record.request_id))
                after_s = parts.clock.now_s() - record.started_s
                record.failed.append(FailedAttempt(engine.id, kind, f"prefill: {error}", after_s))
                engine = None if isinstance(error, OutOfTime) else walk.next(error)
        return SplitVerdict.PREFILL_FAILED, None

    def _prefill_params(self) -> bytes:
        return STORE if self.setup.via is SplitVia.SHARED else REMOTE_DECODE

    async def _try(
        self, wanted: Wanted, leg: "_Leg", engine: Engine, body: bytes
    ) -> tuple[SplitVerdict, PrefillAnswer | None]:
        parts = self._parts
        prediction = leg.route.predictions.get(engine.id, NO_PREDICTION)
        plan = Plan(leg.query.num_tokens, prediction)
        try:
            with (
                Trial(engine.breaker, parts.clock) as trial,
                engine.load.hold(plan, parts.clock) as share,
                parts.caches.sent(engine.id, leg.query, wanted.reading) as placement,
            ):
                left_s = wanted.until_s - parts.clock.now_s()
                reply = await ask_plainly(engine, wanted.request.target, wanted.head, body, left_s)
                try:
                    self._judge(engine, reply.status, pause_asked(reply.headers))
                    share.first_byte(reply.status)
                    parts.caches.first_byte(engine.id, placement, reply.status)
                    if reply.status != 200:
                        return SplitVerdict.PREFILL_REFUSED, None
                    answer = read_answer(await whole_body(reply))
                finally:
                    reply.close()
                trial.signal = Signal.OK
        except UpstreamError as error:
            if kind_of(error) in _NOT_REACHED and not isinstance(error, OutOfTime):
                engine.health.connection_failed(str(error))
            raise
        self._learn(leg, engine, share, prediction, answer)
        if self.setup.via is SplitVia.NIXL and answer.where is None:
            return SplitVerdict.NOT_HANDED_OVER, None
        return SplitVerdict.SPLIT, answer

    def _judge(self, engine: Engine, status: int, pause_s: float | None) -> None:
        """Raises Declined for an answer after which another engine may be asked."""
        kind = kind_of_status(status, pause_s) if status >= 400 else None
        if kind is AttemptFailure.BUSY and pause_s is not None:
            self._parts.standing.rest(engine, pause_s)
        if kind is not None:
            raise Declined(engine, status, kind)

    def _learn(
        self, leg: "_Leg", engine: Engine, share: Share, prediction: Prediction, answer: PrefillAnswer
    ) -> None:
        """The first leg is a prefill like any other: of costs and caches it tells more than a stream does."""
        record, match, reported = leg.record, prediction.match, answer.num_cached
        record.ended(Outcome.OK, 200)
        record.predicted_cached_tokens, record.reported_cached_tokens = match.total, reported
        record.num_prompt_tokens = answer.num_tokens or leg.query.num_tokens
        if leg.query.token_ids:
            num_cached = match.total if reported is None else reported
            engine.costs.observe(share.finished(num_cached, record.num_prompt_tokens))
        if reported is not None and reported < match.total and match.shared > match.host:
            self._parts.caches.index.refute_shared(engine.id, leg.query, reported)
        self._parts.check.answered(engine, leg.query, leg.matched.told.get(engine.id), record)


@dataclass(frozen=True, slots=True)
class _Leg:
    """The first leg as it was decided on."""

    query: RouteQuery
    views: list[EngineView]
    route: Route
    matched: Matched
    record: Record
    """Of its own: who computed, and what that engine said."""
