"""What is asked about: a model on GPUs, and what its KV and its prefill cost there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anbar.core.cost import PrefillCost
from anbar.core.errors import ConfigError
from anbar.plan.answer import in_words
from anbar.plan.catalogue import Gpu, gpu_named
from anbar.plan.kv_size import KvSize, kv_copies, kv_size
from anbar.plan.prefill import Prefill, prefill_of, weight_bytes_in
from anbar.plan.weights import weights

USABLE_SHARE = 0.9
"""Of a GPU's memory: vLLM's default for --gpu-memory-utilization (0.9 up to 0.18; since then 0.92)."""
ACTIVATION_BYTES = 2 * 10**9
"""What a step's tensors and CUDA graphs take of each GPU, roughly."""


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

        Raises ConfigError: the weights do not fit."""
        each = USABLE_SHARE * self.gpu.memory_bytes - ACTIVATION_BYTES
        pool = round(self.num_gpus * each - self.weight_bytes)
        if pool <= 0:
            raise ConfigError(
                f"the weights ({in_words(self.weight_bytes, 'bytes')}) do not fit on "
                f"{self.num_gpus} x {self.gpu_name}: take more GPUs or a smaller format"
            )
        return pool

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
