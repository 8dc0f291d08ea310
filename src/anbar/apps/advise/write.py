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


_FILES = ("anbar.yaml", "values.yaml")
_QUANTIZED = "fp8"
"""The format to which vLLM itself brings 16-bit weights when it loads them (`--quantization`)."""


def refuse_to_overwrite(directory: Path) -> None:
    """Raises ConfigError: what would be written is there already, and may be somebody's own."""
    for name in _FILES:
        if (directory / name).exists():
            text = "is there already and is not overwritten; allowed: a directory without"
            raise ConfigError(f"command line --write: {directory / name} {text} {' and '.join(_FILES)}")


def write_verdict(directory: Path, verdict: Verdict, spec: DeploymentSpec) -> tuple[Path, ...]:
    """Writes `anbar.yaml` and `values.yaml`, and reads the former back as every other command would.

    Raises ConfigError: they cannot be written, or are there already.
    """
    refuse_to_overwrite(directory)
    content = settings_of(verdict, spec)
    files = dict(zip(_FILES, (content, {"anbar": content}), strict=True))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
            (directory / name).write_text(f"{_head(verdict, spec)}{text}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written: {error.strerror}") from error
    load(directory / "anbar.yaml")
    return tuple(directory / name for name in files)


def _head(verdict: Verdict, spec: DeploymentSpec) -> str:
    lines = [f"Verdict: {verdict.choice}. {verdict.reasons[0].text}."]
    if verdict.choice is Choice.SHARED:
        lines.append(f"Addresses of the store are to be filled in ({_CHANGE_ME}).")
    if not spec.dtype.startswith(("float", "bfloat")):
        text = f"The verdict is of weights in {spec.dtype}: `model` must name a checkpoint in that format"
        if spec.dtype == _QUANTIZED:
            text += (
                ", or one in 16 bits with --quantization fp8, as here. Take that out for another kind of FP8"
            )
        lines.append(f"{text}.")
    return "".join(f"# {line}\n" for line in lines)


def settings_of(verdict: Verdict, spec: DeploymentSpec) -> dict[str, Any]:
    """`anbar.yaml` as plain data: engines that this machine launches, and the cache that the verdict is."""
    launch: dict[str, Any] = {"model": spec.model, "device": "cuda", "count": spec.engines}
    if spec.tensor_parallel > 1:
        launch["tensor_parallel"] = spec.tensor_parallel
    if spec.dtype in ("float32", "float16"):
        launch["dtype"] = spec.dtype
    args = ["--quantization", spec.dtype] if spec.dtype == _QUANTIZED else []
    args += ["--kv-cache-dtype", spec.kv_dtype] if spec.kv_dtype.startswith("fp8") else []
    if args:
        launch["args"] = args
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
