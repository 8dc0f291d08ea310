"""Models and GPUs that are known by name: figures from their makers' pages.

Models: the numbers of config.json that KV and prefill depend on, as published with the weights. GPUs: dense
rates without sparsity, from the data sheets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from anbar.core.errors import ConfigError

T = TypeVar("T")


def _config(hidden: int, inter: int, layers: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        **more,
    }


_LONG = {"max_position_embeddings": 131_072}
"""Qwen's with YaRN, as their makers describe."""
_SHORT = {"max_position_embeddings": 32_768}
_LLAMA3 = {"vocab_size": 128_256, **_LONG}
_QWEN = {"vocab_size": 151_936, **_LONG}
_QWEN25 = {"vocab_size": 152_064, **_LONG}
_GPT_OSS = {
    "vocab_size": 201_088,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "quantization_config": {"quant_method": "mxfp4"},
    **_LONG,
}
_HALF_WINDOWED = ["sliding_attention", "full_attention"]

MODELS: Mapping[str, Mapping[str, Any]] = {
    "SmolLM2-135M": _config(
        576,
        1536,
        30,
        9,
        3,
        head_dim=64,
        vocab_size=49_152,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    ),
    "Llama-3.2-1B": _config(2048, 8192, 16, 32, 8, head_dim=64, tie_word_embeddings=True, **_LLAMA3),
    "Llama-3.2-3B": _config(3072, 8192, 28, 24, 8, tie_word_embeddings=True, **_LLAMA3),
    "Llama-3.1-8B": _config(4096, 14_336, 32, 32, 8, **_LLAMA3),
    "Llama-3.1-70B": _config(8192, 28_672, 80, 64, 8, **_LLAMA3),
    "Mistral-7B": _config(4096, 14_336, 32, 32, 8, vocab_size=32_768, **_SHORT),
    "Mistral-Small-24B": _config(5120, 32_768, 40, 32, 8, vocab_size=131_072, **_SHORT),
    "Mixtral-8x7B": _config(
        4096, 14_336, 32, 32, 8, vocab_size=32_000, num_local_experts=8, num_experts_per_tok=2, **_SHORT
    ),
    "Qwen2.5-7B": _config(3584, 18_944, 28, 28, 4, **_QWEN25),
    "Qwen2.5-32B": _config(5120, 27_648, 64, 40, 8, **_QWEN25),
    "Qwen2.5-72B": _config(8192, 29_568, 80, 64, 8, **_QWEN25),
    "Qwen3-0.6B": _config(1024, 3072, 28, 16, 8, tie_word_embeddings=True, **_QWEN),
    "Qwen3-4B": _config(2560, 9728, 36, 32, 8, tie_word_embeddings=True, **_QWEN),
    "Qwen3-8B": _config(4096, 12_288, 36, 32, 8, **_QWEN),
    "Qwen3-14B": _config(5120, 17_408, 40, 40, 8, **_QWEN),
    "Qwen3-32B": _config(5120, 25_600, 64, 64, 8, **_QWEN),
    "Qwen3-30B-A3B": _config(
        2048, 6144, 48, 32, 4, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, **_QWEN
    ),
    "gpt-oss-20b": _config(
        2880, 2880, 24, 64, 8, **{**_GPT_OSS, "num_local_experts": 32, "layer_types": _HALF_WINDOWED * 12}
    ),
    "gpt-oss-120b": _config(
        2880, 2880, 36, 64, 8, **{**_GPT_OSS, "num_local_experts": 128, "layer_types": _HALF_WINDOWED * 18}
    ),
    "DeepSeek-V3": {
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "vocab_size": 129_280,
        "max_position_embeddings": 163_840,
        "quantization_config": {"quant_method": "fp8"},
    },
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    memory_bytes: int
    flops: float
    """A second, of matrix products in 16 bits."""
    fp8_flops: float
    """A second; `flops` where there is no such unit."""
    memory_bytes_per_s: float
    host_bytes_per_s: float
    """To and from the host's memory, in pieces of a MB and more: what PCIe gives of its rate."""


_GB = 10**9
_GEN3, _GEN4, _GEN5 = 12e9, 25e9, 47e9
GEN4_BYTES_PER_S = _GEN4

GPUS: Mapping[str, Gpu] = {
    "A10G": Gpu(24 * _GB, 70e12, 70e12, 600e9, _GEN4),
    "A100-40GB": Gpu(40 * _GB, 312e12, 312e12, 1555e9, _GEN4),
    "A100-80GB": Gpu(80 * _GB, 312e12, 312e12, 2039e9, _GEN4),
    "B200": Gpu(180 * _GB, 2250e12, 4500e12, 8000e9, _GEN5),
    "H100": Gpu(80 * _GB, 989e12, 1979e12, 3350e9, _GEN5),
    "H200": Gpu(141 * _GB, 989e12, 1979e12, 4800e9, _GEN5),
    "L4": Gpu(24 * _GB, 121e12, 242e12, 300e9, _GEN3),
    "L40S": Gpu(48 * _GB, 362e12, 733e12, 864e9, _GEN4),
    "RTX-4090": Gpu(24 * _GB, 165e12, 330e12, 1008e9, _GEN4),
}


def model_named(name: str) -> Mapping[str, Any]:
    """Raises ConfigError with the names there are."""
    return _named(MODELS, name, "model", "give its config.json")


def gpu_named(name: str) -> Gpu:
    """Raises ConfigError with the names there are."""
    return _named(GPUS, name, "GPU", "give its figures")


def gpu_key(name: str) -> str:
    """The name in the catalogue. Raises ConfigError with the names there are."""
    gpu = gpu_named(name)
    return next(key for key, value in GPUS.items() if value is gpu)


def _named(known: Mapping[str, T], name: str, what: str, otherwise: str) -> T:
    plain = _plain(name)
    found = [key for key in known if _plain(key) == plain]
    if not found:
        raise ConfigError(
            f"{what} {name!r} is not in the catalogue; {otherwise}, or one of: {', '.join(known)}"
        )
    return known[found[0]]


def _plain(name: str) -> str:
    """Names of the hub and of shops are written in many ways: `meta-llama/Llama-3.1-8B-Instruct`."""
    plain = name.rpartition("/")[2].lower().replace("_", "-").replace(" ", "-")
    for tail in ("-instruct-2507", "-instruct-v0.2", "-instruct-v0.3", "-instruct", "-sxm", "-80gb-hbm3"):
        plain = plain.removesuffix(tail)
    return plain.removeprefix("nvidia-").removeprefix("meta-")
