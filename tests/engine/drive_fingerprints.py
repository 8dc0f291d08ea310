"""What engines must agree on to use each other's KV: their fingerprints, over vLLM's real configurations,
without an engine; runs in the engine's interpreter.

    python drive_fingerprints.py <output file>

Writes, as JSON, what `test_vllm_contract` says must be there.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)

from anbar.adapters.vllm import fingerprint
from anbar.adapters.vllm.fingerprint import digest_of, identity
from anbar.core.errors import AnbarError

VARIANTS: Mapping[str, object] = {
    "config.model_config.dtype": "torch.float16",
    "config.model_config.quantization": "fp8",
    "config.model_config.hf_config": SimpleNamespace(to_dict=lambda: {"rope_theta": 2}),
    "config.attention_config.backend": "FLASH",
    "config.cache_config.prefix_caching_hash_algo": "sha256_cbor",
    "offloading.model.dtype": "fp8",
    "offloading.kv_cache_layout": "BLHNC",
    "offloading.canonical_layout": True,
    "offloading.worker_kv_bytes_per_block": 8192,
    "offloading.cache.tokens_per_hash": 16,
    "offloading.cache.blocks_per_chunk": 2,
    "offloading.groups": (OffloadingGroupConfig(64, ("layers.0", "layers.1"), 0),),
    "offloading.groups ": (OffloadingGroupConfig(32, ("layers.0",), 0),),
    "offloading.parallel.world_size": 2,
    "offloading.parallel.tp_size": 2,
    "offloading.parallel.pp_size": 2,
    "offloading.parallel.pcp_size": 2,
    "offloading.parallel.dcp_size": 2,
    "replicated_layout": True,
    "rows": 4096,
    "weights": "other",
    "module.vllm_version": "0.33.0",
    "module.FORMAT_VERSION": 2,
    "module.current_platform": SimpleNamespace(device_type="cuda", is_cpu=lambda: False),
    "config.speculative_config": SimpleNamespace(
        draft_model_config=SimpleNamespace(
            hf_config=SimpleNamespace(to_dict=dict), dtype="torch.float16", model="/nowhere"
        )
    ),
}
"""What one engine may have different from another, each of which makes other KV of the same tokens."""

SAME: Mapping[str, object] = {
    "config.model_config.hf_config": SimpleNamespace(
        to_dict=lambda: {"_name_or_path": "/elsewhere", "transformers_version": "9", "rope_theta": 1}
    ),
    "offloading.engine_id": "another",
    "offloading.parallel.rank": 1,
    "offloading.parallel.data_parallel_index": 1,
}
"""What makes none."""


def fingerprints() -> object:
    """The variants whose fingerprint is that of the engine they differ from, or of each other; and those that
    should be equal and are not. The third: whether a patch release of vLLM is the same."""
    base = digest_of(_identity())
    with patch.object(fingerprint, "_weights", lambda model: "draft"):
        of = {digest_of(_identity(name, value)): name for name, value in VARIANTS.items()}
    alike = sorted(VARIANTS.keys() - of.values()) + [name for digest, name in of.items() if digest == base]
    apart = [name for name, value in SAME.items() if digest_of(_identity(name, value)) != base]
    patches = [digest_of(_identity("module.vllm_version", f"0.32.{number}")) for number in (0, 9)]
    return [alike, apart, patches[0] == patches[1]]


def _identity(name: str = "", value: object = None, *, lora: object = None) -> dict[str, object]:
    """Of one engine, with one thing changed."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(to_dict=lambda: {"_name_or_path": "/here", "rope_theta": 1}),
            dtype="torch.float32",
            quantization=None,
        ),
        attention_config=SimpleNamespace(backend=None),
        cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256"),
        speculative_config=None,
        lora_config=lora,
    )
    offloading = OffloadingConfig(
        groups=(OffloadingGroupConfig(32, ("layers.0", "layers.1"), 0),),
        worker_kv_bytes_per_block=4096,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="e",
        model=OffloadingModelConfig("name", "float32"),
        cache=OffloadingCacheConfig(32, 1),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        kv_cache_layout="LBHNC",
    )
    spec = SimpleNamespace(config=offloading, replicated_layout=name == "replicated_layout")
    where, *path = name.strip().split(".")
    if where == "offloading":
        spec.config = _with(offloading, path, value)
    elif where == "config":
        _put(config, path, value)
    rows = value if name == "rows" else 8192
    weights = value if name == "weights" else "weights"
    module = patch.object(fingerprint, path[0], value) if where == "module" else nullcontext()
    with module:
        return identity(config, spec, rows, weights)


def _with(frozen: Any, path: Sequence[str], value: object) -> Any:
    first, *rest = path
    return replace(frozen, **{first: _with(getattr(frozen, first), rest, value) if rest else value})


def _put(space: SimpleNamespace, path: Sequence[str], value: object) -> None:
    for name in path[:-1]:
        space = getattr(space, name)
    setattr(space, path[-1], value)


def adapters() -> object:
    """What is said of an engine with LoRA whose adapters nobody vouches for, and whether a name will do."""
    try:
        _identity("weights", None, lora=SimpleNamespace())
    except AnbarError as error:
        return [str(error), _identity(lora=SimpleNamespace()) == _identity()]
    return ["no error", False]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({"fingerprints": fingerprints(), "adapters": adapters()}))
