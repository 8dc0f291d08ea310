"""What the calculators say: figures that are known, conclusions on both sides of each limit."""

import pytest

from anbar.core.cost import PrefillCost, TierCost
from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer, in_words
from anbar.plan.break_even import Tenant
from anbar.plan.calculators import (
    Storing,
    break_even_of,
    kv_size_of,
    offload_of,
    tenant_of,
    tier_read_of,
)
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.media import MEDIA, Medium, medium_named
from anbar.plan.node_loss import Fallback, NodeLoss, Prices, node_loss_of

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


def test_windows_take_less_than_all_layers() -> None:
    """Half of the layers of gpt-oss-120b need 128 tokens: 8,192 take 307 MB while they run, not the 604 MB
    that are kept and stored, so that twice as many fit; a prompt as long as the window takes the same."""
    engine = Deployment("gpt-oss-120b", MODELS["gpt-oss-120b"], "H100", 1, "mxfp4")
    answer = kv_size_of(engine, 8192)
    assert any("need only the last 128 tokens" in text for text in answer.assumptions)
    assert figure(answer, "KV of 8,192 tokens") == 36_864 * (8192 + 128)
    assert figure(answer, "stored of 8,192 tokens") == 73_728 * 8192
    assert figure(answer, "that fit") == engine.kv_pool_bytes * 8192 // (36_864 * (8192 + 128))
    assert figure(answer, "found again") == engine.kv_pool_bytes // 73_728
    assert figure(kv_size_of(engine, 128), "KV of 128 tokens") == 73_728 * 128
    assert "59.6 % of what the GPUs have" in kv_size_of(engine, 131_072).conclusion


