"""What an engine is made of: sizes and limits, as vLLM is configured with them."""

from dataclasses import dataclass
from enum import Enum


class Offload(Enum):
    """Which tokens' KV leaves the device."""

    ALL = "all"
    """Answers too, so that the next turn of a chat finds them."""
    PROMPT = "prompt"
    """Prompts only (vLLM's default)."""


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Source of names and meaning: vLLM 0.32 `config/scheduler.py`, `config/cache.py`."""

    block_size: int
    """Tokens per block."""
    num_blocks: int
    """Blocks of the device as vLLM counts them: block 0 holds nothing, `num_blocks - 1` can be used."""
    max_num_seqs: int = 256
    """Most requests that run at once."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step, prompts and decodes together."""
    max_model_len: int = 8192
    """Longest prompt plus answer, in tokens."""
    prefix_caching: bool = True
    watermark: float = 0.0
    """Share of the blocks kept free when a waiting request is admitted beside others."""
    reserve_full_prompt: bool = True
    """Admit a request only when blocks for its whole prompt are free (`scheduler_reserve_full_isl`)."""
    kv_bytes_per_token: int = 0
    """Over all layers and workers; what transfers and decodes are charged for."""
    copies_per_block: int = 1
    """Contiguous pieces in which a block goes to and from host RAM: mostly as many as there are layers."""


@dataclass(frozen=True, slots=True)
class HostShape:
    """The host-RAM tier behind vLLM's offloading connector."""

    num_chunks: int
    """Chunks that fit."""
    chunk_blocks: int = 1
    """Device blocks per chunk."""
    offload: Offload = Offload.ALL
