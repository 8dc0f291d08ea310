"""What answers cost an engine, and how many of them run at a time.

A step reads the weights that its tokens meet once, and all KV of the answers in it, at a share of the
memory's rate on the data sheet. AIConfigurator 0.12's decode steps of vLLM on H100s (Llama-3.1-8B on one,
Qwen3-32B on two; contexts of 512 to 30,256, 1 to 16 answers) support it: this is 4 % off on average, between
8 % sooner and 18 % later (`tests/unit/plan/test_decode.py`). vLLM of 2023 was slower: a step of Llama-2-70B
on two H100s or A100s took 1.25 to 1.35 times as long as this (Splitwise).
"""

import math
from dataclasses import dataclass

from anbar.plan.deployment import Deployment
from anbar.plan.prefill import weight_bytes_in
from anbar.plan.weights import weights

_MEMORY_SHARE = 0.75
_STEP_S = 0.001
"""Of a step, whatever is in it: scheduling and sampling."""
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


def step_s(deployment: Deployment, num_weights: float) -> float:
    """Of a step that computes next to nothing and reads so many weights."""
    return _STEP_S + num_weights * weight_bytes_in(deployment.weight_format) * read_s_per_byte(deployment)


def read_s_per_byte(deployment: Deployment) -> float:
    """Of weights, and of the KV that answers attend to, from the memory of all GPUs."""
    return 1 / (_MEMORY_SHARE * deployment.num_gpus * deployment.gpu.memory_bytes_per_s)


def decode_of(deployment: Deployment) -> DecodeCost:
    """From the data sheet."""
    size = weights(deployment.config)
    met = math.sqrt(size.active * size.total) if size.total > 1.5 * size.active else size.active
    return DecodeCost(
        step_s=step_s(deployment, met),
        s_per_kv_token=deployment.device_bytes_per_token * read_s_per_byte(deployment),
        source=f"steps read weights and KV at {_MEMORY_SHARE} of {deployment.gpu_name}'s memory rate",
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
