"""The arithmetic of break-even against published and measured figures."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import PrefillCost, TierCost
from anbar.plan.break_even import Tenant, Throughput, bandwidth_needed, length_needed
from anbar.plan.catalogue import MODELS
from anbar.plan.kv_size import KvSize, kv_bytes_per_token, kv_size
from anbar.plan.prefill import prefill_of

MEASURED = PrefillCost(23.2e-6, 0.453e-9)
"""Llama-3.1-8B on an H100, fitted to vLLM's blog of 2026-01-08."""
HOST = TierCost(0.015, 44.3e9)
"""Its load from host RAM."""
KV_8B = 131_072

PUBLISHED_GB_PER_S = {
    ("H100", "Llama-3.1-8B", 1, "bfloat16", "bfloat16"): (6.1, 5.4, 4.0, 1.8),
    ("H100", "Llama-3.1-70B", 4, "bfloat16", "bfloat16"): (5.0, 4.7, 4.2, 2.6),
    ("H100", "Llama-3.1-70B", 4, "fp8", "fp8"): (2.9, 3.4, 2.7, 1.5),
    ("H100", "DeepSeek-V3", 8, "fp8", "bfloat16"): (0.7, 1.1, 1.0, 0.6),
    ("A100-80GB", "Llama-3.1-70B", 4, "bfloat16", "bfloat16"): (1.8, 2.0, 1.6, 0.8),
}
"""At 1K, 8K, 32K and 128K tokens, per replica: KV bytes over the profile's times."""


@pytest.mark.parametrize("key", PUBLISHED_GB_PER_S)
def test_the_bandwidth_below_which_loading_loses(key: tuple[str, str, int, str, str]) -> None:
    """Known models at four lengths; the fit of the profile may be 8 % off, the rounding of 0.1 more."""
    gpu, model, num_gpus, weight_format, kv_format = key
    prefill = prefill_of(model, gpu, num_gpus, weight_format).cost
    kv = kv_size(MODELS[model], kv_format)
    needed = [bandwidth_needed(prefill, kv, 1024 * k) / 1e9 for k in (1, 8, 32, 128)]
    assert needed == pytest.approx(PUBLISHED_GB_PER_S[key], rel=0.08, abs=0.1)


@given(
    st.floats(1e-6, 1e-3),
    st.floats(0, 1e-8),
    st.floats(0, 0.1),
    st.floats(0, 1.0),
    st.floats(1e6, 1e11),
    st.sampled_from([1, 16, 256]),
)
def test_the_shortest_length_that_gains(
    a: float, b: float, overhead: float, latency: float, rate: float, step: int
) -> None:
    """One step less does not gain, none that is longer loses: seen by trying all."""
    prefill, tier = PrefillCost(a, b, overhead), TierCost(latency, rate)
    found = length_needed(prefill, tier, KvSize(KV_8B), 4096, step)
    gains = [n for n in range(step, 4097, step) if tier.seconds(n * KV_8B) < prefill.seconds(n)]
    if found is None:
        assert 4096 // step * step not in gains
    else:
        assert found in gains
        if b or overhead <= latency:
            assert found == gains[0] or (gains[0] < found and found - step not in gains)


def test_the_bandwidth_leaves_room_for_the_latency() -> None:
    """At twice the bandwidth that is needed after 15 ms loading is sooner, at half of it later; a latency as
    long as the computing no bandwidth makes good."""
    needed = bandwidth_needed(MEASURED, KvSize(KV_8B), 2048, 0.015)
    compute_s = MEASURED.seconds(2048)
    assert TierCost(0.015, 2 * needed).seconds(2048 * KV_8B) < compute_s
    assert TierCost(0.015, needed / 2).seconds(2048 * KV_8B) > compute_s
    assert bandwidth_needed(MEASURED, KvSize(KV_8B), 2048, compute_s) == math.inf


def test_loading_from_host_ram_gains_from_the_first_hundreds_of_tokens() -> None:
    """15 ms of latency against 20 us a token that it is faster: from some 740 tokens on."""
    length = length_needed(MEASURED, HOST, KvSize(KV_8B), 131_072)
    assert length is not None
    assert 700 < length < 760
    assert HOST.seconds(length * KV_8B) < MEASURED.seconds(length)


def test_spinning_disks_never_gain() -> None:
    """4K tokens of a 70B in FP8 are 671 MB: 12 s from one disk of 0.05 GB/s, 0.2 s to compute."""
    prefill = prefill_of("Llama-3.1-70B", "H100", 4, "fp8").cost
    kv = kv_bytes_per_token(MODELS["Llama-3.1-70B"], "fp8")
    assert 4096 * kv == 671_088_640
    disk = TierCost(0.01, 0.055e9)
    assert 12 < disk.seconds(4096 * kv) < 14
    assert 0.2 < prefill.seconds(4096) < 0.22
    assert length_needed(prefill, disk, KvSize(kv), 131_072) is None


def test_hits_that_pay_for_storing() -> None:
    """vLLM's own test: 2.5 % overhead, loading at 0.11 of computing: 2.8 % of hits when all is prefill, 9 %
    when a third is. Below it throughput falls, above it rises; where loading is slower it never pays."""
    assert Throughput(0.025, 1.0, 0.11).hits_needed() == pytest.approx(0.028, abs=0.0005)
    some = Throughput(0.025, 0.3, 0.11)
    assert some.hits_needed() == pytest.approx(0.094, abs=0.0005)
    assert some.gain(some.hits_needed()) == pytest.approx(0.0)
    assert some.gain(0.0) < 0.0 < some.gain(0.2)
    assert Throughput(0.025, 0.3, 1.1).hits_needed() == math.inf


def test_one_tenant_with_a_long_system_prompt() -> None:
    """6K tokens, 200 queries an hour: 1.2 million tokens an hour at most, half a minute of an 8B's H100. What
    the device has not kept for itself is exp(-T / 18 s)."""
    tenant = Tenant(6_000, 200 / 3600)
    assert tenant.avoidable_tokens_per_s() * 3600 == pytest.approx(1.2e6)
    assert [round(tenant.left_to_tier(kept), 2) for kept in (5, 18, 300)] == [0.76, 0.37, 0.0]
    free = TierCost(0.0, math.inf)
    assert tenant.saved_s_per_s(MEASURED, free, KvSize(KV_8B), 0.0) * 3600 == pytest.approx(31, abs=1)
    assert tenant.saved_s_per_s(MEASURED, TierCost(0.0, 0.2e9), KvSize(KV_8B), 0.0) < 0.0
