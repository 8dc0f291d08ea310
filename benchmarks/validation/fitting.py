"""Costs of engines, fitted to vLLM's published curves and to profiles; to nothing else.

What Llama-3.1-8B costs on one H100 is fitted to vLLM's curves of it. Qwen3-32B on two is AIConfigurator's
profile, slower by as much as vLLM's curve of Llama is than AIConfigurator's profile of Llama on the same GPU;
copies are as the curves have them, over two links.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from anbar.core.cost import CopyCost, EngineCost, TokenCurve
from anbar.plan.catalogue import MODELS
from anbar.plan.kv_size import kv_bytes_per_token
from anbar.plan.prefill import prefill_of
from benchmarks.validation import published

STEP_TOKENS = 8192
"""vLLM's default token budget of a step on an H100 behind its server."""
HIT_PROMPT = 512
"""Tokens of each prompt in the curve by hit rate."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Coefficients, and how much slower vLLM is than the profile."""

    llama: EngineCost
    scale: float


def relative_least_squares(columns: list[list[float]], seconds: list[float]) -> list[float]:
    """Coefficients of `columns` that miss `seconds` by the smallest shares."""
    measured = np.array(seconds)
    table = np.array(columns).T / measured[:, None]
    return [float(found) for found in np.linalg.lstsq(table, np.ones_like(measured), rcond=None)[0]]


def step_curve(floor_s: float, s_per_token: float) -> TokenCurve:
    """Weights are read once a step, which takes `floor_s`; then tokens cost what multiplying does."""
    knee = max(2, math.ceil(floor_s / s_per_token))
    last = max(STEP_TOKENS, 2 * knee)
    return TokenCurve(((1, floor_s), (knee, max(floor_s, s_per_token * knee)), (last, s_per_token * last)))


def copies() -> tuple[CopyCost, CopyCost]:
    """Of the copy engines: to the device, and to the host."""
    points = published.transfer_points()
    return _copy([(p.piece_bytes, p.to_device) for p in points]), _copy(
        [(p.piece_bytes, p.to_host) for p in points]
    )


def _copy(rates: list[tuple[int, float]]) -> CopyCost:
    seconds = [size / rate for size, rate in rates]
    sizes = [float(size) for size, _ in rates]
    per_copy, per_byte = relative_least_squares([[1.0] * len(sizes), sizes], seconds)
    return CopyCost(0.0, per_copy, per_byte)


def decode_of(model: str) -> tuple[float, float]:
    """Seconds of a decode step without context, and for each byte of KV that it reads."""
    points = published.decode_points(model)
    kv = kv_bytes_per_token(MODELS[model], "bfloat16")
    read = [float(kv * point.context * point.batch) for point in points]
    floor_s, per_byte = relative_least_squares([[1.0] * len(points), read], [p.seconds for p in points])
    return floor_s, per_byte


class Model(Protocol):
    """Runs the engine model, for what has no closed form."""

    def worst_throughput(self, cost: EngineCost) -> float:
        """The largest share by which throughput is missed at any hit rate."""
        ...

    def load_offset_s(self, cost: EngineCost) -> float:
        """What loads take longer than they do in the model, whatever their length."""
        ...


def llama(model: Model) -> Fitted:
    """Of Llama-3.1-8B on one H100."""
    points = published.ttft_points()
    profile = prefill_of("Llama-3.1-8B", "H100", 1, "bfloat16").cost
    scale = float(np.mean([p.compute_s / profile.seconds(p.num_tokens) for p in points]))
    floor_s, kv_s = decode_of("Llama-3.1-8B")
    load, store = copies()
    cost = EngineCost(decode_s_per_kv_byte=scale * kv_s, load=load, store=store)
    cost = _with_prefill(cost, scale * floor_s)
    cost = _with_prefill(replace(cost, front_s=max(0.0, model.load_offset_s(cost))), scale * floor_s)
    delays = [replace(cost, copy_delay=place / 10) for place in range(11)]
    return Fitted(min(delays, key=model.worst_throughput), scale)


def _with_prefill(cost: EngineCost, floor_s: float) -> EngineCost:
    """With the coefficients of the curve of computed prompts, beside what is outside of steps."""
    points = published.ttft_points()
    lengths = [float(point.num_tokens) for point in points]
    seconds = [point.compute_s - cost.front_s for point in points]
    prompts = STEP_TOKENS // HIT_PROMPT  # of the curve by hit rate, without a host tier, fill a step
    lengths.append(float(STEP_TOKENS))
    seconds.append(STEP_TOKENS / published.NO_OFFLOAD_TOKENS_PER_S)
    pairs = [n**2 for n in lengths[:-1]] + [float(prompts * HIT_PROMPT**2)]
    a, b = relative_least_squares([lengths, pairs], seconds)
    return replace(cost, tokens=step_curve(floor_s, a), prefill_s_per_token2=b)


def qwen(fitted: Fitted, load: CopyCost, store: CopyCost) -> EngineCost:
    """Of Qwen3-32B on two H100s, each of which copies its half of the KV at these costs."""
    prefill = prefill_of("Qwen3-32B", "H100", 2, "bfloat16").cost
    floor_s, kv_s = decode_of("Qwen3-32B")
    return EngineCost(
        tokens=step_curve(fitted.scale * floor_s, fitted.scale * prefill.a_s_per_token),
        prefill_s_per_token2=fitted.scale * prefill.b_s_per_token2,
        decode_s_per_kv_byte=fitted.scale * kv_s,
        load=replace(load, s_per_byte=load.s_per_byte / 2),
        store=replace(store, s_per_byte=store.s_per_byte / 2),
        copy_delay=fitted.llama.copy_delay,
        front_s=fitted.llama.front_s,
    )
