"""The whole answer: figures under a verdict, how sure it is, what would change it; limits on both sides."""

from dataclasses import replace

import pytest

from anbar.core.errors import ConfigError
from anbar.plan.catalogue import MODELS
from anbar.plan.decode import DecodeCost, Load
from anbar.plan.deployment import Deployment
from anbar.plan.depths import Depths
from anbar.plan.facts import Facts
from anbar.plan.media import MEDIA
from anbar.plan.options import Options
from anbar.plan.reasons import Choice, Kind, decide
from anbar.plan.stack import Stack, StoreTier
from anbar.plan.synthetic import BLOCK, chats, documents, tenants
from anbar.plan.verdict import Verdict, verdict_of
from anbar.plan.workload import Asked, Workload

GB = 10**9
SMALL = Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100")
CYCLE = documents(60, 10_000, 4, every_s=3.0)
"""79 GB: more than the 54 that the GPU has."""


def figure(verdict: Verdict, name: str) -> float:
    (found,) = [figure.value for figure in verdict.figures if figure.name == name]
    return found


def test_depths_are_what_a_kept_cache_finds() -> None:
    """Against an LRU that is really kept, request by request, at several sizes."""
    workload = chats(7, 5, 1_000, 300)
    depths = Depths.of(workload)
    for capacity in (0, 1, 5, 20, 60, 200, 10_000):
        held: list[int] = []
        for asked, found in zip(workload.requests, depths.found(capacity * BLOCK), strict=True):
            blocks = asked.blocks[: (asked.num_prompt - 1) // BLOCK]
            hits = next((n for n, block in enumerate(blocks) if block not in held), len(blocks))
            assert found == hits * BLOCK
            for block in reversed(blocks):
                if block in held:
                    held.remove(block)
                held.append(block)
            held = held[max(0, len(held) - capacity) :]


def test_long_logs_are_looked_at_in_larger_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each k-th block stands for all before it: less than k blocks of each hit are lost."""
    monkeypatch.setattr("anbar.plan.depths.MAX_USES", 1_000)
    workload = documents(10, 5_000, 10)
    coarse = Depths.of(workload)
    assert coarse.step_tokens == 4 * BLOCK
    assert set(coarse.found(float("inf"))[10:]) == {9 * 4 * BLOCK}
    assert not coarse.found(float("inf"))[:10].any()


def test_answers_at_a_time() -> None:
    """Little's law with steps that grow: what it says is consistent; without time left they pile up."""
    decode = DecodeCost(0.02, 1e-8, "")
    load = Load(2.0, 0.1, 100.0, 5_000.0)
    running = load.running(decode)
    step_s = decode.step_s + running * 5_000 * decode.s_per_kv_token
    assert running == pytest.approx(2.0 * 100 * step_s / (1 - 2.0 * 0.1))
    assert replace(load, requests_per_s=10.0).running(decode) == float("inf")


def test_a_verdict_with_all_its_figures() -> None:
    """Host RAM for a cycle that the GPU cannot hold."""
    verdict = verdict_of(CYCLE, Stack(SMALL, host_bytes=100 * GB))
    assert verdict.choice is Choice.NATIVE
    assert figure(verdict, "found by a cache without bounds") == pytest.approx(0.75 * 9_984 / 10_000)
    assert figure(verdict, "prompt tokens found with the GPUs") == 0.0
    assert figure(verdict, "prefills avoided or shortened") == 180
    assert figure(verdict, "prompt tokens not computed") == 180 * 9_984
    saved = 180 * (SMALL.prefill.cost.seconds(10_000) - SMALL.prefill.cost.seconds(10_000, 9_984))
    assert figure(verdict, "GPU time not spent on them") == pytest.approx(saved, rel=0.01)
    assert figure(verdict, "host RAM to give each engine") == 79 * GB == verdict.host_bytes
    assert figure(verdict, "break-even HBM utilisation") == pytest.approx(1.0, abs=0.01)
    assert figure(verdict, "mean time to first token, native") < figure(
        verdict, "mean time to first token, neither"
    )
    assert figure(verdict, "most requests a second, native") > figure(
        verdict, "most requests a second, neither"
    )
    assert verdict.curve[-1].found == figure(verdict, "found by a cache without bounds")
    assert any("the room for KV is an estimate" in text for text in verdict.assumptions)


def test_what_would_change_it() -> None:
    """A GPU of twice the room needs nothing below it."""
    verdict = verdict_of(CYCLE, Stack(SMALL, host_bytes=100 * GB))
    changes = {change.what: change.choice for change in verdict.changes}
    assert changes["a pool twice as large"] is Choice.NEITHER
    assert changes["twice as many engines"] is Choice.NEITHER
    assert "the pool 20 % larger" not in changes


def test_a_verdict_near_its_limit_is_not_sure() -> None:
    """The pool holds the cycle but for a tenth, and is an estimate."""
    cycle = documents(45, 10_000, 6, every_s=3.0)
    small = verdict_of(cycle, Stack(SMALL, pool_tokens=400_000, host_bytes=100 * GB))
    assert (small.choice, small.confidence) == (Choice.NATIVE, "medium")
    assert small.doubts == ("the pool 20 % larger: neither",)
    assert verdict_of(cycle, Stack(SMALL, pool_tokens=300_000, host_bytes=100 * GB)).confidence == "high"


def test_a_cliff_is_told() -> None:
    """A cycle that host RAM just holds: with a fifth less, or more that comes between, nothing is found."""
    verdict = verdict_of(CYCLE, Stack(SMALL, host_bytes=90 * GB))
    changes = {change.what: change.choice for change in verdict.changes}
    assert changes["host RAM of 72 GB an engine"] is Choice.NEITHER
    assert changes["a working set 20 % larger"] is Choice.NEITHER
    assert any("a cliff is near: with a fifth less host RAM" in text for text in verdict.warnings)
    roomy = verdict_of(CYCLE, Stack(SMALL, host_bytes=200 * GB))
    assert not any("cliff" in text for text in roomy.warnings)
    assert "a working set 20 % larger" not in {change.what for change in roomy.changes}


def test_no_more_ram_is_given_than_there_is() -> None:
    """What would pay is another figure."""
    store = StoreTier("ceph-rgw-nvme", MEDIA["ceph-rgw-nvme"])
    stack = Stack(SMALL, 8, 100_000, 20 * GB, store=store, has_affinity=False)
    verdict = verdict_of(documents(21, 10_000, 24, every_s=1.0), stack)
    assert verdict.choice is Choice.SHARED
    assert figure(verdict, "host RAM to give each engine") == verdict.host_bytes == 20 * GB
    assert figure(verdict, "host RAM that would pay, each engine") > 20 * GB
    neither = verdict_of(CYCLE, Stack(SMALL, host_bytes=40 * GB))
    assert figure(neither, "host RAM to give each engine") == neither.host_bytes == 0
    assert figure(neither, "host RAM that would pay, each engine") == 79 * GB


def test_prompts_that_no_engine_can_hold() -> None:
    """More engines would not run them, and no cache; a few of them are a warning."""
    small = Stack(SMALL, 4, pool_tokens=5_000, host_bytes=100 * GB)
    choice, reasons = decide(Facts(Options(CYCLE, small)))
    assert (choice, reasons[0].kind) == (Choice.NEITHER, Kind.POOL_TOO_SMALL)
    assert "240 of 240 requests need more KV than an engine's pool holds (5,000 tokens" in reasons[0].text
    beyond = documents(3, 200_000, 100)
    choice, reasons = decide(Facts(Options(beyond, Stack(SMALL, host_bytes=100 * GB))))
    assert (choice, reasons[0].kind) == (Choice.NEITHER, Kind.TOO_LONG)
    assert "longer than the model's context (131,072 tokens; the longest needs 200,100)" in reasons[0].text
    one = Workload([*CYCLE.requests, Asked(1e6, 150_000, 1, (1 << 60,))], BLOCK)
    verdict = verdict_of(one, Stack(SMALL, host_bytes=100 * GB))
    assert verdict.choice is Choice.NATIVE
    assert any("1 of 241 requests are longer than the model's context" in text for text in verdict.warnings)


def test_the_arithmetic_can_be_done_again() -> None:
    """Of each figure of time: the numbers put in give the value, within their three digits."""
    verdict = verdict_of(CYCLE, Stack(SMALL, host_bytes=100 * GB))
    how = {figure.name: figure.how for figure in verdict.figures}
    cost = SMALL.prefill.cost
    assert f"{cost.a_s_per_token * 1e6:.4g} µs x 10,000" in how["mean time to first token, neither"]
    parts = figure(verdict, "time of engines, neither") - figure(verdict, "time of engines for answers")
    assert parts == pytest.approx(240 * figure(verdict, "mean time to first token, neither"))
    most = 240 / figure(verdict, "time of engines, native")
    assert figure(verdict, "most requests a second, native") == pytest.approx(most)
    assert how["most requests a second, native"].startswith("240 requests x 1 / ")
    assert all(figure.how for figure in (*verdict.figures, *verdict.estimates))


def test_ram_that_nobody_spoke_of() -> None:
    """As much as pays is assumed, and that is said."""
    verdict = verdict_of(CYCLE, Stack(SMALL), ("--ram",))
    assert (verdict.choice, verdict.host_bytes, verdict.missing) == (Choice.NATIVE, 79 * GB, ("--ram",))
    assert "how much host RAM there is was not said" in verdict.doubts
    assert "host RAM as much as pays: 79 GB an engine" in verdict.assumptions


def test_sharing_pays_without_affinity() -> None:
    """Two engines that get each other's documents compute all twice; a fast store has them after the first.
    With affinity host RAM alone has them."""
    store = StoreTier("ceph-rgw-nvme", MEDIA["ceph-rgw-nvme"])
    apart = Stack(SMALL, 2, host_bytes=100 * GB, has_affinity=False, store=store, concurrency=2)
    workload = documents(61, 10_000, 2, num_answer=8)
    verdict = verdict_of(workload, apart)
    assert (verdict.choice, verdict.reasons[0].kind) == (Choice.SHARED, Kind.STORE_PAYS)
    joined = decide(Facts(Options(workload, replace(apart, has_affinity=True))))
    assert joined[0] is not Choice.SHARED
    assert {c.what: c.choice for c in verdict.changes}["with routing to where the prefix is"] is joined[0]


def test_the_published_table_of_16_h100() -> None:
    """8 engines of Qwen3-32B, 45 groups of 10 prompts, 100 GB of host RAM each: offload gained with system
    prompts of 30,000 tokens and lost with 8,000, which the GPUs hold."""
    engine = Deployment("Qwen3-32B", MODELS["Qwen3-32B"], "H100", 2)
    stack = Stack(engine, 8, pool_tokens=148_336, host_bytes=100 * GB, concurrency=45)
    long = decide(Facts(Options(tenants([(30_000, 10)] * 45, 256, 1_024), stack)))
    short = decide(Facts(Options(tenants([(8_000, 10)] * 45, 256, 1_024), stack)))
    assert (long[0], short[0]) == (Choice.NATIVE, Choice.NEITHER)
    assert short[1][0].kind is Kind.FITS_DEVICE


def test_what_each_tenant_saves() -> None:
    """The one that asks most for the longest prompt first; without names there are none."""
    workload = tenants([(20_000, 30), (4_000, 60), *([(20_000, 10)] * 40)], 100)
    verdict = verdict_of(workload, Stack(SMALL, pool_tokens=100_000, host_bytes=200 * GB, concurrency=1))
    assert verdict.choice is Choice.NATIVE
    assert len(verdict.tenants) == 10
    assert [t.saved_s for t in verdict.tenants] == sorted((t.saved_s for t in verdict.tenants), reverse=True)
    assert verdict.tenants[0].num_requests >= 10
    assert verdict_of(CYCLE, Stack(SMALL, host_bytes=100 * GB)).tenants == ()


def test_preempted_requests_are_worth_host_ram() -> None:
    """Where more want to run than fit, but not many more; no prefix is shared."""
    workload = Workload([Asked(n, 9_000, 1_000, (n << 20,) * 9) for n in range(40)], 1_000)
    stack = Stack(SMALL, pool_tokens=60_000, host_bytes=100 * GB, concurrency=8)
    choice, reasons = decide(Facts(Options(_apart(workload), stack)))
    assert (choice, reasons[0].kind) == (Choice.NATIVE, Kind.PREEMPTIONS)
    assert reasons[1].kind is Kind.NO_REUSE
    roomy = decide(Facts(Options(_apart(workload), replace(stack, pool_tokens=80_000))))
    assert (roomy[0], roomy[1][0].kind) == (Choice.NEITHER, Kind.NO_REUSE)
    crowded = decide(Facts(Options(_apart(workload), replace(stack, concurrency=16))))
    assert (crowded[0], crowded[1][0].kind) == (Choice.NEITHER, Kind.POOL_TOO_SMALL)


def _apart(workload: Workload) -> Workload:
    """No block is in two prompts."""
    asked = [replace(a, blocks=tuple(range(n << 20, (n << 20) + 9))) for n, a in enumerate(workload.requests)]
    return Workload(asked, workload.block_size)


def test_waiting_is_told_apart_from_computing() -> None:
    """A log whose times to first token are many times what computing takes says so, whatever the verdict."""
    slow = [replace(asked, first_token_s=20.0) for asked in CYCLE.requests]
    _, reasons = decide(Facts(Options(Workload(slow, BLOCK), Stack(SMALL, host_bytes=100 * GB))))
    assert reasons[-1].kind is Kind.WAITING
    quick = [replace(asked, first_token_s=0.5) for asked in CYCLE.requests]
    _, reasons = decide(Facts(Options(Workload(quick, BLOCK), Stack(SMALL, host_bytes=100 * GB))))
    assert reasons[-1].kind is Kind.HOST_PAYS


def test_warnings_and_lmcache() -> None:
    """Each is said where it holds, and only there."""
    stack = Stack(SMALL, host_bytes=100 * GB)
    plain = verdict_of(CYCLE, stack)
    assert not plain.lmcache
    assert any("a log of blocks does not show" in text for text in plain.warnings)
    odd = verdict_of(replace(CYCLE, outside_prefix=0.4), replace(stack, uses_speculation=True))
    assert "CacheBlend" in odd.lmcache
    assert any("40 % of the text came again behind another beginning" in text for text in odd.warnings)
    assert any("speculative decoding" in text for text in odd.warnings)
    windowed = Deployment("gpt-oss-120b", MODELS["gpt-oss-120b"], "H100", 2, "mxfp4")
    latent = Deployment("DeepSeek-V3", MODELS["DeepSeek-V3"], "H200", 8, "fp8")
    assert any(
        "last 128 tokens" in text for text in verdict_of(CYCLE, replace(stack, engine=windowed)).warnings
    )
    assert any("8 ranks keeps" in text for text in verdict_of(CYCLE, replace(stack, engine=latent)).warnings)


def test_an_impossible_deployment() -> None:
    """Is refused in one sentence."""
    large = Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100")
    with pytest.raises(ConfigError, match=r"the weights \(141 GB\) do not fit on 1 x H100"):
        verdict_of(CYCLE, Stack(large, host_bytes=GB))
    with pytest.raises(ConfigError, match=r"gpu: the weights \(141 GB\) do not fit on 1 x H100"):
        verdict_of(CYCLE, Stack(large, pool_tokens=20_000, host_bytes=GB))
    plain = Deployment("gpt-oss-120b", MODELS["gpt-oss-120b"], "H100")
    with pytest.raises(ConfigError, match=r"the model's own checkpoint is in mxfp4 \(61\.\d GB\)"):
        plain.check()
