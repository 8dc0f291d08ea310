"""What is said of a workload's reuse: both sides of each limit."""

import pytest

from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.reuse_answer import Capacities, reuse_by_tier, reuse_in_tokens
from anbar.plan.workload import Asked, Reuse, Workload

SIZE = 512
SMALL = Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100")
DOCUMENT = 20
"""Blocks."""


def cycle(num_documents: int, rounds: int) -> Workload:
    """Documents of 20 blocks and a token, asked for in order again and again, one a second."""
    turns = range(num_documents * rounds)
    blocks = [tuple(range(DOCUMENT * n, DOCUMENT * (n + 1))) for n in range(num_documents)]
    asked = [Asked(float(t), DOCUMENT * SIZE + 1, 10, blocks[t % num_documents]) for t in turns]
    return Workload(asked, SIZE)


def shares(answer: Answer) -> dict[str, float]:
    """Figures that are shares, by the end of their names."""
    return {
        f.name.removeprefix("prompt tokens found with "): f.value for f in answer.figures if f.unit == "share"
    }


def test_a_cycle_is_a_cliff_and_tiers_do_not_add_up() -> None:
    """100 documents are 134 GB. GPUs of 54 GB find nothing, nor do they with 100 GiB of host RAM, which holds
    the same once more; with 150 GB of store everything is found from the second round on."""
    workload = cycle(100, 5)
    reuse = Reuse.of(workload)
    assert 134e9 < reuse.num_blocks * SIZE * SMALL.kv_bytes_per_token < 135e9
    answer = reuse_by_tier(workload, reuse, SMALL, Capacities(1, 100 * 10**9, 150 * 10**9))
    found = shares(answer)
    assert (found["the GPUs"], found["host RAM"]) == (0.0, 0.0)
    assert found["the store"] == pytest.approx(0.8, abs=0.001)
    assert "host RAM adds nothing; the store adds 80 %" in answer.conclusion


def test_more_engines_hold_more() -> None:
    """Three such engines hold all: nothing else has anything to add."""
    workload = cycle(100, 5)
    answer = reuse_by_tier(workload, Reuse.of(workload), SMALL, Capacities(3, 10**9, 0))
    assert "neither host RAM nor a store has much to add" in answer.conclusion
    (host,) = [figure.how for figure in answer.figures if figure.name.endswith("host RAM")]
    assert host.endswith("smaller than what is before it, which it repeats")


def test_what_never_comes_again() -> None:
    """Without a model as with one it is said at once."""
    workload = Workload([Asked(float(n), SIZE, 1, (n,)) for n in range(50)], SIZE)
    reuse = Reuse.of(workload)
    assert "no cache of prefixes helps" in reuse_in_tokens(workload, reuse).conclusion
    assert "neither host RAM" in reuse_by_tier(workload, reuse, SMALL, Capacities(1)).conclusion


def test_without_a_model_capacities_are_in_tokens() -> None:
    """A cycle of ten documents needs nine of them and most of the tenth."""
    workload = cycle(10, 10)
    answer = reuse_in_tokens(workload, Reuse.of(workload))
    capacity = {figure.name: figure.value for figure in answer.figures}
    assert capacity["capacity for 25 % of the hits there could be"] / (DOCUMENT * SIZE) > 9
    assert capacity["capacity for 95 % of the hits there could be"] / (DOCUMENT * SIZE) <= 10
    assert "At most 90 %" in answer.conclusion


def test_a_prompts_last_token_and_its_open_block_are_never_found() -> None:
    """The same prompt of two full blocks, and of two and a half, again: one block of the first, two of the
    second."""
    for num_tokens, blocks, usable in ((2 * SIZE, (1, 2), 1), (2 * SIZE + 100, (1, 2, 3), 2)):
        workload = Workload([Asked(float(n), num_tokens, 1, blocks) for n in range(2)], SIZE)
        assert Reuse.of(workload).curve.best == pytest.approx(usable * SIZE / (2 * num_tokens))


def test_weights_that_do_not_fit() -> None:
    """Are refused."""
    workload = cycle(1, 2)
    large = Deployment("Llama-3.1-70B", MODELS["Llama-3.1-70B"], "H100")
    with pytest.raises(ConfigError, match=r"the weights \(141 GB\) do not fit on 1 x H100"):
        reuse_by_tier(workload, Reuse.of(workload), large, Capacities(1))
