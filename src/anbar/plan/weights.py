"""How many weights a model has, and how many of them one token meets, from its config.json.

Counted: matrices of attention and feed-forward layers, embeddings and the output matrix. Norms, biases and
routers are left out: below 0.1 % together. Sources: the layers of vLLM 0.32's `model_executor/models`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anbar.plan.model_config import text_model, whole


@dataclass(frozen=True, slots=True)
class Weights:
    """Numbers, not bytes."""

    total: int
    """What has to fit into memory."""
    active: int
    """What a prompt's token is multiplied with: of experts those that are chosen. Without embeddings, which
    are looked up, and without the output matrix, which only the last token of a prompt meets."""
    attention_width: int
    """Heads times the numbers in each, over all layers: what a token's attention to another costs."""


def weights(config: Mapping[str, Any]) -> Weights:
    """Of the model whose config.json is `config`.

    Raises ConfigError when a number that is needed is not there: a wrong count would be worse than none.
    """
    model = text_model(config)
    layers, hidden = whole(model, "num_hidden_layers"), whole(model, "hidden_size")
    attention, width = _attention(model, hidden)
    dense, sparse = _feed_forward(model, hidden)
    num_dense = layers if sparse is None else _first_dense(model, layers)
    stored, met = sparse or (0, 0)
    own = layers * attention + num_dense * dense
    tables = 1 if model.get("tie_word_embeddings") else 2
    return Weights(
        total=own + (layers - num_dense) * stored + tables * whole(model, "vocab_size") * hidden,
        active=own + (layers - num_dense) * met,
        attention_width=layers * width,
    )


def _attention(model: Mapping[str, Any], hidden: int) -> tuple[int, int]:
    """Weights of one attention layer, and its width: the mean of a head's key and value, over all heads."""
    heads = whole(model, "num_attention_heads")
    if model.get("kv_lora_rank"):  # multi-head latent attention, DeepSeek-V2
        latent, rope = whole(model, "kv_lora_rank"), whole(model, "qk_rope_head_dim")
        nope, value = whole(model, "qk_nope_head_dim"), whole(model, "v_head_dim")
        rank = model.get("q_lora_rank")
        key = heads * (nope + rope)
        query = whole(model, "q_lora_rank") * (hidden + key) if rank else hidden * key
        into = hidden * (latent + rope) + latent * heads * (nope + value)
        return query + into + heads * value * hidden, heads * (nope + rope + value) // 2
    head = whole(model, "head_dim") if model.get("head_dim") is not None else hidden // heads
    kv_heads = whole(model, "num_key_value_heads") if model.get("num_key_value_heads") is not None else heads
    return 2 * hidden * head * (heads + kv_heads), heads * head


def _feed_forward(model: Mapping[str, Any], hidden: int) -> tuple[int, tuple[int, int] | None]:
    """Weights of one dense layer; of one with experts all of them, and those that a token meets. All gated:
    three matrices each."""
    experts = next(
        (
            whole(model, key)
            for key in ("n_routed_experts", "num_local_experts", "num_experts")
            if model.get(key)
        ),
        0,
    )
    if not experts:
        return 3 * hidden * whole(model, "intermediate_size"), None
    size_key = "moe_intermediate_size" if model.get("moe_intermediate_size") else "intermediate_size"
    one = 3 * hidden * whole(model, size_key)
    shared = int(model.get("n_shared_experts") or 0) * one
    shared += 3 * hidden * int(model.get("shared_expert_intermediate_size") or 0)
    dense = 3 * hidden * int(model.get("intermediate_size") or 0)
    return dense, (experts * one + shared, whole(model, "num_experts_per_tok") * one + shared)


def _first_dense(model: Mapping[str, Any], layers: int) -> int:
    """Layers without experts in a model that has some."""
    listed = model.get("mlp_only_layers")
    step = int(model.get("decoder_sparse_step") or 1)
    every = layers - layers // step
    return int(model.get("first_k_dense_replace") or 0) or len(listed or ()) or every
