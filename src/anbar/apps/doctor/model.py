"""Checks of a launched model against its configuration: does its KV fit where it must."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anbar.apps.doctor.finding import Finding, fail, ok, warn
from anbar.config.models import CacheConfig, Device, Dtype, LaunchConfig
from anbar.config.render import CPU_BLOCK_SIZE, CPU_KV_BYTES, EngineSlot
from anbar.config.sizes import format_size
from anbar.core.errors import ConfigError
from anbar.plan import KvSize, kv_size

_FEW_CHUNKS = 16
"""A host tier of fewer chunks than this evicts what a single prompt has just stored."""
_CUDA_BLOCK_SIZE = 16


def weights_bytes(model: str) -> int:
    """Size of a local model's weights; 0 when `model` is not a directory here."""
    directory = Path(model)
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def check_model(launch: LaunchConfig, cache: CacheConfig, slot: EngineSlot) -> Iterator[Finding]:
    """The model's directory, its longest context against device KV, its chunks against the host tier."""
    if not slot.model.startswith("/"):
        yield warn(
            "model",
            f"{slot.model} is not a directory here",
            "vLLM will look for it in its cache or on the hub",
        )
        return
    try:
        config: Mapping[str, Any] = json.loads((Path(slot.model) / "config.json").read_text())
    except (OSError, ValueError) as error:
        yield fail("model", f"{slot.model} has no readable config.json: {error}", "give a model's directory")
        return
    try:
        size = kv_size(config, _kv_dtype(config, slot.dtype))
    except ConfigError as error:
        yield warn("model", f"KV size unknown: {error}", "memory and cache sizes are not checked for it")
        return
    note = f" ({size.note})" if size.note else ""
    yield ok("model", f"{slot.served_name}: {size.bytes_per_token:,} bytes of KV per token{note}")
    yield from _check_device(launch, slot, size, config)
    if cache.has_host_tier:
        yield _check_host(launch, cache, slot, size)


def _check_device(
    launch: LaunchConfig, slot: EngineSlot, size: KvSize, config: Mapping[str, Any]
) -> Iterator[Finding]:
    longest = launch.max_model_len or config.get("max_position_embeddings")
    if not isinstance(longest, int):
        return
    block = _block_size(launch, slot)
    if launch.num_device_blocks is not None:
        tokens, key = launch.num_device_blocks * block, "launch.num_device_blocks"
    elif launch.kv_cache_bytes is not None or slot.device is Device.CPU:
        kv_bytes = launch.kv_cache_bytes if launch.kv_cache_bytes is not None else CPU_KV_BYTES
        tokens, key = kv_bytes * launch.tensor_parallel // size.bytes_per_token, "launch.kv_cache_bytes"
    else:
        return
    if tokens < longest:
        yield fail(
            "device KV",
            f"{slot.id} holds {tokens:,} tokens, its longest context is {longest:,}",
            f"raise {key}, or lower launch.max_model_len",
        )


def _check_host(launch: LaunchConfig, cache: CacheConfig, slot: EngineSlot, size: KvSize) -> Finding:
    tokens = cache.chunk_blocks * _block_size(launch, slot)
    chunks = cache.host_bytes // (size.bytes_per_token * tokens)
    what = f"{format_size(cache.host_bytes)} hold {chunks:,} chunks of {tokens} tokens"
    if chunks < 2:
        return fail("host tier", what, "raise cache.host_bytes, or lower cache.chunk_blocks")
    if chunks < _FEW_CHUNKS:
        return warn("host tier", what, "raise cache.host_bytes, or lower cache.chunk_blocks")
    return ok("host tier", what)


def _block_size(launch: LaunchConfig, slot: EngineSlot) -> int:
    if launch.block_size is not None:
        return launch.block_size
    return CPU_BLOCK_SIZE if slot.device is Device.CPU else _CUDA_BLOCK_SIZE


def _kv_dtype(config: Mapping[str, Any], dtype: Dtype) -> str:
    if dtype is not Dtype.AUTO:
        return str(dtype)
    own = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return "float16" if own == "float32" else own  # vLLM's own choice on a GPU
