"""What an engine's steps cost, when nobody has measured it: from its prefill times and the GPUs' figures.

A step reads all weights that it needs once, so a small one is bound by memory; from where computing takes
longer the prefill's rate holds. What reading takes is `anbar.plan.decode`'s, for the verdict and for the
simulator alike.
"""

import math

from anbar.core.cost import CopyCost, EngineCost, TokenCurve
from anbar.plan.decode import read_s_per_byte, step_s
from anbar.plan.deployment import Deployment
from anbar.plan.weights import weights

_COPY_LATENCY_S = 2e-5
_S_PER_COPY = 3.4e-6
"""As `CopyCost` says of an H100's copy engines."""
_COPY_DELAY = 0.05
_FRONT_S = 0.003
_FRONT_S_PER_TOKEN = 1e-6
_FAR = 1_000_000
"""Tokens: beyond any step."""


def step_cost(deployment: Deployment) -> EngineCost:
    """Of one engine. Raises ConfigError as `prefill_of` and `weights` do."""
    prefill, gpu = deployment.prefill.cost, deployment.gpu
    size = weights(deployment.config)
    least_s = step_s(deployment, min(size.active, size.total))
    whole_s = step_s(deployment, size.total)
    link = deployment.num_gpus * gpu.host_bytes_per_s
    copy = CopyCost(_COPY_LATENCY_S, _S_PER_COPY, 1 / link)
    return EngineCost(
        tokens=_curve(least_s, whole_s, prefill.overhead_s, prefill.a_s_per_token),
        prefill_s_per_token2=prefill.b_s_per_token2,
        decode_s_per_kv_byte=read_s_per_byte(deployment),
        load=copy,
        store=copy,
        copy_delay=_COPY_DELAY,
        front_s=_FRONT_S,
        front_s_per_token=_FRONT_S_PER_TOKEN,
    )


def _curve(least_s: float, whole_s: float, overhead_s: float, s_per_token: float) -> TokenCurve:
    """From reading the weights that one token meets, through reading all of them, to computing."""
    bound_s = max(whole_s, overhead_s + s_per_token)
    num_bound = max(2, math.ceil((bound_s - overhead_s) / s_per_token))
    at_bound = max(bound_s, overhead_s + num_bound * s_per_token)
    return TokenCurve(((1, least_s), (num_bound, at_bound), (_FAR, overhead_s + _FAR * s_per_token)))
