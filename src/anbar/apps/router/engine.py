"""What the router knows of its engines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.adapters.http.message import Header
from anbar.adapters.http.upstream import UpstreamPool
from anbar.adapters.vllm.kv_events import KvStreamStatus
from anbar.adapters.vllm.probe import ServedModel
from anbar.apps.router.adapter_use import AdapterUse
from anbar.apps.router.health import Health
from anbar.apps.router.load import EngineLoad
from anbar.config.split import Role
from anbar.core.fleet import EngineState, EngineView
from anbar.core.ids import EngineId
from anbar.route import EngineCosts, EngineProfile
from anbar.route.breaker import Breaker
from anbar.route.drift import DriftCheck, RecentChanges, Trust


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine said of itself in its last good probe; see `facts_of`."""

    names: frozenset[str] = frozenset()
    """The models it serves, LoRA adapters included."""
    adapters: frozenset[str] = frozenset()
    """Which of `names` are LoRA adapters."""
    root: str = ""
    """The identity of the weights."""
    max_model_len: int = 0
    """Tokens of context; 0: it does not say."""
    cards: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By model: its entry in the engine's `/v1/models` as it is, for clients."""
    version: str = ""
    block_size: int = 0
    """Tokens; 0: it does not say."""
    kv_tokens: int = 0
    """What the device cache has room for; 0: it does not say."""


def facts_of(
    models: Sequence[ServedModel], cards: Mapping[str, Mapping[str, object]], before: EngineFacts
) -> EngineFacts:
    """Facts from `/v1/models`; the others stay as `before`."""
    return EngineFacts(
        names=frozenset(model.name for model in models),
        adapters=frozenset(model.name for model in models if model.parent is not None),
        root=next((model.root for model in models if model.parent is None), ""),
        max_model_len=max((model.max_model_len or 0 for model in models), default=0),
        cards=cards,
        version=before.version,
        block_size=before.block_size,
        kv_tokens=before.kv_tokens,
    )


class UsageOption(Enum):
    """Whether an engine takes `stream_options.include_usage`."""

    UNTRIED = "untried"
    TAKEN = "taken"
    REFUSED = "refused"


class TokenCheck(Enum):
    """Whether the router's tokens are the engine's (`apps/router/token_probe.py`)."""

    REMOTE = "remote"
    """The router has no tokenizer for it, and asks."""
    COMPARING = "comparing"
    AGREES = "agrees"
    DIFFERS = "differs"
    """Prompts are tokenized by asking."""
    UNVERIFIED = "unverified"
    """It could not be asked; the router's own tokens are used."""


NO_ADAPTERS: frozenset[str] = frozenset()


LATE_S = 5.0
"""Events that are later than this do not tell of requests that the router has sent since: as long as it takes
to send an engine some dozens. Ordinary lag is milliseconds, and a stalled loop's less than a second."""


@dataclass(slots=True)
class KvFollowing:
    """How far an engine's KV events were taken in."""

    address: str = ""
    """"": it publishes none that the router could follow."""
    replay: str | None = None
    status: KvStreamStatus = field(default_factory=KvStreamStatus)
    seq: int = -1
    lag_s: float = 0.0
    """Age of the last live batch when it was taken in, by the engine's clock; those of replays are old."""
    changes: RecentChanges = field(default_factory=RecentChanges)

    @property
    def behind_s(self) -> float:
        """How old what was last heard is, while more waits to be taken in; else 0. So neither a replay of old
        batches nor an engine's wrong clock makes an engine late that has nothing more to tell."""
        return self.lag_s if self.status.num_waiting else 0.0


@dataclass(slots=True)
class CheckCounts:
    """What the self-check has seen of an engine since the start, in requests."""

    agreed: int = 0
    over: int = 0
    """Reported fewer cached tokens than events had told, by more than a block."""
    unknown_content: int = 0
    """Reported more."""
    evicted: int = 0
    """What was told has left the cache between the decision and the execution: not compared."""
    rebuilds: int = 0


