"""KV bytes per token against published and measured figures."""

from typing import Any

import pytest

from anbar.core.errors import ConfigError
from anbar.plan.kv_size import kv_bytes_per_token, kv_size


def gqa(layers: int, heads: int, kv_heads: int, head_dim: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim,
        **more,
    }


KNOWN = {
    "SmolLM2-135M": (gqa(30, 9, 3, 64), "float32", 46_080),
    "Llama-3.1-8B": (gqa(32, 32, 8, 128), "bfloat16", 131_072),
    "Llama-3.1-8B in fp8": (gqa(32, 32, 8, 128), "fp8", 65_536),
    "Llama-3.1-70B": (gqa(80, 64, 8, 128), "float16", 327_680),
    "Qwen3-8B": (gqa(36, 32, 8, 128), "bfloat16", 147_456),
    "Qwen3-30B-A3B": (gqa(48, 32, 4, 128), "bfloat16", 98_304),
    "Qwen3-32B": (gqa(64, 64, 8, 128), "bfloat16", 262_144),
    "DeepSeek-V3": (
        {
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        "bfloat16",
        70_272,
    ),
    "gpt-oss-120b": (
        gqa(36, 64, 8, 64, sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 18),
        "bfloat16",
        73_728,
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(name: str) -> None:
    """The published figure of each model."""
    config, dtype, expected = KNOWN[name]
    assert kv_bytes_per_token(config, dtype) == expected


def test_windows_are_said() -> None:
    """Half of gpt-oss-120b's layers keep 128 tokens: both halves are given, and words for it."""
    size = kv_size(*KNOWN["gpt-oss-120b"][:2])
    assert (size.full_bytes, size.windowed_bytes, size.window_tokens) == (36_864, 36_864, 128)
    assert "18 of 36 layers need only the last 128 tokens" in size.note


def test_layers_without_kv_are_not_counted() -> None:
    """Qwen3-Next: one layer in four attends, the others keep a state."""
    size = kv_size(gqa(48, 16, 2, 256, full_attention_interval=4), "bfloat16")
    assert size.bytes_per_token == 12 * 2 * 2 * 256 * 2
    assert "36 of 48 layers keep a state" in size.note


def test_older_and_nested_configs() -> None:
    """Without head_dim and kv heads (multi-head), with multi_query, and below text_config."""
    plain = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    assert kv_bytes_per_token(plain, "float32") == 2 * 2 * 64 * 4
    assert kv_bytes_per_token({**plain, "multi_query": True}, "float32") == 2 * 2 * 16 * 4
    assert kv_bytes_per_token({"text_config": plain, "vision_config": {}}, "float32") == 2 * 2 * 64 * 4


@pytest.mark.parametrize(
    ("more", "windowed"),
    [
        ({"sliding_window": 4096}, 8),  # Mistral 7B v0.1
        ({"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}, 0),  # Qwen2.5
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2}, 6),
        ({"sliding_window": 1024, "sliding_window_pattern": 4}, 6),  # Gemma 3
        ({"sliding_window": None}, 0),
        ({"sliding_window": 512, "num_kv_shared_layers": 3}, 5),  # Gemma 3n: the last layers keep none
    ],
)
def test_forms_of_sliding_windows(more: dict[str, Any], windowed: int) -> None:
    """The ways in which configs say which layers have a window."""
    size = kv_size(gqa(8, 4, 2, 16, **more), "float16")
    assert size.windowed_bytes == windowed * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("config", "dtype", "words"),
    [
        (gqa(2, 4, 2, 16), "int3", "allowed: float32"),
        ({}, "float32", "num_hidden_layers is None"),
        (gqa(2, 4, 0, 16), "float32", "num_key_value_heads is 0"),
        (gqa(2, 4, 2, 16, hybrid_override_pattern="M-M*"), "float32", "not understood"),
    ],
)
def test_what_is_not_understood_is_refused(config: dict[str, Any], dtype: str, words: str) -> None:
    """No guess: an error that says what is missing."""
    with pytest.raises(ConfigError, match=words):
        kv_size(config, dtype)
