"""Random requests for engine tests: few tokens in many combinations, so that prefixes are shared."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.core.cost import CopyCost, EngineCost, PrefillCost, TierCost, TokenCurve
from anbar.core.events import Tier
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.events import Cleared, EngineEvent, Removed, Stored, TierRemoved, TierStored
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.shape import EngineShape, HostShape, Offload
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.step import Output
from anbar.sim.engine.store import SharedCost
from anbar.tier.wish import DEFAULT, Storing, Wish

BLOCK = 4
"""Tokens per block."""
COST = StepCost(
    EngineCost(
        TokenCurve(((1, 0.5), (64, 2.0))),
        prefill_s_per_token2=2**-16,
        decode_s_per_kv_byte=2**-12,
        load=CopyCost(0.25, 0.125, 2**-10),
        store=CopyCost(0.25, 0.125, 2**-10),
        copy_delay=0.5,
    )
)


class TokenKeys:
    """Keys as vLLM makes them: of a block's tokens, the block before, and a salt."""

    def __init__(self, tokens: Sequence[int], salt: int = 0, block_size: int = BLOCK) -> None:
        self._tokens = tokens
        self._block_size = block_size
        self._keys: list[int] = []
        self._salt = salt

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        assert num_blocks * self._block_size <= len(self._tokens), "tokens that nobody can know"
        while len(self._keys) < num_blocks:
            start = len(self._keys) * self._block_size
            parent = self._keys[-1] if self._keys else self._salt
            self._keys.append(hash((parent, *self._tokens[start : start + self._block_size])))
        return self._keys[:num_blocks]


@dataclass(frozen=True)
class Ask:
    """A request that arrives before a step and, perhaps, is aborted before another or amid it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    salt: int = 0
    arrives: int = 0
    aborts: int | None = None
    aborts_amid: bool = False
    reads_cache: bool = True
    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    loads_shared: bool = True
    wish: Wish = DEFAULT

    def request(self, name: str) -> EngineRequest:
        return EngineRequest(
            RequestId(name),
            len(self.prompt),
            len(self.answer),
            TokenKeys(self.prompt + self.answer, self.salt),
            reads_cache=self.reads_cache,
            max_load_tokens=self.max_load_tokens,
            max_offload_tokens=self.max_offload_tokens,
            loads_shared=self.loads_shared,
            wish=self.wish,
        )


@dataclass(frozen=True)
class Workload:
    """An engine and what it is asked."""

    shape: EngineShape
    asks: tuple[Ask, ...]
    host: HostShape | None = None
    store: tuple[int, SharedCost] | None = None
    """Chunks and cost of a shared tier behind the host's."""

    def tiers(self) -> Tiers:
        """With an empty store."""
        return Tiers(self.host, SharedTier(*self.store) if self.store is not None else None)


_FAMILIES = [tuple((7 * family + i) % 3 + 10 * family for i in range(80)) for family in range(3)]


def random_ask(rng: random.Random, max_tokens: int) -> Ask:
    """Prompt and answer follow one of few token sequences for a while, then go their own way."""
    total = rng.randint(2, max_tokens)
    num_prompt = rng.randint(1, total - 1)
    common = rng.choice((0, total, rng.randint(0, total)))
    tokens = rng.choice(_FAMILIES)[:common] + (1000 + rng.randrange(4),) * (total - common)
    return Ask(
        tokens[:num_prompt],
        tokens[num_prompt:],
        salt=rng.choice((0, 0, 0, 1)),
        arrives=rng.choice((0, rng.randint(0, 40))),
        aborts=rng.choice((None, None, None, rng.randint(0, 60))),
        aborts_amid=rng.random() < 0.5,
        reads_cache=rng.random() < 0.9,
        max_load_tokens=rng.choice((None, None, None, 0, 6, 20)),
        max_offload_tokens=rng.choice((None, None, None, 0, 7, 24)),
        loads_shared=rng.random() < 0.9,
        wish=Wish(
            scope=rng.choice(("", "", "", "red")),
            storing=rng.choice((Storing.AUTO, Storing.AUTO, Storing.AUTO, Storing.NEVER)),
            wait_s=rng.choice((None, None, None, 0.0, 5.0)),
            prefill=rng.choice((None, PrefillCost(0.01), PrefillCost(0.3))),
        ),
    )


class Below(Enum):
    """The tiers below the device."""

    NONE = "none"
    HOST = "host"
    SHARED = "shared"
    """Host and shared."""


