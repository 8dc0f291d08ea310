"""A router and its fleet in virtual time: the engine model behind policies, ours and others.

Arrivals are open loop. Blocks are of 512 tokens, as the trace has them. Ours is the real thing but for
HTTP: the policy's `decide`, the prefix index fed by the model's KV events, placements, the load's books and
the learned costs, which begin with the prior of a router that was told nothing. Other policies see the
engines' true state at the moment of the choice; where a router would poll it, that is a favour to them.
"""

import gzip
import heapq
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Protocol

from anbar.adapters.http.limits import UpstreamLimits
from anbar.adapters.http.upstream import UpstreamPool, parse_endpoint
from anbar.adapters.vllm.kv_events import KvStreamStatus
from anbar.adapters.vllm.reading import read_already
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.router.caches import Caches
from anbar.apps.router.engine import Engine, EngineFacts, Fleet, KvFollowing
from anbar.apps.router.health import Health
from anbar.apps.router.load import Plan, Share
from anbar.core.events import BlocksRemoved, BlocksStored, KvBatch, KvEvent, Tier
from anbar.core.ids import EngineHash, EngineId, RequestId
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.core.request import RouteQuery
from anbar.route import CostGroup, EngineProfile, Policy, PrefixIndex, Sight
from anbar.route.placements import Placement, Placements
from anbar.sim.engine.engine import Engine as EngineModel
from anbar.sim.engine.events import EngineEvent, Removed, Stored
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.shape import EngineShape

BLOCK = 512
CONTEXT = 131_072
MODEL = "m"
TRACE = Path(__file__).parent / "data" / "mooncake_conversation_4000.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a trace. `blocks` name the full blocks of its prompt, each with all before it."""

    number: int
    at_s: float
    num_prompt: int
    num_answer: int
    blocks: tuple[int, ...]

    def later(self, seconds: float) -> "Ask":
        """The same again, by somebody else."""
        return replace(self, number=self.number + 1_000_000, at_s=self.at_s + seconds)


@cache
def _rows() -> list[dict[str, Any]]:
    with gzip.open(TRACE, "rt") as lines:
        return [json.loads(line) for line in lines]


