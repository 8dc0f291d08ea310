"""What one fake engine is and has: its configuration, and the parts that a restart replaces."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from anbar.testing.fake_engine.api import Limits
from anbar.testing.fake_engine.blocks import NO_TIERS, PagedCache, Tiers
from anbar.testing.fake_engine.faults import FaultBox
from anbar.testing.fake_engine.records import Records
from anbar.testing.fake_engine.scheduler import Counters, Pace, Scheduler
from anbar.testing.fake_engine.tokenizer import FakeTokenizer, load_shared
from anbar.testing.fake_engine.wire import EventFaults, Framing, Publisher


@dataclass(frozen=True, slots=True)
class FakeEngineConfig:
    """What one fake engine is."""

    tokenizer: Path
    """Directory of the tokenizer."""
    root: str = ""
    """The model's root in `/v1/models`; "": the tokenizer's directory, which a router can load itself."""
    models: tuple[str, ...] = ("fake-model",)
    loras: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free one; it stays the same over restarts."""
    events: str = ""
    """Address of the KV events (`ipc://...` or `tcp://127.0.0.1:P`); "" publishes none."""
    replay: str = ""
    framing: Framing = Framing.MAPS
    replay_buffer: int = 10_000
    api_key: str | None = None
    block_size: int = 16
    num_blocks: int = 4096
    max_model_len: int = 8192
    max_num_seqs: int = 256
    tiers: Tiers = NO_TIERS
    """Host RAM and shared store."""
    prompt_tokens_details: bool = True
    """`--enable-prompt-tokens-details`: usage shows cached_tokens."""
    pace: Pace = field(default_factory=Pace)
    """The pace to begin with; `FakeEngine.pace` is the engine's own copy."""

    def __post_init__(self) -> None:
        if self.max_model_len > self.num_blocks * self.block_size:
            raise ValueError(
                f"max_model_len {self.max_model_len} does not fit into {self.num_blocks} blocks of "
                f"{self.block_size} tokens"
            )


class EngineState:
    """The engine without its sockets. What a process would lose with its life is made by `begin_life`."""

    def __init__(self, config: FakeEngineConfig) -> None:
        self.config = config
        self.tokenizer: FakeTokenizer = load_shared(config.tokenizer)
        self.limits = Limits(config.models, config.loras, config.max_model_len)
        self.pace = replace(config.pace)
        self.event_faults = EventFaults()
        self.records = Records()
        self.faults = FaultBox()
        self.answer: str | None = None
        """A fixed text that every request gets as its answer; None draws one from the prompt."""
        self.healthy = True
        """False: /health answers 503, as when the engine core died under a living API server."""
        self.begin_life()

    def begin_life(self) -> None:
        """A cold cache, counters at zero, events from sequence 0."""
        config = self.config
        self.cache = PagedCache(config.num_blocks, config.block_size, config.tiers)
        self.publisher: Publisher | None = None
        if config.events:
            self.publisher = Publisher(
                config.events, config.replay, config.replay_buffer, config.framing, faults=self.event_faults
            )
        self.scheduler = Scheduler(self.cache, self.publisher, self.pace, config.max_num_seqs)
        self.started_s = int(time.time())

    @property
    def counters(self) -> Counters:
        """Of this life."""
        return self.scheduler.counters