def random_workload(seed: int, num_requests: int, below: Below) -> Workload:
    """Small pools: most workloads preempt and evict."""
    rng = random.Random(seed)
    num_blocks = rng.randint(6, 20)
    max_tokens = rng.randint((num_blocks - 1) * BLOCK // 2, (num_blocks - 1) * BLOCK)
    shape = EngineShape(
        block_size=BLOCK,
        num_blocks=num_blocks,
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(6, 40),
        max_model_len=max_tokens,
        prefix_caching=rng.random() < 0.8,
        watermark=rng.choice((0.0, 0.0, 0.2)),
        reserve_full_prompt=rng.random() < 0.7,
        kv_bytes_per_token=8,
    )
    host = HostShape(rng.randint(1, 25), rng.choice((1, 1, 2, 3)), rng.choice((Offload.ALL, Offload.PROMPT)))
    asks = tuple(random_ask(rng, max_tokens) for _ in range(num_requests))
    cost = SharedCost(
        rng.choice((0.0, 0.7003, 3.0003)),
        TierCost(rng.choice((0.0, 1.50037)), 1001.7),
        TierCost(rng.choice((0.0, 1.50037)), 1001.7),
        timeout_s=rng.choice((1.0, 100.0)),
    )
    store = (rng.randint(1, 60), cost)
    if below is Below.NONE:
        return Workload(shape, asks)
    return Workload(shape, asks, host, store if below is Below.SHARED else None)


@dataclass
class Caches:
    """What a listener to the events believes is cached."""

    device: dict[BlockKey, int] = field(default_factory=dict)
    """Blocks by key."""
    below: dict[Tier, set[BlockKey]] = field(default_factory=lambda: {Tier.HOST: set(), Tier.SHARED: set()})

    def hear(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            match event:
                case Stored(request, first, keys, parent):
                    before = request.keys.first(first + len(keys))
                    assert tuple(before[first:]) == keys
                    assert parent == (before[first - 1] if first else None)
                    for key in keys:
                        self.device[key] = self.device.get(key, 0) + 1
                case Removed((key,)):
                    self.device[key] -= 1
                case TierStored(keys, tier):
                    assert tier is Tier.SHARED or self.below[tier].isdisjoint(keys), "announced twice"
                    self.below[tier].update(keys)
                case TierRemoved(keys, tier):
                    assert tier is Tier.SHARED or self.below[tier].issuperset(keys), "was never announced"
                    self.below[tier].difference_update(keys)
                case Cleared():
                    self.device.clear()


@dataclass
class Served:
    """What became of a workload."""

    outputs: list[tuple[float, list[tuple[str, int, bool]]]] = field(default_factory=list)
    """Request, number of tokens and whether it is over, with the time."""
    batches: list[tuple[float, str]] = field(default_factory=list)
    """Published batches with their time."""
    ended_s: float = 0.0
    requests: list[EngineRequest] = field(default_factory=list)


def serve(workload: Workload, *, strides: bool = False, checked: bool = True) -> tuple[Engine, Served]:
    """Serve a workload to its end; integrity is checked whenever the engine has changed."""
    engine = Engine(workload.shape, COST, workload.tiers())
    served = Served(requests=[ask.request(f"r{i}") for i, ask in enumerate(workload.asks)])
    heard = Caches()
    now_s, number = 0.0, 0
    last = max(max(ask.arrives, ask.aborts or 0) for ask in workload.asks)
    while True:
        for ask, request in zip(workload.asks, served.requests, strict=True):
            if ask.arrives == number:
                engine.add(request)
            if ask.aborts == number and not ask.aborts_amid:
                engine.abort(request.id)
        running = engine.start_step(now_s, until_s=float("inf") if strides and number > last else now_s)
        if running is None:
            if number > last:
                break
            number += 1
            continue
        for ask, request in zip(workload.asks, served.requests, strict=True):
            if ask.aborts == number and ask.aborts_amid:
                engine.abort(request.id)
        if checked:
            engine.check_integrity()
        now_s = running.ends_s
        number += running.step.num_repeats
        result = engine.finish_step()
        assert number < 20_000, "no end"
        if result.outputs:
            served.outputs.append((round(now_s, 6), [_plain(output) for output in result.outputs]))
        if result.events:
            served.batches.append((round(now_s, 6), _text(result.events)))
        heard.hear(result.events)
        if checked:
            engine.check_integrity()
            _check_heard(engine, heard)
    served.ended_s = now_s
    return engine, served


def _check_heard(engine: Engine, heard: Caches) -> None:
    """Who hears all events knows what is cached. Blocks that a step caches are announced when it ends."""
    cached: dict[BlockKey, int] = {}
    for key in engine.pool.contents():
        if key is not None:
            cached[key] = cached.get(key, 0) + 1
    assert cached == {key: count for key, count in heard.device.items() if count}
    if engine.connector is not None:
        assert heard.below[Tier.HOST] <= set(engine.connector.host.keys())


def _plain(output: Output) -> tuple[str, int, bool]:
    return output.request.id, output.num_tokens, output.finished


def _text(events: Sequence[EngineEvent]) -> str:
    """Events as comparable text: a request by its id."""
    parts = []
    for event in events:
        match event:
            case Stored(request, first, keys, parent):
                parts.append(f"Stored {request.id} {first} {keys} {parent}")
            case _:
                parts.append(repr(event))
    return "\n".join(parts)
