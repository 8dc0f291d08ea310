"""What answers cost an engine, and how many of them run at a time."""

import math
from dataclasses import dataclass

from anbar.plan.deployment import Deployment
from anbar.plan.prefill import weight_bytes_in
from anbar.plan.weights import weights

_SHARE = 0.6
"""Of the memory's rate on the data sheet: Llama-2-70B's steps on 2 x H100 and 2 x A100 reach 0.55 to 0.62
(Splitwise's measurements, batches of 1 and 8)."""
_STEP_S = 0.004
"""Of a step, whatever is in it."""
MAX_RUNNING = 256
"""Requests in one step: vLLM's default for --max-num-seqs."""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """A step that adds one token to each of B answers takes `step_s + B x context x s_per_kv_token`."""

    step_s: float
    s_per_kv_token: float
    source: str

    def seconds(self, num_answer: float, context: float, running: float) -> float:
        """Of the engine, for one answer of so many tokens among `running` others."""
        return num_answer * (self.step_s / max(1.0, running) + context * self.s_per_kv_token)


def decode_of(deployment: Deployment) -> DecodeCost:
    """From the data sheet: a step reads the weights once, and all KV of the answers in it."""
    rate = deployment.num_gpus * deployment.gpu.memory_bytes_per_s * _SHARE
    size = weights(deployment.config)
    met = math.sqrt(size.active * size.total) if size.total > 1.5 * size.active else size.total
    return DecodeCost(
        step_s=_STEP_S + met * weight_bytes_in(deployment.weight_format) / rate,
        s_per_kv_token=deployment.device_bytes_per_token / rate,
        source=f"steps read weights and KV at {_SHARE} of {deployment.gpu_name}'s memory rate",
    )


@dataclass(frozen=True, slots=True)
class Load:
    """What one engine is asked to do, on average."""

    requests_per_s: float
    prefill_s: float
    """Of a request, with what the device finds."""
    num_answer: float
    context: float
    """Tokens of a request in the middle of its answer."""

    def running(self, decode: DecodeCost) -> float:
        """Answers at a time, if nothing but time limits them; inf: they would pile up.

        By Little's law B = rate x answer x step / (share of the time left beside prefills), where the step
        itself grows with B: solved for B.
        """
        each = self.requests_per_s * self.num_answer
        left = 1.0 - self.requests_per_s * self.prefill_s - each * self.context * decode.s_per_kv_token
        return each * decode.step_s / left if left > 0.0 else math.inf