@dataclass(slots=True, eq=False)
class Engine:
    """One engine, for as long as the router runs. The monitor and the requests keep it up to date."""

    id: EngineId
    url: str
    pool: UpstreamPool
    auth: tuple[Header, ...]
    """The engine's own key, as a header."""
    health: Health
    costs: EngineCosts
    role: Role = Role.BOTH
    load: EngineLoad = field(default_factory=EngineLoad)
    facts: EngineFacts = EngineFacts()
    profile: EngineProfile | None = None
    """What the prefix index was told of it; None before its first good probe, or when it has no cache."""
    kv: KvFollowing = field(default_factory=KvFollowing)
    breaker: Breaker = field(default_factory=Breaker)
    draining: bool = False
    """Somebody drains it: what it has goes on, and it gets nothing new."""
    rest_until_s: float = 0.0
    """When the pause is over that it asked for, on the router's clock."""
    tokenizer_note: str = ""
    """Where its prompts are tokenized, or why they are not; for people."""
    tokens: TokenCheck = TokenCheck.REMOTE

    adapters: AdapterUse = field(default_factory=AdapterUse)
    usage: UsageOption = UsageOption.UNTRIED
    drift: DriftCheck = field(default_factory=DriftCheck)
    checks: CheckCounts = field(default_factory=CheckCounts)

    @property
    def state(self) -> EngineState:
        """Its health, unless somebody drains it."""
        if self.draining and self.health.state is EngineState.READY:
            return EngineState.DRAINING
        return self.health.state

    @property
    def is_ready(self) -> bool:
        """Whether it may get requests as far as probes and people know."""
        return not self.draining and self.health.state is EngineState.READY

    def view(self, now_s: float) -> EngineView:
        """The frozen value that policies see."""
        load, queue, costs, facts = self.load, self.load.queue, self.costs, self.facts
        queue.pass_time(now_s)
        num_sent, strangers, learner = load.num_believed, load.strangers, costs.learner
        has_adapters = bool(facts.adapters)
        return EngineView(
            id=self.id,
            state=self.state,
            models=facts.names,
            block_size=facts.block_size,
            max_model_len=facts.max_model_len,
            prefill=learner.cost,
            loads=costs.loads,
            doubt=learner.doubt,
            kv_tokens=facts.kv_tokens,
            kv_held_tokens=load.believed_tokens,
            answer_s=costs.answer_s,
            queued_prefill_tokens=queue.tokens + load.strangers_work.tokens,
            queued_prefill_pairs=queue.pairs + load.strangers_work.pairs,
            prefill_done_s=queue.done_s(now_s) if queue.tokens else 0.0,
            num_decoding=num_sent - len(queue) + strangers.num_running,
            num_in_flight=num_sent + strangers.total,
            adapters=self.adapters.loaded if has_adapters else NO_ADAPTERS,
            adapters_full=has_adapters and self.adapters.is_full,
        )

    def unit_tokens(self) -> int:
        """Tokens that its tiers keep or drop as one: a block, or an offloaded chunk; 1: not known."""
        profile = self.profile
        return profile.block_size * max(1, profile.chunk_blocks) if profile is not None else 1

    def degraded(self) -> str:
        """Why its cache cannot be predicted precisely now; "" when it can."""
        if self.profile is None:
            return "no_cache_facts"
        if self.drift.trust is not Trust.PRECISE:
            return "drift"
        if not self.kv.address:
            return "no_kv_events"
        if not self.kv.status.complete:
            return "kv_events_incomplete"
        if self.kv.behind_s > LATE_S:
            return "kv_events_late"
        return ""

    def is_told(self) -> bool:
        """Whether what events tell of its cache is true, though perhaps not the whole truth; follows from
        `degraded`."""
        return self.degraded() in ("", "kv_events_incomplete", "kv_events_late")


class Fleet:
    """All engines, in the order in which they joined. An engine may go while a request waits for something: a
    request that was routed looks them up with `get`."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = {engine.id: engine for engine in engines}
        self.engines: Collection[Engine] = self._engines.values()
        """As they are at any time: each request looks at all of them several times."""

    def __iter__(self) -> Iterator[Engine]:
        return iter(self.engines)

    def __getitem__(self, engine: EngineId) -> Engine:
        return self._engines[engine]

    def __len__(self) -> int:
        return len(self._engines)

    def get(self, engine: EngineId) -> Engine | None:
        return self._engines.get(engine)

    def put(self, engine: Engine) -> None:
        """Add an engine, in the place of one of the same name if there is one."""
        self._engines[engine.id] = engine

    def drop(self, engine: Engine) -> None:
        """Forget an engine, unless another one has taken its name."""
        if self._engines.get(engine.id) is engine:
            del self._engines[engine.id]

    def serving(self, model: str) -> list[Engine]:
        """Engines that serve `model`, ready or not."""
        return [engine for engine in self.engines if model in engine.facts.names]

    def ready(self) -> list[Engine]:
        return [engine for engine in self if engine.is_ready]

    def views(self, now_s: float) -> list[EngineView]:
        return [engine.view(now_s) for engine in self.engines]
