"""What a model's prefill costs on GPUs, when nobody has measured it.

Where the model and the GPUs are profiled (`profiles.py`), three coefficients are fitted to that. Otherwise
they come from the hardware's figures: matrix products, attention and the sums over tensor-parallel GPUs, each
at a share of the rate on the data sheet. Those shares are what the profiles of dense models show: from 2,048
tokens on within 12 % in 16 bits and 15 % in FP8 (`tests/unit/plan/test_prefill.py`). Models with experts have
no such rule, since what limits them is not arithmetic: unprofiled ones are said to be uncertain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anbar.core.cost import PrefillCost
from anbar.core.errors import ConfigError
from anbar.plan.catalogue import GPUS, MODELS, Gpu, gpu_key
from anbar.plan.model_config import text_model
from anbar.plan.profiles import LENGTHS, PREFILL_MS
from anbar.plan.weights import weights

FORMATS: Mapping[str, float] = {
    "float32": 4.0,
    "float16": 2.0,
    "bfloat16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": 0.53,
    "int4": 0.53,
}
"""Bytes of one weight; formats of 4 bits have scales beside them."""

_SHARE_16 = {"A100-40GB": 0.81, "A100-80GB": 0.81}
_SHARE_16_OTHERS = 0.70
_SHARE_8 = 0.54
_SHARE_ATTENTION = 0.64
_SUM_BYTES_PER_S = 300e9
"""At which a GPU takes part in a sum over NVLink."""
_SUM_BYTES_PER_S_PCIE = 20e9
_WITHOUT_NVLINK = frozenset(("A10G", "L4", "L40S", "RTX-4090"))
_OVERHEAD_S = 0.004
_SHARE_EXPERTS = 0.35


@dataclass(frozen=True, slots=True)
class Prefill:
    """Coefficients, and where they come from."""

    cost: PrefillCost
    source: str
    """A sentence for whoever asks for the arithmetic."""
    is_sure: bool = True
    """False: within a factor of two or so."""


def prefill_of(model: str | Mapping[str, Any], gpu: str, tensor_parallel: int, weight_format: str) -> Prefill:
    """Of a model by its name in the catalogue, or by its config.json, on so many GPUs of a known name.

    Raises ConfigError when a number of the config or the format is not known.
    """
    weight_bytes_in(weight_format)
    gpu = gpu_key(gpu)
    measured = (
        PREFILL_MS.get((gpu, model, tensor_parallel, weight_format)) if isinstance(model, str) else None
    )
    if measured is not None:
        source = f"AIConfigurator 0.12's profile of {model} on {tensor_parallel} x {gpu}, {weight_format}"
        return Prefill(_fitted(measured), source)
    config = MODELS[model] if isinstance(model, str) else model
    return _from_figures(config, gpu, tensor_parallel, weight_format)


def weight_bytes_in(weight_format: str) -> float:
    """Bytes of one weight. Raises ConfigError with the formats there are."""
    if weight_format not in FORMATS:
        raise ConfigError(f"format {weight_format!r} of weights is not known; allowed: {', '.join(FORMATS)}")
    return FORMATS[weight_format]


def _fitted(times_ms: tuple[float, ...]) -> PrefillCost:
    """Least squares of the shares by which each time is missed; no coefficient below 0."""
    seconds = np.array(times_ms) / 1e3
    lengths = np.array(LENGTHS, float)
    rows = np.stack([np.ones_like(lengths), lengths, lengths**2], axis=1) / seconds[:, None]
    overhead, linear, square = np.linalg.lstsq(rows, np.ones_like(seconds), rcond=None)[0].tolist()
    return PrefillCost(linear, square, max(0.0, overhead))


def _from_figures(config: Mapping[str, Any], name: str, num_gpus: int, weight_format: str) -> Prefill:
    gpu, size = GPUS[name], weights(config)
    model = text_model(config)
    rate = num_gpus * _rate(gpu, name, weight_format)
    has_experts = size.total > 1.5 * size.active and "num_experts_per_tok" in model
    if has_experts:
        rate *= _SHARE_EXPERTS / _SHARE_16_OTHERS
    sums = 2 * model["num_hidden_layers"] * model["hidden_size"] * 2 * 2 * (num_gpus - 1) / num_gpus
    sum_rate = _SUM_BYTES_PER_S_PCIE if name in _WITHOUT_NVLINK else _SUM_BYTES_PER_S
    cost = PrefillCost(
        a_s_per_token=2 * size.active / rate + sums / sum_rate,
        b_s_per_token2=2 * size.attention_width / (num_gpus * gpu.flops * _SHARE_ATTENTION),
        overhead_s=_OVERHEAD_S,
    )
    source = f"{num_gpus} x {name} at the share of their rates that profiled dense models reach"
    if has_experts:
        source += "; experts are limited by more than arithmetic: measure with `anbar calibrate`"
    return Prefill(cost, source, is_sure=not has_experts)


def _rate(gpu: Gpu, name: str, weight_format: str) -> float:
    """Operations a second that one GPU's matrix products reach. 4-bit weights are multiplied in 16 bits."""
    if weight_format in ("fp8", "int8") and gpu.fp8_flops > gpu.flops:
        return _SHARE_8 * gpu.fp8_flops
    share = _SHARE_16.get(name, _SHARE_16_OTHERS)
    return share * gpu.flops / (2 if weight_format == "float32" else 1)
