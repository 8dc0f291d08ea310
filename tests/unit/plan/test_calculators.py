"""What the calculators say: figures that are known, conclusions on both sides of each limit."""

import pytest

from anbar.core.cost import PrefillCost, TierCost
from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer, in_words
from anbar.plan.break_even import Tenant, Throughput
from anbar.plan.calculators import (
    break_even_of,
    kv_size_of,
    node_loss_of,
    offload_of,
    tenant_of,
    tier_read_of,
)
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.media import MEDIA, Medium, medium_named

SMALL = Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100")
LARGE = Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100", 4, "fp8", "fp8")


def figure(answer: Answer, words: str) -> float:
    """The one whose name has `words`."""
    (found,) = [figure.value for figure in answer.figures if words in figure.name]
    return found


def test_the_size_of_kv_and_what_fits() -> None:
    """4,096 tokens of a 70B in FP8 are 671 MB, not the 500 MB that are often quoted."""
    answer = kv_size_of(LARGE, 4096)
    assert figure(answer, "KV of 4,096 tokens") == 671_088_640
    assert figure(answer, "tokens that fit") == LARGE.kv_pool_bytes // 163_840
    assert any("vLLM logs the true number" in text for text in answer.assumptions)


def test_windows_are_said() -> None:
    """A model of which half the layers keep 128 tokens says so."""
    answer = kv_size_of(Deployment("gpt-oss-120b", MODELS["gpt-oss-120b"], "H100", 1, "mxfp4"), 8192)
    assert any("need only the last 128 tokens" in text for text in answer.assumptions)


