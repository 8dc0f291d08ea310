"""Prefill on one engine, decode on another: the first leg of a split request.

A prefill engine is chosen by the policy among those of that role and computes the prompt: one token, whose
text nobody reads. Its KV then gets to the engine that answers through the shared store, or from engine to
engine with vLLM's NIXL handshake. Whatever fails here costs time and no request: the engine that answers can
compute by itself. Retries, breakers, load and learned costs count as for any request.
"""

import asyncio
import math
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from anbar.adapters.http.fetch import whole_body
from anbar.adapters.http.message import Header, Request
from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.rewrite import with_members
from anbar.adapters.vllm.reading import Reading
from anbar.apps.router.attempt import Declined, Trial, Walk, failure_of, noted, was_executed
from anbar.apps.router.caches import Caches, Matched, imprecise
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.load import Plan, Share
from anbar.apps.router.outgoing import ask_plainly
from anbar.apps.router.record import Record
from anbar.apps.router.self_check import SelfCheck
from anbar.apps.router.split_bodies import (
    PARAMS,
    PrefillAnswer,
    Wish,
    can_be_split,
    expecting,
    keeps_out,
    prefill_body,
    read_answer,
    remote_decode,
    storing,
)
from anbar.apps.router.standing import Standing
from anbar.config.split import Role, SplitVia
from anbar.core.clock import Clock
from anbar.core.errors import (
    NoEngine,
    RequestError,
    UpstreamBroken,
    UpstreamError,
    UpstreamStalled,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from anbar.core.fleet import NO_PREDICTION, EngineView, Prediction, PrefixMatch, Route
from anbar.core.ids import EngineId
from anbar.core.outcome import Emit, Outcome, PrefillEnded, RetryRefused
from anbar.core.request import RouteQuery
from anbar.route import Policy, Sight
from anbar.route.admission import AdmissionConfig, seconds_to_wait
from anbar.route.breaker import Signal
from anbar.route.explain import note_decision
from anbar.route.placements import Placement
from anbar.route.retry_budget import RetryBudget
from anbar.route.split import Leg, SplitRule, SplitVerdict, gain_s, handed, judge

PREFILL_ENGINE = b"x-anbar-prefill-engine"

MOST_OF_TIME = 0.5
"""Of what is left to a request, for one prefill engine: the engine that answers may have to begin anew."""


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
    unsplit: Route | None
    """What is predicted then; None: what was handed over is there for all."""
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
        verdict, answer = SplitVerdict.CANCELLED, None
        try:
            verdict, answer = await self._compute(wanted, leg, record)
        finally:
            record.split = verdict.value
            record.prefill_engine = leg.record.engine
            record.prefill_s = self._parts.clock.now_s() - leg.record.started_s
            self._parts.emit(PrefillEnded(leg.record.engine or EngineId(""), verdict.value, record.prefill_s))
        return self._handed(wanted, answer, route, record) if answer is not None else None

    def _handed(self, wanted: Wanted, answer: PrefillAnswer, route: Route, record: Record) -> Handed:
        num_tokens = answer.num_tokens or wanted.query.num_tokens
        via_store = self.setup.via is SplitVia.SHARED
        wish = wanted.api.wish
        params = expecting(num_tokens, self.setup.wait_ms, wish) if via_store else answer.fetching(wish)
        body = with_members(wanted.request.body, wanted.api.body, {PARAMS: params})
        request = replace(wanted.request, body=body)
        num_cached = None if via_store or record.prefill is None else record.prefill.predicted_cached_tokens
        return Handed(
            request=request,
            again=request if via_store else wanted.request,
            unsplit=None if via_store else route,
            num_tokens=num_tokens,
            num_cached=num_cached,
            header=(PREFILL_ENGINE, (record.prefill_engine or "").encode()),
        )

    def _decide(
        self, wanted: Wanted, route: Route, group: frozenset[EngineId]
    ) -> "tuple[SplitVerdict, _Leg | None]":
        if not can_be_split(wanted.api) or (self.setup.via is SplitVia.SHARED and keeps_out(wanted.api.wish)):
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
        degraded = imprecise(policy.sight, parts.fleet.engines)
        record.decision = note_decision(query, wanted.tokens_note, views, degraded, route)
        return _Leg(query, views, route, matched, record)

    async def _compute(
        self, wanted: Wanted, leg: "_Leg", record: Record
    ) -> tuple[SplitVerdict, PrefillAnswer | None]:
        """Ask prefill engines in order until one has computed the prompt, or one has failed that may have
        begun to: of the two that may, the other is the one that answers."""
        parts = self._parts
        known = map(parts.fleet.get, (leg.route.target, *leg.route.fallbacks))
        walk = Walk([e for e in known if e is not None], parts.standing, parts.budget, parts.clock)
        body = prefill_body(wanted.request.body, wanted.api, self._prefill_params(wanted.api.wish))
        engine: Engine | None = walk.first()
        while engine is not None and parts.clock.now_s() < wanted.until_s:
            leg.record.engine = engine.id
            try:
                return await self._try(wanted, leg, engine, body)
            except UpstreamError as error:
                parts.emit(noted(engine, error, record, parts.clock.now_s(), "prefill: "))
                record.num_executions += was_executed(error)
                engine = None if record.num_executions else walk.next(error)
                if walk.refused:
                    parts.emit(RetryRefused())
        return SplitVerdict.PREFILL_FAILED, None

    def _prefill_params(self, wish: Wish) -> bytes:
        return storing(wish) if self.setup.via is SplitVia.SHARED else remote_decode(wish)

    async def _try(
        self, wanted: Wanted, leg: "_Leg", engine: Engine, body: bytes
    ) -> tuple[SplitVerdict, PrefillAnswer | None]:
        parts = self._parts
        prediction = leg.route.predictions.get(engine.id, NO_PREDICTION)
        plan = Plan(leg.query.num_tokens, prediction)
        with (
            Trial(engine, parts.clock) as trial,
            engine.load.hold(plan, parts.clock) as share,
            parts.caches.sent(engine.id, leg.query, wanted.reading) as placement,
        ):
            left_s = wanted.until_s - parts.clock.now_s()
            try:
                async with asyncio.timeout(left_s * MOST_OF_TIME):
                    answer = await self._ask(wanted, engine, body, share, placement)
            except TimeoutError:
                share_of = f"{MOST_OF_TIME:.0%} of what was left of router.total_timeout_s"
                text = f"the engine took longer than {share_of}"
                raise UpstreamTimeout(text) from None
            except UpstreamStalled as error:
                raise UpstreamTimeout(str(error)) from error
            except UpstreamBroken as error:
                raise UpstreamUnreachable(str(error)) from error
            if answer is None:
                return SplitVerdict.PREFILL_REFUSED, None
            trial.signal = Signal.OK
        self._learn(leg, engine, share, prediction, answer)
        if self.setup.via is SplitVia.NIXL and answer.where is None:
            return SplitVerdict.NOT_HANDED_OVER, None
        return SplitVerdict.SPLIT, answer

    async def _ask(
        self, wanted: Wanted, engine: Engine, body: bytes, share: Share, placement: Placement
    ) -> PrefillAnswer | None:
        """One engine's answer; None: it refused the request. Raises UpstreamError and UpstreamBroken."""
        parts = self._parts
        reply = await ask_plainly(engine, wanted.request.target, wanted.head, body, math.inf)
        try:
            failure = failure_of(engine, reply, parts.standing)
            if failure is not None:
                raise Declined(engine, reply.status, failure)
            share.first_byte(reply.status)
            parts.caches.first_byte(engine.id, placement, reply.status)
            return read_answer(await whole_body(reply)) if reply.status == 200 else None
        finally:
            reply.close()

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
            finished = share.finished(num_cached, record.num_prompt_tokens)
            engine.costs.observe(replace(finished, answer_s=math.nan))  # one token: no answer's length
        self._parts.caches.compare(engine.id, leg.query, match, reported)
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
