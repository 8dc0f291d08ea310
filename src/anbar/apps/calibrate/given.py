"""What an engine does not tell over its API, and where else it may be read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from anbar.apps.calibrate.target import EngineFacts
from anbar.core.errors import ConfigError, MeasureError
from anbar.plan.kv_size import kv_bytes_per_token

_UNKNOWN = "unknown"
"""What the file says of a dtype that nobody told."""


@dataclass(frozen=True, slots=True)
class Given:
    """Said by whoever calibrates; `KEY=VALUE` on the command line."""

    device: str = ""
    """Name of the processor, for the file. "": cpu, or this machine's GPU, when the engine runs here."""
    dtype: str = ""
    """Of the weights and the KV, as the engine was started with. "": as the model's config.json says."""
    kv_bytes_per_token: int = 0
    """0: as the engine copies to its host tier, else told from the model's config.json and `dtype`."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step, as the engine was started with. The default is vLLM's own on a CPU and on GPUs
    of less than 70 GB; it is 8192 on an H100."""


def parse_given(settings: Sequence[str]) -> Given:
    """`KEY=VALUE` settings. Raises ConfigError, naming what is allowed."""
    kinds = {item.name: type(item.default) for item in fields(Given)}
    values: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in kinds or not value:
            names = ", ".join(f"{name}=…" for name in kinds)
            raise ConfigError(f"command line --given {setting!r}; allowed: {names}")
        if kinds[key] is str:
            values[key] = value
        elif value.isascii() and value.isdigit() and int(value) > 0:
            values[key] = int(value)
        else:
            raise ConfigError(f"command line --given {key}: {value!r}; allowed: whole numbers from 1")
    return Given(**values)


def dtype_of(facts: EngineFacts, given: Given) -> str:
    """As given, else as the model's config.json says, else "unknown"."""
    config = _model_config(facts)
    own = str(config.get("dtype") or config.get("torch_dtype") or _UNKNOWN)
    return given.dtype or own.removeprefix("torch.")


def kv_bytes_of(facts: EngineFacts, given: Given, copied: int) -> int:
    """Bytes of one token's KV; `copied` as the host tier's counters have it, 0 when they do not say.

    Raises MeasureError when nobody knows.
    """
    if given.kv_bytes_per_token or copied:
        return given.kv_bytes_per_token or copied
    config, dtype = _model_config(facts), dtype_of(facts, given)
    try:
        if not config:
            raise ConfigError("its config.json cannot be read on this machine")
        if dtype == _UNKNOWN:
            raise ConfigError("its config.json names no dtype")
        return kv_bytes_per_token(config, dtype)
    except ConfigError as error:
        raise MeasureError(
            f"the KV bytes of a token of {facts.root!r} are not known here: {error}; say them: "
            "--given kv_bytes_per_token=N (2 × layers × KV heads × head size × bytes of the dtype)"
        ) from error


def _model_config(facts: EngineFacts) -> Mapping[str, Any]:
    """The model's config.json when it lies on this machine, else nothing."""
    try:
        config = json.loads((Path(facts.root) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, Mapping) else {}
