"""The virtual fleet of the benchmark router-quality: what it counts adds up, whoever chooses."""

from random import Random

import pytest
from benchmarks.fleet_sim import BLOCK, FleetSim, pooled_hit_rate, trace
from benchmarks.peer_policies import PEER_POLICIES
from benchmarks.router_quality import alone_s

from anbar.route import POLICIES, make_policy

NUM_BLOCKS = 600
NAMES = [*POLICIES, *(made.name for made in PEER_POLICIES)]


@pytest.mark.parametrize("name", NAMES)
def test_all_are_served_and_no_cache_is_better_than_all_of_memory(name: str) -> None:
    """A few requests on two engines: each request has its first token after it came; no more is found
    cached than an endless cache would hold; afterwards the books of load are empty."""
    asks = trace(0, 12, 4.0)
    peers = {made.name: made for made in PEER_POLICIES}
    chosen = peers[name](Random(1)) if name in peers else make_policy(name, Random(1))
    sim = FleetSim(2, NUM_BLOCKS, chosen)
    result = sim.run(asks)
    assert len(result.ttft_s) == len(result.itl_s) == len(asks)
    assert min(result.ttft_s) > 0
    assert result.num_prompt == sum(ask.num_prompt for ask in asks)
    assert 0 <= result.hit_rate <= pooled_hit_rate(asks, 10**9)
    for engine in sim.fleet:
        load = engine.load
        assert (load.num_in_flight, load.queued_prefill_tokens, load.num_decoding) == (0, 0, 0)


def test_a_prompt_that_comes_again_alone_is_found() -> None:
    """The same prompts one after the other, far apart: the second of each finds all but its last, partial
    block, on the one engine that had it."""
    first = trace(0, 6, 0.01)
    again = [ask.later(10_000.0) for ask in first]
    result = FleetSim(4, 4000, make_policy("predicted_ttft", Random(1))).run([*first, *again])
    of_first = pooled_hit_rate(first, 10**9) * sum(ask.num_prompt for ask in first)
    of_again = sum((ask.num_prompt - 1) // BLOCK * BLOCK for ask in first)
    assert of_again <= result.num_cached <= of_first + of_again


def test_no_prompt_is_computed_sooner_than_alone() -> None:
    """What router-quality takes for the least time of a prompt is that on an engine without other work."""
    for ask in trace(0, 40, 1.0)[::13]:
        result = FleetSim(2, NUM_BLOCKS, make_policy("random", Random(1))).run([ask])
        assert result.ttft_s == [pytest.approx(alone_s(ask.num_prompt, 0), rel=0.01)]
