"""The smallest model that has a paged KV cache, and an engine's options for it; runs in the engine's
interpreter."""

import json
from pathlib import Path
from typing import Any

from vllm.config import KVEventsConfig

from anbar.sim.engine.shape import EngineShape
from tests.engine.batches import VOCABULARY

_HEAD_SIZE = 64
KV_BYTES_PER_TOKEN = 2 * _HEAD_SIZE * 4
"""Key and value of one head in one layer, as float32."""
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": _HEAD_SIZE,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def write_config(directory: str) -> None:
    """Into the model's directory; it has no weights."""
    (Path(directory) / "config.json").write_text(json.dumps(_CONFIG))


def options(shape: EngineShape) -> dict[str, Any]:
    """Of vLLM's `EngineArgs`."""
    return {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": shape.block_size,
        "num_gpu_blocks_override": shape.num_blocks,
        "max_num_seqs": shape.max_num_seqs,
        "max_num_batched_tokens": shape.max_num_batched_tokens,
        "max_model_len": shape.max_model_len,
        "enable_prefix_caching": shape.prefix_caching,
        "watermark": shape.watermark,
        "scheduler_reserve_full_isl": shape.reserve_full_prompt,
        "kv_events_config": KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    }
