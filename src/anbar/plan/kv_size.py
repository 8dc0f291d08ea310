"""How many bytes one token's keys and values take, from a model's config.json.

Sources: the attention layouts of vLLM 0.32 (`model_executor/models`, `v1/kv_cache_interface.py`) and the
models' own papers. Multi-head, grouped-query and multi-query attention keep, per layer, a key and a value of
`kv_heads × head_dim`; multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1) keeps one latent of
`kv_lora_rank + qk_rope_head_dim`. Layers with a sliding window keep their KV only for the window's tokens;
linear-attention and Mamba layers keep none per token but a state per sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anbar.core.errors import ConfigError
from anbar.plan.model_config import text_model, whole

DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}

_WINDOWED = {"sliding_attention", "chunked_attention", "local_attention", "swa"}
_STATE_ONLY = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "lightning_attention"}


@dataclass(frozen=True, slots=True)
class KvSize:
    """Bytes of one token's KV over all ranks. `full_bytes` lives as long as the token's block; beyond
    `window_tokens` tokens from the end `windowed_bytes` is no longer needed. `note` says what a reader of the
    sum should know, "" when there is nothing."""

    full_bytes: int
    windowed_bytes: int = 0
    window_tokens: int = 0
    note: str = ""

    @property
    def bytes_per_token(self) -> int:
        """What a token takes while it is inside every window. So much is kept and stored of each: vLLM 0.32
        does not evict blocks behind a window sooner than others that may be found again
        (`v1/core/block_pool.py`, `free_blocks`), and offloads them."""
        return self.full_bytes + self.windowed_bytes

    def bytes_of(self, num_tokens: int) -> int:
        """What a prompt of so many tokens needs: while it runs, and to be loaded (vLLM loads of such layers
        the last window alone: `offloading/scheduler.py`, `load_window_size_in_chunks`)."""
        return self.full_bytes * num_tokens + self.windowed_bytes * min(num_tokens, self.window_tokens)

    def times(self, num_copies: int) -> "KvSize":
        """Kept so often."""
        return replace(
            self, full_bytes=num_copies * self.full_bytes, windowed_bytes=num_copies * self.windowed_bytes
        )


def kv_bytes_per_token(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of one token's KV in all layers, over all ranks; see `kv_size`."""
    return kv_size(config, dtype).bytes_per_token


def kv_size(config: Mapping[str, Any], dtype: str) -> KvSize:
    """KV of one token of the model whose config.json is `config`, with KV kept as `dtype`.

    Raises ConfigError when `config` or `dtype` is not understood: a wrong number would be worse than none.
    """
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"KV dtype {dtype!r} is not known; allowed: {', '.join(DTYPE_BYTES)}")
    model = text_model(config)
    kinds = _layer_kinds(model)
    per_layer = _layer_elements(model) * DTYPE_BYTES[dtype]
    windowed = sum(kind in _WINDOWED for kind in kinds)
    stateful = sum(kind in _STATE_ONLY for kind in kinds)
    notes = []
    if windowed:
        notes.append(f"{windowed} of {len(kinds)} layers need only the last {_window(model)} tokens")
    if stateful:
        notes.append(f"{stateful} of {len(kinds)} layers keep a state per sequence, not counted here")
    return KvSize(
        full_bytes=per_layer * (len(kinds) - windowed - stateful),
        windowed_bytes=per_layer * windowed,
        window_tokens=_window(model) if windowed else 0,
        note="; ".join(notes),
    )


@dataclass(frozen=True, slots=True)
class Copies:
    """How often tensor parallel ranks keep the same KV."""

    device: int
    host: int
    """In host RAM, and in what is stored: of a latent vLLM keeps one copy there (since 0.27)."""


def kv_copies(config: Mapping[str, Any], tensor_parallel: int) -> Copies:
    """Ranks divide KV heads among them: more ranks than heads keep copies, and a latent cannot be divided."""
    model = text_model(config)
    if model.get("kv_lora_rank"):
        return Copies(tensor_parallel, 1)
    copies = max(1, tensor_parallel // _kv_heads(model))
    return Copies(copies, copies)


def _layer_elements(model: Mapping[str, Any]) -> int:
    """Numbers kept per token in one attention layer."""
    if model.get("kv_lora_rank"):
        return whole(model, "kv_lora_rank") + whole(model, "qk_rope_head_dim")
    if model.get("head_dim") is not None:
        return 2 * _kv_heads(model) * whole(model, "head_dim")
    return 2 * _kv_heads(model) * (whole(model, "hidden_size") // whole(model, "num_attention_heads"))


def _kv_heads(model: Mapping[str, Any]) -> int:
    if model.get("multi_query"):
        return 1
    if model.get("num_key_value_heads") is not None:
        return whole(model, "num_key_value_heads")
    return whole(model, "num_attention_heads")


def _layer_kinds(model: Mapping[str, Any]) -> Sequence[str]:
    """The kind of each layer that keeps KV of its own."""
    layers = whole(model, "num_hidden_layers") - int(model.get("num_kv_shared_layers") or 0)
    listed = model.get("layer_types") or model.get("layers_block_type")
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        return [str(kind) for kind in listed[:layers]]
    if model.get("hybrid_override_pattern") or model.get("attn_layer_indices"):
        raise ConfigError("config.json names its attention layers in a way that is not understood")
    every = model.get("full_attention_interval")
    if every:
        kinds = ("full_attention", "linear_attention")
        return [kinds[bool((index + 1) % int(every))] for index in range(layers)]
    if not _window(model) or model.get("use_sliding_window") is False:
        return ["full_attention"] * layers
    pattern = model.get("sliding_window_pattern")
    if pattern:  # Gemma 3: each `pattern`-th layer is global
        kinds = ("full_attention", "sliding_attention")
        return [kinds[bool((index + 1) % int(pattern))] for index in range(layers)]
    first = int(model.get("max_window_layers") or 0)  # Qwen2: the first layers stay global
    return ["full_attention"] * first + ["sliding_attention"] * (layers - first)


def _window(model: Mapping[str, Any]) -> int:
    return int(model.get("sliding_window") or model.get("attention_chunk_size") or 0)
