"""What stored KV means: a digest of everything that must be equal for one engine to use another's blocks.

vLLM names a block by its tokens (LoRA, salt and images included), not by the model that computed it or
the way its bytes lie in memory. Those are the fingerprint: it is the store's namespace and stands in
every header, so engines with different fingerprints never meet. When in doubt a field is in: too narrow a
fingerprint costs hits, too wide a one gives wrong answers."""

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from vllm import __version__ as vllm_version
from vllm.config import ModelConfig, VllmConfig
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingSpec

from anbar.adapters.vllm.weights import weights_digest
from anbar.core.errors import ConfigError

FORMAT_VERSION = 1
_NOT_IDENTITY = ("_name_or_path", "transformers_version")
"""Fields of a model's configuration that say where it came from, not what it computes."""


def fingerprint(config: VllmConfig, spec: OffloadingSpec, row_bytes: int, weights_id: str | None) -> bytes:
    """32 bytes. `row_bytes` is the size of one stored value; `weights_id` replaces looking at the weights.

    Raises ConfigError when the weights cannot be told, or not those of LoRA adapters.
    """
    return digest_of(identity(config, spec, row_bytes, weights_id))


def digest_of(card: Mapping[str, object]) -> bytes:
    """Digest of an identity, independent of the order of its fields."""
    text = json.dumps(card, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).digest()


def identity(
    config: VllmConfig, spec: OffloadingSpec, row_bytes: int, weights_id: str | None
) -> dict[str, object]:
    """The fields of the fingerprint, as JSON values."""
    if config.lora_config is not None and weights_id is None:
        raise ConfigError(
            "LoRA is enabled, and vLLM names an adapter's KV by the adapter's name and path only: with other "
            "files under the same name, stored KV would be wrong. Set weights_id to a name that changes with "
            "the weights and the adapters, or use a cache mode without a shared store"
        )
    return {
        "format": FORMAT_VERSION,
        "vllm": ".".join(vllm_version.split(".")[:2]),
        "platform": _platform(),
        "model": _model(config.model_config, weights_id),
        "draft": _draft(config),
        "quantization": str(config.model_config.quantization),
        "attention_backend": str(config.attention_config.backend),
        "hash_algo": config.cache_config.prefix_caching_hash_algo,
        "kv_cache": _kv_cache(config, spec),
        "parallel": _parallel(spec),
        "row_bytes": row_bytes,
    }


def _platform() -> dict[str, str]:
    """CPU kernels pack keys differently per instruction set; GPUs of one kind share a layout."""
    card = {"device": current_platform.device_type, "machine": platform.machine()}
    if current_platform.is_cpu():
        card["isa"] = f"{torch.backends.cpu.get_cpu_capability()} amx={torch.cpu._is_amx_tile_supported()}"
    return card


def _model(model: ModelConfig, weights_id: str | None) -> dict[str, object]:
    hf_config = {k: v for k, v in model.hf_config.to_dict().items() if k not in _NOT_IDENTITY}
    return {"config": hf_config, "dtype": str(model.dtype), "weights": weights_id or _weights(model)}


def _weights(model: ModelConfig) -> str:
    path = Path(model.model)
    if not path.exists():
        path = _snapshot(model)
    return weights_digest(path)


def _snapshot(model: ModelConfig) -> Path:
    """Where a model named by its hub id lies on this machine."""
    try:
        return Path(snapshot_download(model.model, revision=model.revision, local_files_only=True))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"the weights of {model.model} are not on this machine: give the shared tier a weights_id, "
            "a name that changes with the weights"
        ) from error


def _draft(config: VllmConfig) -> object:
    """A speculative model's layers may lie in the same blocks."""
    speculative = config.speculative_config
    draft = speculative.draft_model_config if speculative is not None else None
    return _model(draft, None) if draft is not None else None


def _kv_cache(config: VllmConfig, spec: OffloadingSpec) -> dict[str, object]:
    offloading = spec.config
    return {
        "dtype": offloading.model.dtype,
        "layout": offloading.kv_cache_layout,
        "canonical": offloading.canonical_layout,
        "replicated": spec.replicated_layout,
        "tokens_per_hash": offloading.cache.tokens_per_hash,
        "blocks_per_chunk": offloading.cache.blocks_per_chunk,
        "worker_bytes_per_block": offloading.worker_kv_bytes_per_block,
        "groups": [[g.group_id, g.tokens_per_block, list(g.layer_names)] for g in offloading.groups],
    }


def _parallel(spec: OffloadingSpec) -> dict[str, int]:
    """A row holds the shards of all workers one after the other, so the sharding is part of its meaning."""
    parallel = spec.config.parallel
    return {
        "world": parallel.world_size,
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "pcp": parallel.pcp_size,
        "dcp": parallel.dcp_size,
    }
