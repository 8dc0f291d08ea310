"""Queues and preemptions by formulas, and the curve at a few sizes."""

from dataclasses import replace

import pytest

from anbar.plan.capacities import capacities_of
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.estimates import estimated, notes_of
from anbar.plan.facts import Facts
from anbar.plan.media import MEDIA
from anbar.plan.options import Options
from anbar.plan.reasons import Choice
from anbar.plan.stack import Stack, StoreTier
from anbar.plan.synthetic import documents
from anbar.plan.workload import Asked, Workload

GB = 10**9
SMALL = Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100")
STACK = Stack(SMALL, host_bytes=100 * GB)


def figures(workload: Workload, stack: Stack, choice: Choice = Choice.NATIVE) -> dict[str, float]:
    return {figure.name: figure.value for figure in estimated(Facts(Options(workload, stack)), choice)}


def alone(times: list[float], num_answer: int = 0) -> Workload:
    """Prompts of 8,000 tokens that have nothing in common."""
    return Workload(
        [
            Asked(at_s, 8_000, num_answer, tuple(range(n << 20, (n << 20) + 8)))
            for n, at_s in enumerate(times)
        ],
        1_000,
    )


def test_arrivals_in_step_do_not_wait_and_bursts_do() -> None:
    """Equal prompts at equal intervals that are longer than they take wait for nothing; of pairs that come
    together the second waits for the first, and Kingman's mean is near that."""
    own = SMALL.prefill.cost.seconds(8_000)
    even = figures(alone([n * 1.0 for n in range(100)]), STACK)
    assert even["mean time to first token, neither, estimated"] == pytest.approx(own, rel=1e-6)
    assert even["good answers a second, neither, estimated"] == pytest.approx(1.0)
    pairs = figures(alone([n // 2 * 4.0 for n in range(100)]), STACK)
    waited = pairs["mean time to first token, neither, estimated"] - own
    assert 0.02 * own < waited < own


def test_what_comes_faster_than_it_is_computed_piles_up() -> None:
    """No mean, and nothing in time."""
    found = figures(alone([n * 0.1 for n in range(100)]), STACK)
    assert found["mean time to first token, neither, estimated"] == float("inf")
    assert found["good answers a second, neither, estimated"] == 0.0


def test_a_tier_that_finds_things_brings_first_tokens_sooner() -> None:
    """And more of them in time, with an objective between both."""
    cycle = documents(60, 10_000, 4, every_s=3.0)
    found = figures(cycle, replace(STACK, slo_ttft_s=0.1))
    before, after = (found[f"mean time to first token, {name}, estimated"] for name in ("neither", "native"))
    assert after < before / 2
    assert found["good answers a second, neither, estimated"] == 0.0
    assert found["good answers a second, native, estimated"] > 0.2


def test_requests_without_room_are_preempted() -> None:
    """Twice as many at a time as there is room for: half of them."""
    crowd = alone([0.0] * 40, num_answer=0)
    made = list(
        estimated(Facts(Options(crowd, replace(STACK, pool_tokens=32_000, concurrency=8))), Choice.NATIVE)
    )
    assert [(figure.name, figure.value) for figure in made] == [
        ("preemptions, neither, estimated", 20),
        ("preemptions, native, estimated", 20),
    ]
    assert "computed again" in made[0].how
    assert "loaded again" in made[1].how
    assert any(text.startswith("not estimated: waits") for text in notes_of(made))


def test_the_curve_at_sizes_that_matter() -> None:
    """GPUs, host RAM, store, all that came again and sizes between, rising; a cycle is found whole or not at
    all. Engines that get each other's documents find less alone than together."""
    store = StoreTier("valkey-25gbe", MEDIA["valkey-25gbe"], 4_000 * GB)
    stack = replace(STACK, num_engines=2, has_affinity=False, store=store)
    rows = capacities_of(Facts(Options(documents(61, 10_000, 4), stack)))
    assert [row.name for row in rows if row.name] == [
        "the GPUs",
        "all that came again",
        "host RAM",
        "the store",
    ]
    assert [row.num_bytes for row in rows] == sorted(row.num_bytes for row in rows)
    found = {row.name: (row.found, row.found_apart) for row in rows}
    assert found["the GPUs"] == (0.0, 0.0)
    assert found["host RAM"][0] == pytest.approx(0.75, abs=0.01)
    assert found["host RAM"][1] == pytest.approx(0.5, abs=0.01)
    assert capacities_of(Facts(Options(alone([1.0, 2.0]), STACK))) == ()
