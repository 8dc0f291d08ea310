"""The files that apply a verdict: anbar.yaml, and the same as Helm values."""

from pathlib import Path
from typing import Any

import yaml

from anbar.apps.advise.deployment import DeploymentSpec
from anbar.config.load import load
from anbar.core.errors import ConfigError
from anbar.plan.reasons import Choice
from anbar.plan.verdict import Verdict

_CHANGE_ME = "change-me"
_BLOCK = 16
"""Tokens of vLLM's blocks on GPUs."""


def write_verdict(directory: Path, verdict: Verdict, spec: DeploymentSpec) -> tuple[Path, ...]:
    """Writes `anbar.yaml` and `values.yaml`, and reads the former back as every other command would.

    Raises ConfigError: they cannot be written.
    """
    content = settings_of(verdict, spec)
    files = {"anbar.yaml": content, "values.yaml": {"anbar": content}}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
            (directory / name).write_text(f"{_head(verdict)}{text}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written: {error.strerror}") from error
    load(directory / "anbar.yaml")
    return tuple(directory / name for name in files)


def _head(verdict: Verdict) -> str:
    lines = [f"Verdict: {verdict.choice}. {verdict.reasons[0].text}."]
    if verdict.choice is Choice.SHARED:
        lines.append(f"Addresses of the store are to be filled in ({_CHANGE_ME}).")
    return "".join(f"# {line}\n" for line in lines)


def settings_of(verdict: Verdict, spec: DeploymentSpec) -> dict[str, Any]:
    """`anbar.yaml` as plain data: engines that this machine launches, and the cache that the verdict is."""
    launch: dict[str, Any] = {"model": spec.model, "device": "cuda", "count": spec.engines}
    if spec.tensor_parallel > 1:
        launch["tensor_parallel"] = spec.tensor_parallel
    if spec.dtype in ("float32", "float16"):
        launch["dtype"] = spec.dtype
    if spec.kv_dtype.startswith("fp8"):
        launch["args"] = ["--kv-cache-dtype", spec.kv_dtype]
    router: dict[str, Any] = {"policy": "predicted_ttft" if spec.affinity else "round_robin"}
    if spec.slo_ttft_s is not None:
        router["slo_ttft_s"] = spec.slo_ttft_s
    if verdict.choice is Choice.SHARED:
        launch["weights_id"] = spec.model  # a store must not mix up weights; see docs/reference
    engine = {"name": "engine", "launch": launch}
    return {"engines": [engine], "cache": _cache(verdict, spec), "router": router}


def _cache(verdict: Verdict, spec: DeploymentSpec) -> dict[str, Any]:
    if verdict.choice is Choice.NEITHER:
        return {"mode": "none"}
    host = {"host_bytes": verdict.host_bytes} if verdict.host_bytes else {}
    host["chunk_blocks"] = max(1, spec.chunk_tokens // _BLOCK)
    if verdict.choice is Choice.NATIVE:
        return {"mode": "native", **host}
    if verdict.lmcache:
        return {"mode": "lmcache"}
    assert spec.store is not None
    return {"mode": "shared", **host, "store": _store(spec.store.medium, spec.store.capacity)}


def _store(medium: str, capacity: int | None) -> dict[str, Any]:
    if medium.startswith("valkey"):
        return {"kind": "valkey", "valkey": {"nodes": [f"{_CHANGE_ME}:6379"]}}
    if medium.startswith("ceph-"):
        return {"kind": "s3", "s3": {"endpoint": f"https://{_CHANGE_ME}:8443", "bucket": _CHANGE_ME}}
    bounds = {"capacity_bytes": capacity} if capacity else {}
    return {"kind": "files", "path": f"/mnt/{_CHANGE_ME}", **bounds}