def test_weights_that_do_not_fit_are_refused() -> None:
    """With what they take and what to do."""
    with pytest.raises(ConfigError, match=r"the weights \(141 GB\) do not fit on 1 x H100: take more GPUs"):
        kv_size_of(Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100"), 1)


def test_a_prefix_on_gpus_that_cannot_hold_the_model() -> None:
    """Is refused in the same words."""
    small = Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100")
    with pytest.raises(ConfigError, match="do not fit on 1 x H100"):
        tenant_of(small, MEDIA["host-pcie5"], Tenant(6000, 0.1), 18.0, 256)


def test_ranks_that_keep_copies() -> None:
    """Every rank keeps DeepSeek's whole latent: eight GPUs hold what one would. Of 4 KV heads on 8 ranks each
    is there twice, in host RAM too."""
    latent = Deployment("DeepSeek-V3", MODELS["DeepSeek-V3"], "H200", 8, "fp8")
    assert figure(kv_size_of(latent, 1), "tokens that fit") == latent.kv_pool_bytes // (8 * 70_272)
    (how,) = [one.how for one in kv_size_of(latent, 1).figures if one.name == "tokens that fit"]
    assert how.endswith("/ (70,272 x 8 ranks that each keep it)")
    assert latent.host_bytes_per_token == 70_272
    few = Deployment("Qwen3-30B-A3B", MODELS["Qwen3-30B-A3B"], "H100", 8)
    assert (few.device_bytes_per_token, few.host_bytes_per_token) == (196_608, 196_608)
    assert LARGE.device_bytes_per_token == LARGE.kv_bytes_per_token


def test_break_even_by_medium() -> None:
    """Host RAM pays within a few chunks; network SSDs behind CephFS at no length."""
    host = break_even_of(SMALL, MEDIA["host-pcie5"], 256)
    assert figure(host, "shortest prefix") == 1024
    assert "from 1,024 tokens on" in host.conclusion
    (how,) = [one.how for one in host.figures if "at 1,024 tokens" in one.name]
    assert "s - 15 ms of latency)" in how
    ceph = break_even_of(SMALL, MEDIA["cephfs-ssd"], 256)
    assert "never beats" in ceph.conclusion


def test_reading_from_spinning_disks() -> None:
    """12.6 s against 0.2 s: helps no request; from host RAM the other way round."""
    disk = tier_read_of(LARGE, MEDIA["ceph-hdd"], 4096, 256)
    assert 55 < figure(disk, "reading / computing") < 65
    assert "helps no request's latency" in disk.conclusion
    assert "as fast as computing" in tier_read_of(LARGE, MEDIA["host-pcie5"], 4096, 256).conclusion


def test_below_a_chunk_nothing_is_stored() -> None:
    """100 tokens of chunks of 256: no calculator prices what is never there; of 1,000 three chunks are read
    and the rest is computed."""
    said = "Nothing of 100 tokens is ever stored: a chunk has 256."
    assert tier_read_of(SMALL, MEDIA["host-pcie5"], 100, 256).conclusion == said
    assert node_loss_of(NodeLoss(3, 1, num_tokens=100)).conclusion == said
    tenant = tenant_of(SMALL, MEDIA["host-pcie5"], Tenant(100, 200_000 / 3600), 18.0, 256)
    assert tenant.conclusion == said
    assert figure(tenant, "saved by the tier") == 0.0
    slow = Deployment("", MODELS["Llama-3.1-8B"], "H100", measured=PrefillCost(1e-4))
    read = tier_read_of(slow, Medium(TierCost(0.0, 1e12), "fast"), 1000, 256)
    assert figure(read, "KV") == 131_072 * 768
    assert {one.name: one.value for one in read.figures}["reading"] == pytest.approx(0.0232 + 1e-4, abs=1e-5)


def test_a_prefix_that_the_gpu_keeps_itself() -> None:
    """Asked for 55 times a second it never leaves the GPU, though loading it would be sooner than computing;
    and one engine could not compute it so often."""
    answer = tenant_of(SMALL, MEDIA["host-pcie5"], Tenant(6000, 1000 * 200 / 3600), 18.0, 256)
    assert "asked for so often that the GPU keeps it itself" in answer.conclusion
    assert "one engine could not answer so many queries" in answer.conclusion


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
    answer = tenant_of(SMALL, medium, Tenant(6000, queries), kept, 256)
    assert words in answer.conclusion
    assert figure(answer, "prefixes like it") == pytest.approx(68.6, abs=0.1)


def test_a_measured_engine_needs_no_estimate() -> None:
    """What a cost file says goes before any profile, and is said to be the source."""
    measured = Deployment("", MODELS["Llama-3.1-8B"], "H100", measured=PrefillCost(1e-4))
    answer = tier_read_of(measured, MEDIA["host-pcie5"], 1000, 256)
    assert {figure.name: figure.value for figure in answer.figures}["computing"] == pytest.approx(0.1)
    assert "prefill times: the cost file" in answer.assumptions


def test_losing_a_node() -> None:
    """Without copies a long prefix hardly survives, since all before a chunk must be there; with two all
    does, and of three nodes a second loss takes a third."""
    alone = node_loss_of(NodeLoss(3, 1))
    survived = sum((2 / 3) ** place for place in range(1, 33)) / 32
    assert figure(alone, "still found") == pytest.approx(survived)
    assert figure(alone, "computed again") == pytest.approx(0.5 * (1 - survived))
    assert "stored anew on the nodes that are left" in alone.conclusion
    two = node_loss_of(NodeLoss(3, 2))
    assert figure(two, "computed again") == 0.0
    assert "one more node lost before that takes 33.3 %" in two.conclusion
    assert figure(node_loss_of(NodeLoss(3, 2, 2)), "chunks that are gone") == pytest.approx(1 / 3)
    assert figure(node_loss_of(NodeLoss(1, 1)), "still found") == 0.0
    assert "until a node is back" in node_loss_of(NodeLoss(1, 1)).conclusion
    with pytest.raises(ConfigError, match="replicas is 3, must be at most the number of nodes, 2"):
        node_loss_of(NodeLoss(2, 3))
    with pytest.raises(ConfigError, match="lost is 3, must be at most the number of nodes, 2"):
        node_loss_of(NodeLoss(2, 1, 3))


def test_what_is_behind_a_lost_node() -> None:
    """Host RAM has half of what is lost; a store behind has all of it, and is slower than the one in front
    but sooner there than computing."""
    found = NodeLoss(3, 1).found
    host = node_loss_of(NodeLoss(3, 1), Fallback("host RAM", 0.5))
    assert figure(host, "computed again") == pytest.approx(0.5 * (1 - found) * 0.5)
    assert "host RAM has the rest" in host.conclusion
    slow = Deployment("", MODELS["Llama-3.1-8B"], "H100", measured=PrefillCost(1e-3))
    prices = Prices(slow, Medium(TierCost(0.0, 10e9), "near"))
    behind = Fallback("the store behind", 1.0, Medium(TierCost(0.5, 1e9), "far"))
    answer = node_loss_of(NodeLoss(3, 1), behind, prices)
    assert figure(answer, "computed again") == 0.0
    kv, kept = 131_072, round(8192 * found)
    assert figure(answer, "before") == pytest.approx(8192 * kv / 10e9)
    assert figure(answer, "after") == pytest.approx(kept * kv / 10e9 + 0.5 + (8192 - kept) * kv / 1e9)
    assert {"near", "far"} <= set(answer.assumptions)
    assert "comes from the store behind it, and nothing is computed" in answer.conclusion
    late = Fallback("the store behind", 1.0, Medium(TierCost(0.5, 1e8), "farther"))
    assert "is sooner computed" in (slower := node_loss_of(NodeLoss(3, 1), late, prices)).conclusion
    assert figure(slower, "computed again") == pytest.approx(0.5 * (1 - found))
    assert figure(slower, "after") == pytest.approx(kept * kv / 10e9 + (8192 - kept) * 1e-3)
    computed = figure(node_loss_of(NodeLoss(3, 1), prices=prices), "after")
    assert computed == pytest.approx(kept * kv / 10e9 + (8192 - kept) * 1e-3)


def test_where_offload_hides() -> None:
    """At 10,000 tokens/s the link is nearly idle and a tenth of hits pays. Each limit is said by its own
    reason: what GPUs compute, the link, a store, loading, and what storing takes."""
    answer = offload_of(SMALL, Storing(10_000, MEDIA["host-pcie5"], 0.025, 0.3))
    assert figure(answer, "link to the host") == pytest.approx(1.31072e9 / 47e9)
    assert "Storing pays from 10.4 %" in answer.conclusion
    assert (
        "do not compute so much" in offload_of(SMALL, Storing(1e6, MEDIA["host-pcie5"], 0.0, 1.0)).conclusion
    )
    quick = Deployment("", MODELS["Llama-3.1-8B"], "H100", measured=PrefillCost(1e-6))
    free = Medium(TierCost(0.0, 1e15), "free", True)
    assert "The link is the limit" in offload_of(quick, Storing(5e5, free, 0.0, 1.0)).conclusion
    disk = Medium(TierCost(0.0, 1e9), "disk")
    slow = Deployment("", MODELS["Llama-3.1-8B"], "H100", measured=PrefillCost(3e-4))
    stored = offload_of(slow, Storing(3000, Medium(TierCost(0.0, 0.5e9), "disk"), 0.025, 0.3))
    assert figure(stored, "of what the store takes") == pytest.approx(3000 * 131_072 / 0.5e9)
    assert "The store is the limit: that is 78.6 %" in stored.conclusion
    assert "loading takes as long" in offload_of(quick, Storing(1000, disk, 0.025, 0.3)).conclusion
    dear = offload_of(SMALL, Storing(10_000, MEDIA["host-pcie5"], 1.0, 0.3)).conclusion
    assert "storing takes 100 % of the throughput, and finding every prompt saves 23.9 %" in dear


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
