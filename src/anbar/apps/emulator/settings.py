"""What one emulated engine is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from anbar.adapters.vllm.block_hash import DEFAULT_SEED
from anbar.adapters.vllm.kv_publish import PublisherConfig
from anbar.apps.emulator.fields import MAX_N, MAX_PROMPTS
from anbar.apps.emulator.nixl import Nixl
from anbar.core.cost import EngineCost
from anbar.core.errors import ConfigError
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier


class Runner(Enum):
    """What the model is served for (`--runner`)."""

    GENERATE = "generate"
    POOLING = "pooling"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine. Names are vLLM's where vLLM has one."""

    model_dir: Path
    """Directory with `tokenizer.json`: the model's tokenizer and chat template."""
    root: str = ""
    """The model's root in /v1/models; "": `model_dir`, so that a router can load the tokenizer itself."""
    served_names: tuple[str, ...] = ("emulated-model",)
    loras: Mapping[str, str] = field(default_factory=dict)
    """Adapters that are loaded from the start, and their paths."""
    runner: Runner = Runner.GENERATE
    embedding_size: int = 384
    """Numbers in an embedding (pooling models)."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0 picks a free one, which stays the engine's over restarts."""
    api_keys: tuple[str, ...] = ()
    events: PublisherConfig | None = None
    """None: no KV events."""
    shape: EngineShape = field(default_factory=lambda: EngineShape(block_size=16, num_blocks=4096))
    host_tier: HostShape | None = None
    """Host RAM behind the offloading connector; None: none."""
    shared: SharedTier | None = None
    """The store behind the host tier; the same object in all engines that share it."""
    store_owner: str = "anbar:emulated"
    """What events call that store."""
    tier_type: str = "AnbarSharedTier"
    """What metrics call it: `type` of the tier."""
    tiering: bool = True
    """Whether the connector's spec has metrics of tiers, as all but vLLM's default one do."""
    nixl: Nixl | None = None
    """Its NIXL connector; None: it has none."""
    cost: EngineCost = field(default_factory=EngineCost)
    """What steps take; the default takes no time."""
    speed: float = 1.0
    """How much faster than the model's clock time passes."""
    seed: int = 0
    """Of the answers' text."""
    prompt_tokens_details: bool = False
    """`--enable-prompt-tokens-details`: usage shows cached_tokens."""
    per_request_metrics: bool = False
    """`--enable-per-request-metrics`: answers to one prompt, n = 1, and usage of streams tell times."""
    request_id_headers: bool = False
    """`--enable-request-id-headers`: answers carry x-request-id."""
    force_include_usage: bool = False
    """`--enable-force-include-usage`."""
    auto_tools: bool = False
    """`--enable-auto-tool-choice`: tools are accepted, and never called."""
    dev_mode: bool = False
    """`VLLM_SERVER_DEV_MODE`: /sleep, /wake_up, /is_sleeping, /reset_prefix_cache."""
    runtime_loras: bool = False
    """`VLLM_ALLOW_RUNTIME_LORA_UPDATING`: /v1/load_lora_adapter, /v1/unload_lora_adapter."""
    max_n: int = MAX_N
    """`VLLM_MAX_N_SEQUENCES`: the most choices that a request may ask for."""
    max_prompts: int = MAX_PROMPTS
    """`VLLM_MAX_COMPLETION_PROMPTS`: the most prompts of one completion."""
    track_load: bool = False
    """`--enable-server-load-tracking`: /load counts requests."""
    hash_seed: str = DEFAULT_SEED
    """`PYTHONHASHSEED`: what block hashes begin from."""

    @property
    def serves_adapters(self) -> bool:
        """Now or later."""
        return bool(self.loras) or self.runtime_loras

    def __post_init__(self) -> None:
        shape = self.shape
        if shape.max_model_len > (shape.num_blocks - 1) * shape.block_size:
            raise ConfigError(
                f"--max-model-len {shape.max_model_len} does not fit into {shape.num_blocks} blocks of "
                f"{shape.block_size} tokens, of which one is vLLM's own (--num-gpu-blocks-override)"
            )
        if not self.speed > 0:
            raise ConfigError(f"--speed is {self.speed}, must be above 0")
        if not self.served_names:
            raise ConfigError("--served-model-name needs a name")
