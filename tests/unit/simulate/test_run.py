"""A simulated fleet: what it counts adds up, and each tier gives what it must."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from anbar.apps.simulate.ask import Ask
from anbar.apps.simulate.load import OpenLoad
from anbar.apps.simulate.result import Percentiles
from anbar.apps.simulate.run import simulate
from anbar.apps.simulate.setup import Incident, Mode, Setup, StoreSetup
from anbar.config.models import PolicyName
from anbar.core.errors import ConfigError
from anbar.plan.catalogue import MODELS
from tests.unit.simulate.cases import LLAMA, documents, in_a_burst, setup

NUM, ROUNDS, TOKENS = 8, 3, 4096
CYCLE = OpenLoad(documents(NUM, ROUNDS))
"""Twice what HBM holds, in a cycle: LRU finds nothing in it."""
LLAMA_70B = replace(LLAMA, name="Llama-3.1-70B", config=MODELS["Llama-3.1-70B"])
AGAIN = NUM * (ROUNDS - 1) * TOKENS


def test_a_cycle_is_found_in_host_ram_alone() -> None:
    """HBM holds half of the cycle and finds nothing; host RAM all of it."""
    without, native = (simulate(setup(mode), CYCLE) for mode in (Mode.NONE, Mode.NATIVE))
    assert (without.tokens.device, without.tokens.host) == (0, 0)
    assert (native.tokens.device, native.tokens.host, native.tokens.shared) == (0, AGAIN, 0)
    for result in (without, native):
        tokens = result.tokens
        assert tokens.computed == tokens.prompt - tokens.device - tokens.host
        assert tokens.prompt == NUM * ROUNDS * (TOKENS + 1)
        assert tokens.answers == NUM * ROUNDS * 8
    assert native.ttft_s.p50 < without.ttft_s.p50
    assert native.busy_s < without.busy_s


def test_what_one_engine_has_computed_the_store_gives_to_the_other() -> None:
    """Two engines in turn, each with a document that the other one had before: only a store helps."""
    two = documents(1, 2, every_s=10.0)
    native, shared = (
        simulate(replace(setup(mode, engines=2), policy=PolicyName.ROUND_ROBIN), OpenLoad(two))
        for mode in (Mode.NATIVE, Mode.SHARED)
    )
    assert native.hit_rate == 0
    assert shared.tokens.shared == TOKENS


def test_preempted_requests_get_their_tokens_back_from_host_ram() -> None:
    """Prompts that fit, with answers that do not: recovered tokens are no prefix hits, and each spares a
    computed one."""
    asks = [Ask(number, 0.0, 4000, 1500, ()) for number in range(4)]
    load = OpenLoad(asks)
    without, native = (simulate(setup(mode, kv_tokens=18_000), load) for mode in (Mode.NONE, Mode.NATIVE))
    assert without.num_preemptions > 0
    assert native.num_preemptions > 0
    assert without.tokens.recovered < native.tokens.recovered
    assert (native.tokens.host, native.hit_rate) == (0, 0)
    assert native.tokens.computed < without.tokens.computed


def test_a_dead_store_is_no_store() -> None:
    """From the moment that its only node is lost nothing is found in it; nobody fails."""
    two = documents(1, 4, every_s=10.0)
    made = replace(setup(Mode.SHARED, engines=4), policy=PolicyName.ROUND_ROBIN)
    whole = simulate(made, OpenLoad(two))
    lost = simulate(replace(made, incidents=(Incident(15.0, 0),)), OpenLoad(two))
    back = simulate(replace(made, incidents=(Incident(15.0, 0, until_s=25.0),)), OpenLoad(two))
    assert (whole.tokens.shared, lost.tokens.shared) == (3 * TOKENS, TOKENS)
    assert back.tokens.shared == 2 * TOKENS
    assert lost.num_requests == 4


def test_a_lost_node_with_a_copy_elsewhere_costs_nothing() -> None:
    """Three nodes, two copies: what one had another one has."""
    asks = documents(1, 2, every_s=20.0)
    made = setup(Mode.SHARED, engines=2)
    made = replace(made, policy=PolicyName.ROUND_ROBIN, incidents=(Incident(10.0, 1),))
    found = {}
    for copies in (1, 2):
        store = StoreSetup("valkey-100gbe", num_nodes=3, copies=copies)
        found[copies] = simulate(replace(made, cache=replace(made.cache, store=store)), OpenLoad(asks))
    assert found[1].tokens.shared < TOKENS
    assert found[2].tokens.shared == TOKENS


def test_a_split_request_is_computed_once_and_fetched() -> None:
    """One engine computes prompts, the other answers: the prompt's whole chunks come through the store."""
    made = setup(Mode.SHARED, engines=2, num_prefill=1)
    result = simulate(made, OpenLoad(documents(3, 1, every_s=5.0)))
    assert result.num_requests == 3
    assert result.hit_rate == 0
    assert result.tokens.transferred == 3 * TOKENS
    assert result.tokens.computed == 3 * (TOKENS + 1) + 3  # and the last token where it is answered


def test_the_same_seed_gives_the_same_result() -> None:
    """Equal in every number; the policy's chance is the seed's."""
    load = OpenLoad(in_a_burst(documents(6, 2)))
    made = setup(Mode.NATIVE, engines=3)
    assert simulate(made, load) == simulate(made, load)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (lambda s: replace(s, fleet=replace(s.fleet, kv_tokens=2048)), "longest request needs 4,105"),
        (
            lambda s: replace(s, fleet=replace(s.fleet, kv_tokens=None, deployment=LLAMA_70B)),
            r"fleet.gpu: the weights \(141 GB\) do not fit on 1 x H100",
        ),
        (lambda s: replace(s, cache=replace(s.cache, host_bytes=1)), "cache.host_bytes: is 1; allowed"),
        (lambda s: replace(s, fleet=replace(s.fleet, num_prefill=1)), "allowed with mode shared"),
    ],
)
def test_what_cannot_be_is_refused(changed: Callable[[Setup], Setup], text: str) -> None:
    """An impossible deployment is named."""
    with pytest.raises(ConfigError, match=text):
        simulate(changed(setup(Mode.NATIVE)), CYCLE)


def test_no_load_is_refused() -> None:
    """Nothing to simulate."""
    with pytest.raises(ConfigError, match="holds no requests"):
        simulate(setup(), OpenLoad([]))


def test_percentiles_are_by_nearest_rank() -> None:
    """Of 1..100: the 50th, 90th and 99th."""
    found = Percentiles.of([float(value) for value in range(100, 0, -1)])
    assert (found.mean, found.p50, found.p90, found.p99, found.most) == (50.5, 50.0, 90.0, 99.0, 100.0)
