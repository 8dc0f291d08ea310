"""A router and its fleet in virtual time: the engine model behind policies, ours and others.

Ours is the real thing but for HTTP: the policy's `decide`, the prefix index fed by the model's KV events,
placements, the load's books and the learned costs, which begin with the prior of a router that was told
nothing. Other policies see the engines' true state at the moment of the choice; where a router would poll it,
that is a favour to them.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import TypeIs

from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.upstream import UpstreamPool, parse_endpoint
from anbar.adapters.vllm.kv_events import KvStreamStatus
from anbar.adapters.vllm.reading import read_already
from anbar.apps.router.caches import Caches, Sent
from anbar.apps.router.engine import Engine, EngineFacts, Fleet, KvFollowing
from anbar.apps.router.health import Health
from anbar.apps.router.load import Plan, Share
from anbar.apps.simulate.ask import Ask, AskKeys
from anbar.apps.simulate.kv_events import STORE, kv_events, tokens
from anbar.core.events import KvBatch
from anbar.core.ids import EngineId, RequestId
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.core.request import RouteQuery
from anbar.route import CostGroup, EngineProfile, Policy, PrefixIndex, Sight
from anbar.route.placements import Placement, Placements
from anbar.sim.engine.engine import Engine as EngineModel
from anbar.sim.engine.engine import Running as RunningStep
from anbar.sim.engine.request import EngineRequest

MODEL = "m"


@dataclass
class Worker:
    """One engine as any router could see it, and the model behind it."""

    model: EngineModel
    engine: Engine
    overlap: int = 0
    """Tokens of the request at hand that its device holds, by its events."""
    prefill_tokens: int = 0
    """Of requests without a first token: what is not held."""
    active_tokens: int = 0
    """Prompts of requests that are not over."""

    @property
    def num_in_flight(self) -> int:
        return self.engine.load.num_in_flight


class Chooser(Protocol):
    """A foreign policy. `sight` tells what the fleet must look up for it."""

    name: str

    def choose(self, ask: Ask, workers: Sequence[Worker]) -> int:
        """The place of the worker that gets the request; the chooser remembers that it does."""
        ...


@dataclass
class RunLog:
    """What came of a run; one entry for each request, in the order in which they ended."""

    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    num_cached: int = 0
    num_prompt: int = 0
    span_s: float = 0.0
    """From the first arrival to the last."""

    @property
    def hit_rate(self) -> float:
        return self.num_cached / self.num_prompt

    def goodput(self, ttft_s: float, itl_s: float) -> float:
        """Requests a second that met both."""
        good = sum(a <= ttft_s and b <= itl_s for a, b in zip(self.ttft_s, self.itl_s, strict=True))
        return good / self.span_s


def _is_foreign(chosen: Policy | Chooser) -> TypeIs[Chooser]:
    return not hasattr(chosen, "decide")


class _Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


@dataclass
class InFlight:
    """A request at an engine."""

    ask: Ask
    query: RouteQuery
    worker: Worker
    plan: Plan
    share: Share
    placement: Placement
    sent: Sent
    uncached: int
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tiering:
    """What a router knows of tiers below the device."""

    chunk_blocks: int = 0
    """0: there are none."""
    has_store: bool = False


class FleetSim:
    """Equal engines behind `chosen`. `run` once."""

    stride_s = math.inf
    """Most steps that are taken at once never end later than so long after their beginning: what may arrive
    before is not known."""

    def __init__(
        self, models: Sequence[EngineModel], chosen: Policy | Chooser, tiering: Tiering | None = None
    ) -> None:
        self._clock = _Clock()
        self._chosen = chosen
        self._block_size = models[0].shape.block_size
        self._index = PrefixIndex()
        placements = Placements()
        group = CostGroup(PREFILL_PRIOR)
        self._workers = [
            self._worker(number, model, group, tiering or Tiering()) for number, model in enumerate(models)
        ]
        self.fleet = Fleet([worker.engine for worker in self._workers])
        self._caches = Caches(self.fleet, self._index, placements, self._clock)
        for worker in self._workers:
            placements.attach(worker.engine.id, MODEL, self._block_size)
        self._of = {worker.engine.id: worker for worker in self._workers}
        self._number_of = {worker.engine.id: number for number, worker in enumerate(self._workers)}
        self._ends: list[tuple[float, int]] = []
        self._arrivals: list[tuple[float, int, Ask]] = []
        self._num_asks = 0
        self._busy: set[int] = set()
        self._running: dict[RequestId, InFlight] = {}
        self._seqs = [0] * len(models)
        self._result = RunLog()
        self._until_s = math.inf

    def _worker(self, number: int, model: EngineModel, group: CostGroup, tiering: Tiering) -> Worker:
        shape = model.shape
        health = Health(lambda before, after, reason: None)
        health.probe_succeeded()
        facts = EngineFacts(
            names=frozenset({MODEL}),
            root=MODEL,
            max_model_len=shape.max_model_len,
            block_size=shape.block_size,
            kv_tokens=(shape.num_blocks - 1) * shape.block_size,
        )
        name = EngineId(f"e{number}")
        pool = UpstreamPool(parse_endpoint("http://127.0.0.1:1"), UpstreamLimits())
        engine = Engine(name, "", pool, (), health, group.join(), facts=facts)
        stores = frozenset({STORE}) if tiering.has_store else frozenset()
        engine.profile = EngineProfile(MODEL, shape.block_size, tiering.chunk_blocks, "f", stores)
        self._index.attach(name, engine.profile)
        engine.kv = KvFollowing("sim", status=KvStreamStatus(complete=True))
        return Worker(model, engine)

    def run(self, asks: Sequence[Ask]) -> RunLog:
        """To the end of the last answer."""
        for ask in asks:
            self._expect(ask)
        while self._arrivals or self._ends:
            at_s = self._arrivals[0][0] if self._arrivals else math.inf
            if self._ends and self._ends[0][0] < at_s:
                self._until_s = at_s
                end_s, number = heapq.heappop(self._ends)
                self._pass_time(end_s)
                self._finish(number)
                self._start(number)
                continue
            ask = heapq.heappop(self._arrivals)[-1]
            self._pass_time(at_s)
            self._until_s = self._arrivals[0][0] if self._arrivals else math.inf
            self._arrive(ask)
        self._result.span_s = asks[-1].at_s - asks[0].at_s
        return self._result

    def _expect(self, ask: Ask) -> None:
        """A request will arrive, not before now."""
        self._num_asks += 1
        heapq.heappush(self._arrivals, (ask.at_s, self._num_asks, ask))

    def _pass_time(self, now_s: float) -> None:
        """It is `now_s`, and nothing has happened since the last call."""
        self._clock.at_s = now_s

    def _query(self, ask: Ask) -> RouteQuery:
        size = self._block_size
        token_ids = tokens(ask.blocks, size) + (0,) * (ask.num_prompt - size * len(ask.blocks))
        session = ask.session or str(ask.blocks[1:2])
        return RouteQuery(RequestId(str(ask.number)), MODEL, token_ids, ask.num_prompt, session=session)

    def _request(self, ask: Ask, query: RouteQuery) -> EngineRequest:
        return EngineRequest(query.request_id, ask.num_prompt, ask.num_answer, AskKeys(ask))

    def _arrive(self, ask: Ask) -> None:
        query = self._query(ask)
        worker, plan = self._choose(ask, query)
        self._send(ask, query, worker, plan)

    def _send(self, ask: Ask, query: RouteQuery, worker: Worker, plan: Plan) -> None:
        share = worker.engine.load.hold(plan, self._clock)
        share.__enter__()
        sent = self._caches.sent(worker.engine.id, query, read_already(query.token_ids))
        placement = sent.__enter__()
        uncached = max(1, ask.num_prompt - worker.overlap)
        worker.prefill_tokens += uncached
        worker.active_tokens += ask.num_prompt
        self._running[query.request_id] = InFlight(ask, query, worker, plan, share, placement, sent, uncached)
        worker.model.add(self._request(ask, query))
        number = self._number_of[worker.engine.id]
        if number not in self._busy:
            self._start(number)

    def _choose(self, ask: Ask, query: RouteQuery) -> tuple[Worker, Plan]:
        chosen = self._chosen
        names = [worker.engine.id for worker in self._workers]
        if _is_foreign(chosen):
            for name, match in self._index.match(query, names, self._clock.at_s).items():
                self._of[name].overlap = match.device
            worker = self._workers[chosen.choose(ask, self._workers)]
            return worker, Plan(ask.num_prompt)
        looks = chosen.sight is not Sight.NOTHING
        matches = self._caches.match(query, names, chosen.sight).believed if looks else {}
        route = chosen.decide(query, self.fleet.views(self._clock.at_s), matches)
        worker = self._of[route.target]
        return worker, Plan(ask.num_prompt, route.predictions[route.target])

    def _start(self, number: int) -> None:
        now_s = self._clock.at_s
        until_s = min(self._until_s, now_s + self.stride_s)
        running = self._workers[number].model.start_step(now_s, until_s, self._unseen_s())
        if running is None:
            self._busy.discard(number)
        else:
            self._busy.add(number)
            heapq.heappush(self._ends, (running.ends_s, number))
            self._started(running)

    def _unseen_s(self) -> float:
        """Until when nobody looks at any engine. Not known where a request may come that nobody knows of."""
        return self._until_s if math.isinf(self.stride_s) else -math.inf

    def _started(self, running: RunningStep) -> None:
        """A step began."""

    def _finish(self, number: int) -> None:
        worker = self._workers[number]
        result = worker.model.finish_step()
        events = tuple(kv_events(result.events, self._block_size))
        if events:
            batch = KvBatch(self._seqs[number], events, self._clock.at_s)
            self._seqs[number] += 1
            self._index.apply(worker.engine.id, batch, self._clock.at_s)
            self._caches.taken_in(worker.engine.id)
        for output in result.outputs:
            running = self._running[output.request.id]
            if running.first_s is None:
                self._first_token(running, output.request)
            if output.finished:
                self._over(running, output.request)

    def _first_token(self, running: InFlight, request: EngineRequest) -> None:
        running.first_s = self._clock.at_s
        running.share.first_byte()
        self._caches.first_byte(running.worker.engine.id, running.placement, 200)
        running.worker.prefill_tokens -= running.uncached
        self._result.num_cached += request.num_cached_tokens
        self._result.num_prompt += running.ask.num_prompt

    def _over(self, running: InFlight, request: EngineRequest) -> None:
        assert running.first_s is not None, "an answer has a first token"
        del self._running[request.id]
        engine = running.worker.engine
        if not running.ask.num_expected:  # else its time holds a wait for somebody else's writes
            engine.costs.observe(running.share.finished(request.num_cached_tokens))
        running.share.__exit__(None, None, None)
        running.sent.__exit__(None, None, None)
        running.worker.active_tokens -= running.ask.num_prompt
        self._result.ttft_s.append(running.first_s - running.ask.at_s)
        gaps = max(1, running.ask.num_answer - 1)
        self._result.itl_s.append((self._clock.at_s - running.first_s) / gaps)