def test_weights_that_do_not_fit_are_refused() -> None:
    """With what they take and what to do."""
    with pytest.raises(ConfigError, match=r"the weights \(141 GB\) do not fit on 1 x H100: take more GPUs"):
        kv_size_of(Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100"), 1)


def test_a_prefix_on_gpus_that_cannot_hold_the_model() -> None:
    """Is refused in the same words."""
    small = Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100")
    with pytest.raises(ConfigError, match="do not fit on 1 x H100"):
        tenant_of(small, MEDIA["host-pcie5"], Tenant(6000, 0.1), 18.0)


def test_ranks_that_keep_copies() -> None:
    """Every rank keeps DeepSeek's whole latent: eight GPUs hold what one would. Of 4 KV heads on 8 ranks each
    is there twice, in host RAM too."""
    latent = Deployment("DeepSeek-V3", MODELS["DeepSeek-V3"], "H200", 8, "fp8")
    assert figure(kv_size_of(latent, 1), "tokens that fit") == latent.kv_pool_bytes // (8 * 70_272)
    assert latent.host_bytes_per_token == 70_272
    few = Deployment("Qwen3-30B-A3B", MODELS["Qwen3-30B-A3B"], "H100", 8)
    assert (few.device_bytes_per_token, few.host_bytes_per_token) == (196_608, 196_608)
    assert LARGE.device_bytes_per_token == LARGE.kv_bytes_per_token


def test_break_even_by_medium() -> None:
    """Host RAM pays within a few chunks; network SSDs behind CephFS at no length."""
    host = break_even_of(SMALL, MEDIA["host-pcie5"], 256)
    assert figure(host, "shortest prefix") == 1024
    assert "from 1,024 tokens on" in host.conclusion
    ceph = break_even_of(SMALL, MEDIA["cephfs-ssd"], 256)
    assert "never beats" in ceph.conclusion


def test_reading_from_spinning_disks() -> None:
    """12.6 s against 0.2 s: helps no request; from host RAM the other way round."""
    disk = tier_read_of(LARGE, MEDIA["ceph-hdd"], 4096)
    assert 55 < figure(disk, "reading / computing") < 65
    assert "helps no request's latency" in disk.conclusion
    assert "as fast as computing" in tier_read_of(LARGE, MEDIA["host-pcie5"], 4096).conclusion


@pytest.mark.parametrize(
    ("queries", "medium", "words"),
    [
        (200 / 3600, MEDIA["host-pcie5"], "does not justify a tier"),
        (200 / 3600, MEDIA["ceph-hdd"], "Nothing is saved"),
        (2.0, Medium(TierCost(0.0, 1e12), "fast"), "The tier saves"),
    ],
)
def test_one_tenant(queries: float, medium: Medium, words: str) -> None:
    """One prefix at 200 queries an hour is 0.8 % of an 8B's H100 at most; many queries, if the GPU keeps
    nothing, are worth a tier."""
    kept = 0.0 if queries > 1 else 18.0
    answer = tenant_of(SMALL, medium, Tenant(6000, queries), kept)
    assert words in answer.conclusion
    assert figure(answer, "prefixes like it") == pytest.approx(68.6, abs=0.1)


def test_a_measured_engine_needs_no_estimate() -> None:
    """What a cost file says goes before any profile, and is said to be the source."""
    measured = Deployment("", MODELS["Llama-3.1-8B"], "H100", measured=PrefillCost(1e-4))
    answer = tier_read_of(measured, MEDIA["host-pcie5"], 1000)
    assert {figure.name: figure.value for figure in answer.figures}["computing"] == pytest.approx(0.1)
    assert "prefill times: the cost file" in answer.assumptions


def test_losing_a_node() -> None:
    """Without copies a long prefix hardly survives, since all before a chunk must be there; with two all
    does."""
    alone = node_loss_of(3, 1, 32, 0.5)
    survived = sum((2 / 3) ** place for place in range(1, 33)) / 32
    assert figure(alone, "still found") == pytest.approx(survived)
    assert figure(alone, "computed again") == pytest.approx(0.5 * (1 - survived))
    assert figure(node_loss_of(3, 2, 32, 0.5), "computed again") == 0.0
    assert figure(node_loss_of(1, 1, 4, 0.5), "still found") == 0.0
    with pytest.raises(ConfigError, match="replicas is 3, must be at most the number of nodes, 2"):
        node_loss_of(2, 3, 1, 0.5)


def test_where_offload_hides() -> None:
    """At 10,000 tokens/s the link is nearly idle and a tenth of hits pays; at a hundred times that the link
    is the limit; where loading is as slow as computing it never pays."""
    cheap = Throughput(0.025, 0.3, 0.2)
    answer = offload_of(SMALL, cheap, 10_000, 256)
    assert figure(answer, "link to the host") == pytest.approx(1.31072e9 / 47e9)
    assert "Storing pays from 10.4 %" in answer.conclusion
    assert "The link is the limit" in offload_of(SMALL, cheap, 1_000_000, 256).conclusion
    assert "never pays" in offload_of(SMALL, Throughput(0.025, 0.3, 1.0), 10_000, 256).conclusion


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (671_088_640, "bytes", "671 MB"),
        (44.3e9, "bytes/s", "44.3 GB/s"),
        (0.0012, "s", "1.2 ms"),
        (90.0, "s", "1.5 min"),
        (0.125, "share", "12.5 %"),
        (1_200_000, "tokens", "1,200,000 tokens"),
        (68.56, "count", "68.6"),
        (float("inf"), "share", "never"),
        (0.0, "s", "0 µs"),
    ],
)
def test_numbers_in_words(value: float, unit: str, words: str) -> None:
    """With three digits, in the unit that fits."""
    assert in_words(value, unit) == words


def test_every_gpu_has_a_link_to_the_host() -> None:
    """Four GPUs load their parts side by side; what comes over one network does not get wider by them."""
    assert MEDIA["host-pcie5"].cost_for(4).bytes_per_s == 4 * MEDIA["host-pcie5"].cost.bytes_per_s
    assert MEDIA["nvme-gen4"].cost_for(4) == MEDIA["nvme-gen4"].cost


def test_media_are_named() -> None:
    """Each has a source; what is not known is answered with what is."""
    assert all(medium.source for medium in MEDIA.values())
    with pytest.raises(ConfigError, match="medium 'tape' is not known; allowed: host-pcie5, host-pcie4"):
        medium_named("tape")
