"""What preempted requests get back is counted: from the device, from a tier below, not what they get anew."""

import pytest

from anbar.core.ids import RequestId
from anbar.sim.engine.counters import Counters
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape, HostShape

BLOCK = 4


class _Keys:
    def __init__(self, name: str) -> None:
        self._name = name

    def first(self, num_blocks: int) -> list[tuple[str, int]]:
        return [(self._name, place) for place in range(num_blocks)]


def _served(tiers: Tiers, *, prefix_caching: bool) -> Counters:
    """Two requests of 20 tokens with answers of 40, on a device with room for 80: one has to go."""
    shape = EngineShape(block_size=BLOCK, num_blocks=21, max_model_len=60, prefix_caching=prefix_caching)
    engine = Engine(shape, StepCost(), tiers)
    for name in ("a", "b"):
        engine.add(EngineRequest(RequestId(name), 20, 40, _Keys(name)))
    now_s = 0.0
    while (running := engine.start_step(now_s)) is not None:
        now_s = running.ends_s
        engine.finish_step()
        engine.check_integrity()
    assert engine.counters.num_preemptions == 1
    return engine.counters


def test_without_any_cache_nothing_comes_back() -> None:
    """All is computed again."""
    counters = _served(Tiers(), prefix_caching=False)
    assert (counters.num_recovered_device, counters.num_recovered_external) == (0, 0)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_what_comes_back_from_host_ram_is_what_was_loaded(prefix_caching: bool) -> None:
    """Whole blocks of what the request had; what the other one has not overwritten is on the device still."""
    counters = _served(Tiers(HostShape(100)), prefix_caching=prefix_caching)
    assert counters.num_recovered_external == counters.num_loaded > 0
    assert counters.num_external_hits == 0
    assert 20 < counters.num_recovered_device + counters.num_recovered_external <= 40
