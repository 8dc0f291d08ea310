"""What is asked about: a model on GPUs, and what its KV and its prefill cost there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anbar.core.cost import PrefillCost
from anbar.core.errors import ConfigError
from anbar.plan.answer import in_words
from anbar.plan.catalogue import Gpu, gpu_named
from anbar.plan.kv_size import KvSize, kv_copies, kv_size
from anbar.plan.model_config import text_model
from anbar.plan.prefill import FORMATS, Prefill, prefill_of, weight_bytes_in
from anbar.plan.weights import weights

USABLE_SHARE = 0.9
"""Of a GPU's memory: vLLM's default for --gpu-memory-utilization (0.9 up to 0.18; since then 0.92)."""
ACTIVATION_BYTES = 2 * 10**9
"""What a step's tensors and CUDA graphs take of each GPU, roughly."""


MAX_HOST_BYTES = 64 * 10**12
"""More than any machine has: a slip of the unit."""


class Impossible(ConfigError):
    """A deployment that cannot be. `field` says what of it, in the words of a deployment file, for whoever
    knows under which key or option that was given; `reason` is the rest of the sentence."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine. `name` is the model's in the catalogue, "" of one that is given by its config.json."""

    name: str
    config: Mapping[str, Any]
    gpu_name: str
    num_gpus: int = 1
    """Tensor parallel size."""
    weight_format: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    measured: PrefillCost | None = None
    """From a cost file; None: estimated."""

    @property
    def gpu(self) -> Gpu:
        return gpu_named(self.gpu_name)

    @property
    def kv(self) -> KvSize:
        """Over all layers and GPUs, each number once."""
        return kv_size(self.config, self.kv_dtype)

    @property
    def held(self) -> KvSize:
        """What it takes of `kv_pool_bytes`: ranks may keep copies of the same KV."""
        return self.kv.times(kv_copies(self.config, self.num_gpus).device)

    @property
    def stored(self) -> KvSize:
        """What it takes of host RAM and of a store, and of the way from there."""
        return self.kv.times(kv_copies(self.config, self.num_gpus).host)

    @property
    def kv_bytes_per_token(self) -> int:
        """Over all layers and GPUs."""
        return self.kv.bytes_per_token

    @property
    def prefill(self) -> Prefill:
        """Seconds by tokens, and where they come from."""
        if self.measured is not None:
            return Prefill(self.measured, "the cost file")
        return prefill_of(self.name or self.config, self.gpu_name, self.num_gpus, self.weight_format)

    @property
    def weight_bytes(self) -> int:
        """Of all GPUs. Raises ConfigError with the formats there are."""
        return round(weights(self.config).total * weight_bytes_in(self.weight_format))

    @property
    def kv_pool_bytes(self) -> int:
        """What is left for KV on all GPUs, an estimate; vLLM logs the true number of tokens when it starts.

        Raises Impossible: the weights do not fit."""
        each = USABLE_SHARE * self.gpu.memory_bytes - ACTIVATION_BYTES
        pool = round(self.num_gpus * each - self.weight_bytes)
        if pool <= 0:
            raise Impossible(
                "gpu",
                f"the weights ({in_words(self.weight_bytes, 'bytes')}) do not fit on "
                f"{self.num_gpus} x {self.gpu_name}: take more GPUs or a smaller format{self._own_format}",
            )
        return pool

    @property
    def pool_arithmetic(self) -> str:
        """Of `kv_pool_bytes`, with the numbers put in."""
        return (
            f"{self.num_gpus} x ({USABLE_SHARE} x {self.gpu.memory_bytes / 1e9:g} GB - "
            f"{ACTIVATION_BYTES / 1e9:g} GB) - {self.weight_bytes / 1e9:.4g} GB of weights"
        )

    @property
    def _own_format(self) -> str:
        """That of the makers' own checkpoint, where it is a smaller one."""
        stored = self.config.get("quantization_config")
        name = str(stored.get("quant_method", "")) if isinstance(stored, Mapping) else ""
        if FORMATS.get(name, FORMATS[self.weight_format]) >= FORMATS[self.weight_format]:
            return ""
        size = in_words(weights(self.config).total * FORMATS[name], "bytes")
        return f"; the model's own checkpoint is in {name} ({size})"

    @property
    def max_tokens(self) -> int | None:
        """Of a prompt with its answer: the model's context. None: its config.json does not say."""
        model = text_model(self.config)
        scaling = model.get("rope_scaling") or model.get("rope_parameters")
        said = [model.get("max_position_embeddings")]
        if isinstance(scaling, Mapping):
            original, factor = scaling.get("original_max_position_embeddings"), scaling.get("factor")
            if isinstance(original, int) and isinstance(factor, int | float):
                said.append(int(original * factor))
        return max((length for length in said if isinstance(length, int)), default=None)

    @property
    def most_pool_tokens(self) -> int | None:
        """Tokens whose KV the GPUs could hold with nothing but weights beside it, layers with a window left
        out: no engine has a larger pool. None: there is no such layer."""
        each = self.held.full_bytes
        room = self.num_gpus * self.gpu.memory_bytes - self.weight_bytes
        return room // each if each else None

    def check(self, pool_tokens: int | None = None, host_bytes: int | None = None) -> None:
        """Raises Impossible, which names the field: vLLM would not start like that, or no machine is.

        `pool_tokens`, `host_bytes`: what somebody has said of the GPUs' room for KV and of RAM."""
        _ = self.kv_pool_bytes
        model, num = text_model(self.config), self.num_gpus
        heads, kv_heads = model["num_attention_heads"], model.get("num_key_value_heads")
        if heads % num:
            fits = ", ".join(str(size) for size in range(1, min(64, heads) + 1) if heads % size == 0)
            raise Impossible("tensor_parallel", f"is {num}, and the model has {heads} heads; allowed: {fits}")
        if kv_heads and not model.get("kv_lora_rank") and max(kv_heads, num) % min(kv_heads, num):
            allowed = f"a divisor or a multiple of its {kv_heads} KV heads"
            raise Impossible("tensor_parallel", f"is {num}; allowed of this model: {allowed}")
        most = self.most_pool_tokens
        if pool_tokens is not None and most is not None and pool_tokens > most:
            text = f"is {pool_tokens:,}; {num} x {self.gpu_name} hold at most {most:,} beside the weights"
            raise Impossible("pool_tokens", text)
        if host_bytes is not None and host_bytes > MAX_HOST_BYTES:
            most_words = in_words(MAX_HOST_BYTES, "bytes")
            raise Impossible("ram", f"is {in_words(host_bytes, 'bytes')} an engine; allowed: {most_words}")

    @property
    def device_bytes_per_token(self) -> int:
        """What a token takes of `kv_pool_bytes`."""
        return self.held.bytes_per_token

    @property
    def host_bytes_per_token(self) -> int:
        """What a token takes of host RAM and of a store."""
        return self.stored.bytes_per_token

    @property
    def pool_tokens(self) -> int:
        """Tokens whose KV the GPUs keep to be found again, by that estimate."""
        return self.kv_pool_bytes // self.device_bytes_per_token

    def running_tokens(self, length: int) -> int:
        """Tokens of prompts of `length` that fit on the GPUs while they run: of layers with a window they
        need less than they leave behind."""
        return self.kv_pool_bytes * length // self.held.bytes_of(length)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What of it was not said by anybody."""
        prefill = self.prefill
        sure = "" if prefill.is_sure else " (within a factor of two or so)"
        return (
            f"prefill times: {prefill.source}{sure}",
            f"weights in {self.weight_format}, KV in {self.kv_dtype}",
        )
