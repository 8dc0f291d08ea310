"""Step costs from a deployment: large steps are the prefill's, small ones the memory's."""

import pytest

from anbar.plan.catalogue import GPUS, MODELS
from anbar.plan.decode import decode_of
from anbar.plan.deployment import Deployment
from anbar.plan.step_cost import step_cost

DEPLOYMENTS = [
    Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100"),
    Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100", 4, "fp8", "fp8"),
    Deployment("Qwen3-30B-A3B", MODELS["Qwen3-30B-A3B"], "RTX-4090", 2),
    Deployment("", MODELS["Mistral-7B"], "L4"),
]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: f"{d.name or 'config'} on {d.gpu_name}")
def test_a_large_step_takes_what_the_prefill_takes(deployment: Deployment) -> None:
    """8,192 tokens of one prompt: the curve and the pairs together are the prefill's time."""
    cost, prefill = step_cost(deployment), deployment.prefill.cost
    step_s = cost.tokens.seconds(8192) + cost.prefill_s_per_token2 * 8192**2
    assert step_s == pytest.approx(prefill.seconds(8192), rel=1e-6)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: f"{d.name or 'config'} on {d.gpu_name}")
def test_a_small_step_reads_the_weights(deployment: Deployment) -> None:
    """One token takes longer than the memory needs for the weights that it meets, and no step less than a
    smaller one."""
    cost = step_cost(deployment)
    times = [cost.tokens.seconds(tokens) for tokens in (1, 2, 8, 64, 300, 1000, 3000, 9000)]
    assert times == sorted(times)
    assert 0.001 < times[0] < 0.2


def test_an_8b_decodes_as_the_verdict_says() -> None:
    """One estimate for both: a step of one answer, and what the KV of its context adds."""
    cost, decode = step_cost(DEPLOYMENTS[0]), decode_of(DEPLOYMENTS[0])
    assert cost.tokens.seconds(1) == decode.step_s
    assert cost.decode_s_per_kv_byte * 131_072 == pytest.approx(decode.s_per_kv_token)
    assert cost.load.s_per_byte == 1 / GPUS["H100"].host_bytes_per_s
