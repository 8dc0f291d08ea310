"""What is simulated: a deployment with its caches, and what happens to it. Values, ready to be run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from anbar.config.models import PolicyName
from anbar.config.problems import KeyPath, dotted
from anbar.core.cost import EngineCost, TierCost
from anbar.core.errors import ConfigError
from anbar.plan.deployment import Deployment, Impossible
from anbar.plan.media import medium_named
from anbar.plan.step_cost import step_cost
from anbar.sim.engine.chunks import ChunkTable
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.shape import EngineShape, HostShape, Offload
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import SharedCost, StoreFaultKind, StorePart, StoreParts
from anbar.tier.placement import Rendezvous

_CALLS = 2
"""That an engine has under way on the store; together they fill its link."""
_DEADLINE_S = 5.0
_UNBOUNDED_CHUNKS = 1 << 40


class Mode(StrEnum):
    """Where KV may go when it leaves the device."""

    NONE = "none"
    NATIVE = "native"
    """Host RAM of each engine."""
    SHARED = "shared"
    """Host RAM, and behind it a store that all engines share."""


class Unfit(ConfigError):
    """A setup that cannot be run. `path` is the key of a scenario at fault, so that whoever read one can name
    its line; `reason` is the rest of the sentence."""

    def __init__(self, path: KeyPath, reason: str) -> None:
        super().__init__(f"{dotted(path)}: {reason}")
        self.path = path
        self.reason = reason


_KEYS: Mapping[str, KeyPath] = {
    "gpu": ("fleet", "gpu"),
    "tensor_parallel": ("fleet", "tp"),
    "pool_tokens": ("fleet", "kv_tokens"),
    "ram": ("cache", "host_bytes"),
    "tokens": ("fleet", "model"),
}
"""Of a scenario, for each field of a deployment."""


@dataclass(frozen=True, slots=True)
class FleetSetup:
    """Equal engines."""

    deployment: Deployment
    num_engines: int = 1
    kv_tokens: int | None = None
    """That each engine's device holds; None: as many as the GPUs' memory has room for, estimated."""
    cost: EngineCost | None = None
    """Of steps; None: estimated from the deployment."""
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    num_prefill: int = 0
    """Engines that only compute prompts for the others (`engines[].role: prefill`); 0: nothing is split."""


@dataclass(frozen=True, slots=True)
class StoreSetup:
    """The shared tier."""

    medium: str = "valkey-25gbe"
    """Of each engine's way there; a name of `plan.media`."""
    capacity_bytes: int | None = None
    """None: without bounds."""
    num_nodes: int = 1
    copies: int = 1
    """Of each chunk."""


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """What is below the device."""

    mode: Mode = Mode.NONE
    host_bytes: int = 0
    """Of each engine."""
    chunk_tokens: int = 256
    """Stored and loaded as one; made whole blocks, at least one."""
    offload: Offload = Offload.ALL
    store: StoreSetup = field(default_factory=StoreSetup)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer is: both are kept."""

    ttft_s: float = 2.0
    itl_s: float = 0.1
    """Mean time between its tokens."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to the store."""

    at_s: float
    node: int
    """From 0."""
    kind: StoreFaultKind = StoreFaultKind.DEAD
    until_s: float | None = None
    """None: to the end."""
    delay_s: float = 0.0
    """Of each call, where the node is slow."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything but the load."""

    fleet: FleetSetup
    cache: CacheSetup = field(default_factory=CacheSetup)
    policy: PolicyName = PolicyName.PREDICTED_TTFT
    seed: int = 1
    slo: Slo = field(default_factory=Slo)
    incidents: tuple[Incident, ...] = ()

    def with_mode(self, mode: Mode) -> "Setup":
        """The same with another cache; what happens to a store happens only where there is one."""
        incidents = self.incidents if mode is Mode.SHARED else ()
        return replace(self, cache=replace(self.cache, mode=mode), incidents=incidents)

    @property
    def cost(self) -> EngineCost:
        """Of each engine's steps."""
        return self.fleet.cost or step_cost(self.fleet.deployment)

    @property
    def chunk_blocks(self) -> int:
        """Device blocks of a chunk."""
        return max(1, self.cache.chunk_tokens // self.fleet.block_size)

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_blocks * self.fleet.block_size * self.fleet.deployment.host_bytes_per_token

    @property
    def kv_tokens(self) -> int:
        """That each engine's device holds. Raises Unfit when weights leave no room."""
        if self.fleet.kv_tokens is not None:
            return self.fleet.kv_tokens
        self.check()
        return self.fleet.deployment.pool_tokens

    def check(self, longest: int = 0) -> None:
        """Raises Unfit: the deployment is impossible, or its model's context is shorter than `longest`."""
        deployment, cache = self.fleet.deployment, self.cache
        try:
            deployment.check(self.fleet.kv_tokens, None if cache.mode is Mode.NONE else cache.host_bytes)
        except Impossible as error:
            raise Unfit(_KEYS[error.field], error.reason) from error
        if deployment.max_tokens is not None and longest > deployment.max_tokens:
            text = f"its context has {deployment.max_tokens:,} tokens, and the longest request needs"
            raise Unfit(("fleet", "model"), f"{text} {longest:,}")


def build_engines(setup: Setup, longest: int) -> tuple[list[Engine], SharedTier | None]:
    """The engine models, and the store if there is one. `longest`: tokens of the longest prompt and answer.

    Raises Unfit: the deployment is impossible, or cannot serve the longest request.
    """
    fleet = setup.fleet
    setup.check(longest)
    kv_tokens = setup.kv_tokens
    num_blocks = kv_tokens // fleet.block_size
    if num_blocks * fleet.block_size < longest:
        text = f"an engine holds {kv_tokens:,} tokens of KV on its GPUs, and the longest request needs"
        raise Unfit(("fleet", "kv_tokens"), f"{text} {longest:,}")
    shape = EngineShape(
        block_size=fleet.block_size,
        num_blocks=num_blocks + 1,
        max_num_seqs=fleet.max_num_seqs,
        max_num_batched_tokens=fleet.max_num_batched_tokens,
        max_model_len=longest,
        kv_bytes_per_token=fleet.deployment.kv_bytes_per_token,
    )
    cost = StepCost(setup.cost)
    host, store = _host(setup), _store(setup)
    return [Engine(shape, cost, Tiers(host, store)) for _ in range(fleet.num_engines)], store


def _host(setup: Setup) -> HostShape | None:
    cache = setup.cache
    if cache.mode is Mode.NONE:
        return None
    num_chunks = cache.host_bytes // setup.chunk_bytes
    if num_chunks < 1:
        text = f"is {cache.host_bytes:,}; allowed with mode {cache.mode}: at least one chunk,"
        raise Unfit(("cache", "host_bytes"), f"{text} {setup.chunk_bytes:,} bytes")
    return HostShape(num_chunks, setup.chunk_blocks, cache.offload)


def node_id(number: int) -> str:
    """Of a store's node."""
    return f"node-{number}"


def _store(setup: Setup) -> SharedTier | None:
    if setup.cache.mode is not Mode.SHARED:
        return None
    store = setup.cache.store
    medium = medium_named(store.medium).cost_for(setup.fleet.deployment.num_gpus)
    call = TierCost(medium.latency_s, medium.bytes_per_s / _CALLS)
    cost = SharedCost(medium.latency_s, call, call, threads=_CALLS, deadline_s=_DEADLINE_S)
    each = _UNBOUNDED_CHUNKS
    if store.capacity_bytes is not None:
        each = store.capacity_bytes // setup.chunk_bytes // store.num_nodes
        if each < 1:
            text = f"is {store.capacity_bytes:,}; allowed: at least one chunk of {setup.chunk_bytes:,} bytes"
            raise Unfit(("cache", "store", "capacity_bytes"), f"{text} for each node")
    ids = [node_id(number) for number in range(store.num_nodes)]
    parts = tuple(StorePart(name, ChunkTable(each), cost) for name in ids)
    if len(parts) == 1:
        return SharedTier(parts[0], cost, store.capacity_bytes)
    whole = StoreParts("store", parts, Rendezvous(ids, store.copies))
    return SharedTier(whole, cost, store.capacity_bytes)