def trace(first: int, count: int, speed: float, *, shared: bool = True) -> list[Ask]:
    """`count` requests from the `first` on, `speed` times as fast. Not `shared`: no block is in two."""
    rows = _rows()[first : first + count]
    start_ms = rows[0]["timestamp"]
    asks = []
    for number, row in enumerate(rows):
        blocks = tuple(row["hash_ids"][: row["input_length"] // BLOCK])
        if not shared:
            blocks = tuple(number << 10 | place for place in range(len(blocks)))
        at_s = (row["timestamp"] - start_ms) / 1e3 / speed
        asks.append(Ask(number, at_s, row["input_length"], max(1, row["output_length"]), blocks))
    return _spread(asks)


def _spread(asks: Sequence[Ask]) -> list[Ask]:
    """The trace's times are rounded to 3 s: requests of one time are spread evenly up to the next."""
    times = sorted({ask.at_s for ask in asks})
    after = dict(
        zip(times, [*times[1:], times[-1] + (times[-1] - times[0]) / max(1, len(times) - 1)], strict=True)
    )
    of: dict[float, list[Ask]] = {}
    for ask in asks:
        of.setdefault(ask.at_s, []).append(ask)
    spread = []
    for at_s, group in of.items():
        gap_s = (after[at_s] - at_s) / len(group)
        for place, ask in enumerate(group):
            spread.append(Ask(ask.number, at_s + place * gap_s, ask.num_prompt, ask.num_answer, ask.blocks))
    return spread


def working_set(asks: Sequence[Ask]) -> int:
    """Distinct blocks."""
    return len({block for ask in asks for block in ask.blocks})


def pooled_hit_rate(asks: Sequence[Ask], capacity: int) -> float:
    """Share of prompt tokens that one LRU cache of `capacity` blocks for the whole fleet would hold."""
    return sum(pooled_hits(asks, capacity)) / sum(ask.num_prompt for ask in asks)


def pooled_hits(asks: Sequence[Ask], capacity: int) -> list[int]:
    """Tokens of each prompt that it would hold."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for ask in asks:
        usable = ask.blocks[: (ask.num_prompt - 1) // BLOCK]
        hits.append(BLOCK * leading(usable, held))
        for block in reversed(ask.blocks):  # as vLLM frees them: the beginning is used last
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
    return hits


class Holds(Protocol):
    def __contains__(self, block: object, /) -> bool: ...


def leading(blocks: Sequence[int], held: Holds) -> int:
    """How many of the first blocks are held."""
    return next((place for place, block in enumerate(blocks) if block not in held), len(blocks))


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
class Result:
    """What came of a run; one entry for each request."""

    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    num_cached: int = 0
    num_prompt: int = 0
    span_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        return self.num_cached / self.num_prompt

    def goodput(self, ttft_s: float, itl_s: float) -> float:
        """Requests a second that met both."""
        good = sum(a <= ttft_s and b <= itl_s for a, b in zip(self.ttft_s, self.itl_s, strict=True))
        return good / self.span_s


class _Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s


@dataclass
class _Running:
    ask: Ask
    worker: Worker
    share: Share
    placement: Placement
    sent: object
    uncached: int
    first_s: float | None = None


class _Keys:
    """Block keys of a request: the trace's, then its answer's own."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        blocks = self._ask.blocks
        more = range(len(blocks), num_blocks)
        return [*blocks[:num_blocks], *((self._ask.number, place) for place in more)]


class FleetSim:
    """`num_engines` engines of `num_blocks` usable blocks behind `chosen`. `run` once."""

    def __init__(self, num_engines: int, num_blocks: int, chosen: Policy | Chooser) -> None:
        self._clock = _Clock()
        self._chosen = chosen
        self._index = PrefixIndex()
        placements = Placements()
        group = CostGroup(PREFILL_PRIOR)
        self._workers = [self._worker(number, num_blocks, group) for number in range(num_engines)]
        self.fleet = Fleet([worker.engine for worker in self._workers])
        self._caches = Caches(self.fleet, self._index, placements, self._clock)
        for worker in self._workers:
            placements.attach(worker.engine.id, MODEL, BLOCK)
        self._of = {worker.engine.id: worker for worker in self._workers}
        self._ends: list[tuple[float, int]] = []
        self._busy: set[int] = set()
        self._running: dict[RequestId, _Running] = {}
        self._seqs = [0] * num_engines
        self._result = Result()
        self._until_s = math.inf

    def _worker(self, number: int, num_blocks: int, group: CostGroup) -> Worker:
        shape = EngineShape(
            block_size=BLOCK,
            num_blocks=num_blocks + 1,
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            max_model_len=CONTEXT,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        )
        health = Health(lambda before, after, reason: None)
        health.probe_succeeded()
        facts = EngineFacts(
            names=frozenset({MODEL}),
            root=MODEL,
            max_model_len=CONTEXT,
            block_size=BLOCK,
            kv_tokens=num_blocks * BLOCK,
        )
        name = EngineId(f"e{number}")
        pool = UpstreamPool(parse_endpoint("http://127.0.0.1:1"), UpstreamLimits())
        engine = Engine(name, "", pool, (), health, group.join(), facts=facts)
        engine.profile = EngineProfile(model=MODEL, block_size=BLOCK, fingerprint="f")
        self._index.attach(name, engine.profile)
        engine.kv = KvFollowing("sim", KvStreamStatus(complete=True))
        return Worker(EngineModel(shape, StepCost(H100_8B)), engine)

    def run(self, asks: Sequence[Ask]) -> Result:
        """To the end of the last answer."""
        arrivals = iter([*asks, None])
        ask = next(arrivals)
        while ask is not None or self._ends:
            at_s = ask.at_s if ask is not None else math.inf
            self._until_s = at_s
            if self._ends and self._ends[0][0] < at_s:
                self._clock.at_s, number = heapq.heappop(self._ends)
                self._finish(number)
                self._start(number)
                continue
            assert ask is not None, "else there is a step that ends"
            self._clock.at_s = at_s
            here, ask = ask, next(arrivals)
            self._until_s = ask.at_s if ask is not None else math.inf
            self._arrive(here)
        self._result.span_s = asks[-1].at_s - asks[0].at_s
        return self._result

    def _arrive(self, ask: Ask) -> None:
        tokens = _tokens(ask.blocks) + (0,) * (ask.num_prompt - BLOCK * len(ask.blocks))
        query = RouteQuery(
            RequestId(str(ask.number)), MODEL, tokens, ask.num_prompt, session=str(ask.blocks[1:2])
        )
        worker, plan = self._choose(ask, query)
        share = worker.engine.load.hold(plan, self._clock)
        share.__enter__()
        sent = self._caches.sent(worker.engine.id, query, read_already(query.token_ids))
        placement = sent.__enter__()
        uncached = max(1, ask.num_prompt - worker.overlap)
        worker.prefill_tokens += uncached
        worker.active_tokens += ask.num_prompt
        self._running[query.request_id] = _Running(ask, worker, share, placement, sent, uncached)
        worker.model.add(EngineRequest(query.request_id, ask.num_prompt, ask.num_answer, _Keys(ask)))
        number = self._workers.index(worker)
        if number not in self._busy:
            self._start(number)

    def _choose(self, ask: Ask, query: RouteQuery) -> tuple[Worker, Plan]:
        chosen = self._chosen
        names = [worker.engine.id for worker in self._workers]
        if not hasattr(chosen, "decide"):
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
        running = self._workers[number].model.start_step(self._clock.at_s, self._until_s)
        if running is None:
            self._busy.discard(number)
        else:
            self._busy.add(number)
            heapq.heappush(self._ends, (running.ends_s, number))

    def _finish(self, number: int) -> None:
        worker = self._workers[number]
        result = worker.model.finish_step()
        events = tuple(_events(result.events))
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

    def _first_token(self, running: _Running, request: EngineRequest) -> None:
        running.first_s = self._clock.at_s
        running.share.first_byte()
        self._caches.first_byte(running.worker.engine.id, running.placement, 200)
        running.worker.prefill_tokens -= running.uncached
        self._result.num_cached += request.num_cached_tokens
        self._result.num_prompt += running.ask.num_prompt

    def _over(self, running: _Running, request: EngineRequest) -> None:
        assert running.first_s is not None, "an answer has a first token"
        del self._running[request.id]
        engine = running.worker.engine
        engine.costs.observe(running.share.finished(request.num_cached_tokens))
        running.share.__exit__(None, None, None)
        running.sent.__exit__(None, None, None)  # type: ignore[attr-defined]
        running.worker.active_tokens -= running.ask.num_prompt
        self._result.ttft_s.append(running.first_s - running.ask.at_s)
        gaps = max(1, running.ask.num_answer - 1)
        self._result.itl_s.append((self._clock.at_s - running.first_s) / gaps)


def _events(events: Sequence[EngineEvent]) -> Iterator[KvEvent]:
    """As the router gets them; blocks of answers, which no prompt of the trace begins with, are left out."""
    for event in events:
        if isinstance(event, Stored):
            named = [key for key in event.keys if isinstance(key, int)]
            if named and not isinstance(event.parent, tuple):
                yield BlocksStored(
                    hashes=tuple(_hash(key) for key in named),
                    parent=None if event.parent is None else _hash(event.parent),
                    token_ids=_tokens(named),
                    block_size=BLOCK,
                    tier=Tier.DEVICE,
                    extra_keys=((),) * len(named),
                )
        elif isinstance(event, Removed):
            named = [key for key in event.keys if isinstance(key, int)]
            if named:
                yield BlocksRemoved(tuple(_hash(key) for key in named), Tier.DEVICE)


def _tokens(blocks: Sequence[int]) -> tuple[int, ...]:
    """Each block is its name, again and again."""
    return tuple(chain.from_iterable(map(repeat, blocks, repeat(BLOCK))))


def _hash(key: BlockKey) -> EngineHash:
    assert isinstance(key, int), "a block of the trace"
    return EngineHash(key.to_bytes(8, "big"))
