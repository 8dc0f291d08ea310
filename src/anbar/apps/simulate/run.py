"""One run: a setup under a load, in virtual time.

    result = simulate(setup, load)

The router, its policy and its index are the real ones (`fleet.py`), engines and tiers are the engine model
(`anbar.sim.engine`), and what to store, load and refuse is decided by the classes that decide it in the
plugin. Not modelled: HTTP, tokenizing, admission by tenant, and retries.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from anbar.apps.router.load import Plan
from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.fleet import FleetSim, InFlight, Tiering
from anbar.apps.simulate.load import Load
from anbar.apps.simulate.recorder import Answered, Recorder
from anbar.apps.simulate.result import Result
from anbar.apps.simulate.setup import Incident, Mode, Setup, build_engines, node_id
from anbar.core.errors import ConfigError
from anbar.core.ids import EngineId, RequestId
from anbar.core.request import RouteQuery
from anbar.route import make_policy
from anbar.sim.engine.engine import Engine
from anbar.sim.engine.engine import Running as RunningStep
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import StoreFault
from anbar.tier.wish import Wish

Progress = Callable[[float, int], None]
"""Told the virtual time in seconds, and how many requests have been answered."""

_STRIDE_S = 0.02
"""Within which a request is seen that nobody knew of when a step began: between two steps of an answer."""
_SPLIT_WAIT_S = 5.0
"""How long the engine that answers waits for what is written for it."""


def simulate(setup: Setup, load: Load, progress: Progress | None = None) -> Result:
    """Run `load` on `setup` to the end of the last answer; equal arguments give equal results.

    Hit rates in the result are by tokens; what preempted requests get back is counted apart from prefix hits.
    `progress` is called at each sample of the result. Raises ConfigError: the deployment is impossible
    (weights do not fit, the longest request does not, a tier holds no chunk) or nothing is asked of it.
    """
    if not load.asks:
        raise ConfigError("workload: holds no requests")
    engines, store = build_engines(setup, load.longest)
    if setup.fleet.num_prefill and store is None:
        raise ConfigError("fleet.prefill_engines: KV goes through the shared store; allowed with mode shared")
    return _Simulation(setup, load, engines, store).result(progress)


@dataclass(slots=True)
class _Split:
    """A request whose prompt another engine computes."""

    asked: Ask
    engine: EngineId
    """Who answers."""
    num_cached: int = 0
    """Tokens that its first leg found."""


class _Simulation(FleetSim):
    """`result` once."""

    def __init__(self, setup: Setup, load: Load, engines: list[Engine], store: SharedTier | None) -> None:
        has_tiers = setup.cache.mode is not Mode.NONE
        tiering = Tiering(setup.chunk_blocks if has_tiers else 0, store is not None)
        super().__init__(engines, make_policy(setup.policy.value, Random(setup.seed)), tiering)
        self._load, self._store = load, store
        names = [worker.engine.id for worker in self._workers]
        self._prefilling = frozenset(names[: setup.fleet.num_prefill])
        self._answering = frozenset(names[setup.fleet.num_prefill :])
        self._least_uncached = 2 * setup.chunk_blocks * self._block_size
        """Tokens that the engine that answers must have to compute for a request to be split."""
        self._split: dict[int, _Split] = {}
        """By number of request."""
        self._recorder = Recorder(setup.slo, engines, load.asks)
        self._changes = _changes(setup.incidents, load.asks[0].at_s)
        self._front_seconds = setup.cost.front_seconds
        if len(engines) > 1:  # else whatever follows on an answer follows on a step's end
            self.stride_s = max(_STRIDE_S, 0.0 if self._prefilling else load.soonest_s)
        self._progress: Progress = lambda at_s, num_done: None

    def result(self, progress: Progress | None) -> Result:
        """Run, and tell."""
        if progress is not None:
            self._progress = progress
        self.run(self._load.asks)
        return self._recorder.result()

    def _pass_time(self, now_s: float) -> None:
        recorder = self._recorder
        if now_s >= recorder.next_s:
            recorder.look(now_s)
            self._progress(now_s, recorder.num_done)
        while self._changes and self._changes[0][0] <= now_s:
            assert self._store is not None, "incidents are of a store"
            _, _, node, fault = heapq.heappop(self._changes)
            if fault is None:
                self._store.faults.pop(node, None)
            else:
                self._store.faults[node] = fault
        super()._pass_time(now_s)

    def _unseen_s(self) -> float:
        return min(super()._unseen_s(), self._recorder.next_s)

    def _started(self, running: RunningStep) -> None:
        self._recorder.started(running, self._clock.at_s)

    def _query(self, ask: Ask) -> RouteQuery:
        query = super()._query(ask)
        if not self._prefilling:
            return query
        name = RequestId(f"{ask.number}.prefill") if ask.is_prefill else query.request_id
        able = self._prefilling if ask.is_prefill else self._answering
        return RouteQuery(
            name, query.model, query.token_ids, query.num_tokens, session=query.session, engines=able
        )

    def _request(self, ask: Ask, query: RouteQuery) -> EngineRequest:
        request = super()._request(ask, query)
        if ask.num_expected:
            request.wish = Wish(wait_s=_SPLIT_WAIT_S, expect_tokens=ask.num_expected)
        return request

    def _arrive(self, ask: Ask) -> None:
        if ask.num_expected:  # the second leg goes where it was decided that it would
            worker = self._of[self._split[ask.number].engine]
            self._send(ask, self._query(ask), worker, Plan(ask.num_prompt))
            return
        self._recorder.arrived(ask)
        query = self._query(ask)
        worker, plan = self._choose(ask, query)
        if self._prefilling and ask.num_prompt - plan.prediction.match.total >= self._least_uncached:
            self._split[ask.number] = _Split(ask, worker.engine.id)
            ask = replace(ask, is_prefill=True, num_answer=1, more=())
            query = self._query(ask)
            worker, plan = self._choose(ask, query)
        self._send(ask, query, worker, plan)

    def _first_token(self, running: InFlight, request: EngineRequest) -> None:
        super()._first_token(running, request)
        if running.ask.num_expected:
            self._recorder.transferred(request)
        else:
            self._recorder.reused(request)

    def _over(self, running: InFlight, request: EngineRequest) -> None:
        super()._over(running, request)
        self._refute(running, request)
        ask, now_s = running.ask, self._clock.at_s
        if ask.is_prefill:
            self._answer(ask, request, now_s)
            return
        split = self._split.pop(ask.number, None)
        asked, num_cached = (split.asked, split.num_cached) if split else (ask, request.num_cached_tokens)
        assert running.first_s is not None, "an answer has a first token"
        front_s = self._front_seconds(ask.num_prompt)
        self._recorder.answered(Answered(asked, running.first_s + front_s, now_s + front_s, num_cached))
        after = self._load.after(asked, now_s)
        if after is not None:
            self._expect(after)
            self._until_s = min(self._until_s, after.at_s)

    def _answer(self, ask: Ask, request: EngineRequest, now_s: float) -> None:
        """The first leg is over: the second one begins."""
        split = self._split[ask.number]
        split.num_cached = request.num_cached_tokens
        self._expect(replace(split.asked, at_s=now_s, num_expected=ask.num_prompt))
        self._until_s = now_s

    def _refute(self, running: InFlight, request: EngineRequest) -> None:
        """The router's belief in the store's blocks ends where an engine found fewer."""
        if self._store is None or running.ask.num_expected:
            return
        match = running.plan.prediction.match
        reported = request.num_cached_tokens
        self._caches.compare(running.worker.engine.id, running.query, match, reported)


_Change = tuple[float, int, str, StoreFault | None]
"""When, an order among equal times, which node, and what it has from then on; None: it works again."""


def _changes(incidents: tuple[Incident, ...], start_s: float) -> list[_Change]:
    """As a heap."""
    changes: list[_Change] = []
    for number, incident in enumerate(incidents):
        node = node_id(incident.node)
        fault = StoreFault(incident.kind, incident.delay_s)
        changes.append((start_s + incident.at_s, 2 * number, node, fault))
        if incident.until_s is not None:
            changes.append((start_s + incident.until_s, 2 * number + 1, node, None))
    heapq.heapify(changes)
    return changes
