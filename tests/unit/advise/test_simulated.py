"""A verdict's figures of queues and preemptions."""

from dataclasses import replace

from anbar.apps.advise.simulated import simulated
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.media import MEDIA
from anbar.plan.reasons import Choice
from anbar.plan.stack import Stack, StoreTier
from anbar.plan.synthetic import documents

STACK = Stack(
    Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100"), pool_tokens=30_000, host_bytes=10**10
)
CYCLE = documents(5, 8_000, 3, num_answer=20, every_s=2.0)


def test_before_and_after() -> None:
    """The tier that was chosen is simulated beside none; found prefixes come sooner."""
    ran = simulated(CYCLE, STACK, Choice.NATIVE, 1000)
    figures = {figure.name: figure.value for figure in ran.figures}
    before, after = (figures[f"median time to first token, {n}, simulated"] for n in ("neither", "native"))
    assert after < before / 2
    assert figures["preemptions, neither, simulated"] == 0
    assert ran.note == "simulated: all 15 requests, cold at first"


def test_a_part_of_a_log() -> None:
    """Of one that is long, and with a store and an objective."""
    store = replace(STACK, store=StoreTier("valkey-100gbe", MEDIA["valkey-100gbe"]), slo_ttft_s=0.001)
    ran = simulated(CYCLE, store, Choice.SHARED, 6)
    assert ran.note == "simulated: the first 6 of 15 requests, cold at first"
    good = [f for f in ran.figures if f.name == "good answers a second, shared, simulated"]
    assert [figure.value for figure in good] == [0.0]
    assert "begin within 1 ms" in good[0].how


def test_what_is_not_simulated_is_said() -> None:
    """And why."""
    assert "asked not to" in simulated(CYCLE, STACK, Choice.NATIVE, 0).note
    at_once = replace(CYCLE, requests=[replace(asked, at_s=0.0) for asked in CYCLE.requests])
    assert "all requests have one time: --concurrency" in simulated(at_once, STACK, Choice.NATIVE, 9).note
    small = simulated(CYCLE, replace(STACK, pool_tokens=4_000), Choice.NEITHER, 9)
    assert "not simulated: an engine holds 4,000 tokens" in small.note
    assert small.figures == ()


def test_so_many_at_a_time() -> None:
    """Clients that wait for their answers take the place of the log's times: all requests are answered, with
    more clients first tokens come later."""
    one, eight = (simulated(CYCLE, replace(STACK, concurrency=n), Choice.NEITHER, 99) for n in (1, 8))
    first = [
        figure.value
        for ran in (one, eight)
        for figure in ran.figures
        if figure.name == "median time to first token, neither, simulated"
    ]
    assert first[1] > 2 * first[0]
    assert one.note == "simulated: all 15 requests, cold at first, 1 at a time"
    (good,) = [f.how for f in eight.figures if f.name == "good answers a second, neither, simulated"]
    assert "of 15 begin within 2 s" in good
