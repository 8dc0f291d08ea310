"""Modelled stores: how kinds differ, how they fail, and what engines then load, compute and store."""

import pytest

from anbar.core.cost import EngineCost, PrefillCost, TierCost, TokenCurve
from anbar.core.ids import RequestId
from anbar.plan.node_loss import NodeLoss
from anbar.sim.engine.chunks import ChunkTable
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import (
    EVERY_PART,
    Node,
    SharedCost,
    StoreFault,
    StoreFaultKind,
    StorePart,
    StoreParts,
)
from anbar.tier.breaker import BreakerState
from anbar.tier.placement import Layers, Rendezvous
from anbar.tier.tally import Series
from anbar.tier.wish import Storing, Wish

BLOCK = 16
SHAPE = EngineShape(BLOCK, 300, max_model_len=4096, max_num_batched_tokens=4096, kv_bytes_per_token=1000)
COST = StepCost(EngineCost(TokenCurve(((1, 0.001), (2, 0.0011), (4096, 0.4105)))))
"""0.1 ms for a prompt's token."""


class Numbers:
    """Keys of a document of that number."""

    def __init__(self, document: int) -> None:
        self._document = document

    def first(self, num_blocks: int) -> list[tuple[int, int]]:
        return [(self._document, index) for index in range(num_blocks)]


class Served:
    """Engines that share a store, served one request at a time, on one clock."""

    def __init__(self, tier: SharedTier, num_engines: int = 2, num_host: int = 2000) -> None:
        self.tier = tier
        self.engines = [Engine(SHAPE, COST, Tiers(HostShape(num_host), tier)) for _ in range(num_engines)]
        self.now_s = 0.0
        self._num = 0

    def ask(self, engine: int, document: int, tokens: int = 1600, wish: Wish | None = None) -> EngineRequest:
        """A prompt, answered by one token, on an engine that has nothing in its own memory."""
        self._num += 1
        request = EngineRequest(RequestId(f"r{self._num}"), tokens, 1, Numbers(document), wish=wish or Wish())
        served = self.engines[engine]
        served.clear_cache(tiers=True)
        served.add(request)
        while (running := served.start_step(self.now_s)) is not None:
            self.now_s = running.ends_s
            served.finish_step()
        return request

    def tally(self, engine: int, series: Series) -> dict[str, float]:
        link = self.engines[engine].connector.link  # type: ignore[union-attr]
        assert link is not None
        return {label: amount for (one, label), amount in link.tally.take().items() if one is series}

    def breaker(self, engine: int) -> BreakerState:
        link = self.engines[engine].connector.link  # type: ignore[union-attr]
        assert link is not None
        return link.breaker.state()


def part(name: str, seconds: float = 0.001, bytes_per_s: float = 1e9, deadline_s: float = 1.0) -> StorePart:
    cost = SharedCost(
        seconds / 2,
        TierCost(seconds, bytes_per_s),
        TierCost(seconds, bytes_per_s),
        timeout_s=min(0.5, deadline_s),
        deadline_s=deadline_s,
    )
    return StorePart(name, ChunkTable(10_000), cost)


def whole(node: Node, *, weighs_loads: bool = True, deadline_s: float = 1.0) -> SharedTier:
    if isinstance(node, StorePart):
        return SharedTier(node, node.cost, weighs_loads=weighs_loads)
    return SharedTier(node, SharedCost(timeout_s=0.5, deadline_s=deadline_s), weighs_loads=weighs_loads)


def learn(served: Served) -> None:
    """Each engine computes and loads a few prompts of several lengths: what both take is known then."""
    for document in range(100, 108):
        tokens = 400 + 400 * (document % 4)
        served.ask(document % 2, document, tokens)
        served.ask(1 - document % 2, document, tokens)


def test_an_engine_loads_what_pays_and_computes_the_rest() -> None:
    """1.6 MB of 1,600 tokens are loaded in 21 ms and computed in 160; 64 tokens are computed in 6.4 ms and
    loaded in 20: `auto` loads the long prompt only, `always` both."""
    for weighs_loads, short in ((True, 0), (False, 64)):
        served = Served(whole(part("slow", 0.02), weighs_loads=weighs_loads))
        learn(served)
        for document, tokens in ((1, 1601), (2, 65)):
            served.ask(0, document, tokens)
        assert served.ask(1, 1, 1601).num_external_hit == 1600
        assert served.ask(1, 2, 65).num_external_hit == short
        assert served.tally(1, Series.DECISIONS).get("skip", 0) == (1 if weighs_loads else 0)


def test_what_a_request_says_of_its_prefill_comes_first() -> None:
    """With a hundredth of the time per token even the long prompt is computed sooner."""

    served = Served(whole(part("slow", 0.02)))
    learn(served)
    served.ask(0, 1)
    assert served.ask(1, 1, wish=Wish(prefill=PrefillCost(1e-6))).num_external_hit == 0
    assert served.ask(1, 1).num_external_hit == 1600


def test_what_is_far_behind_keeps_new_keys_out() -> None:
    """A store that takes a second for each call: prompts beyond their first 1,024 tokens are kept out once
    three quarters of the rows wait, but for a request that says `always`."""
    served = Served(whole(part("slow", 1.0, deadline_s=30.0)), 1, 400)
    engine = served.engines[0]
    for number in range(3):
        engine.add(EngineRequest(RequestId(f"p{number}"), 1600, 1, Numbers(number)))
    served.ask(0, 3, 1600)
    link = engine.connector.link  # type: ignore[union-attr]
    assert link is not None
    told = link.tally.take()
    assert told[Series.FILTER_ENGAGED, "queue"] >= 1
    always = Wish(storing=Storing.ALWAYS)
    served.ask(0, 5, 1600, always)
    assert (Series.STORES, "filtered") not in link.tally.take()


@pytest.mark.parametrize("kind", [StoreFaultKind.DEAD, StoreFaultKind.FROZEN, StoreFaultKind.SLOW])
def test_a_store_that_fails_costs_one_deadline_and_comes_back(kind: StoreFaultKind) -> None:
    """The prompt is computed; the breaker opens and later prompts wait for nothing; when the store is well
    and the pause over, it is used again."""
    served = Served(whole(part("one")))
    learn(served)
    for document in range(6):
        served.ask(0, document)
    healthy_s = 0.17
    served.tier.faults[EVERY_PART] = StoreFault(kind, 60.0)
    for document in range(4):
        began_s = served.now_s
        assert served.ask(1, document).num_external_hit == 0
        took_s = served.now_s - began_s
        assert took_s < 0.5 + healthy_s + 1.1
    assert served.breaker(1) is not BreakerState.CLOSED
    served.tier.faults.clear()
    served.now_s += 60.0
    for document in (4, 5):
        served.ask(1, document)
    assert served.breaker(1) is BreakerState.CLOSED
    assert served.ask(1, 5).num_external_hit == 1600


def test_a_full_store_can_be_read_and_a_damaged_entry_is_a_miss() -> None:
    """FULL engages the filter and opens no breaker. What does not verify is computed, and written anew."""
    served = Served(whole(part("one")))
    served.ask(0, 1)
    served.tier.faults[EVERY_PART] = StoreFault(StoreFaultKind.FULL)
    served.ask(0, 2)
    assert served.tally(0, Series.STORES)["full"] > 0
    assert served.breaker(0) is BreakerState.CLOSED
    assert served.ask(1, 1).num_external_hit == 1600
    served.tier.faults[EVERY_PART] = StoreFault(StoreFaultKind.DAMAGED)
    assert served.ask(1, 1).num_external_hit == 0
    assert served.tally(1, Series.LOADS)["corrupt"] > 0
    served.tier.faults.clear()
    assert served.ask(0, 1).num_external_hit == 1600


def test_layers_are_read_nearest_first_and_promote() -> None:
    """What only the far layer has takes its time and is in the near one afterwards."""
    near, far = part("near", 0.0001), part("far", 0.02)
    served = Served(whole(StoreParts("both", (near, far), Layers(2))))
    served.ask(0, 1)
    assert len(near.chunks) == len(far.chunks) == 100
    for key in list(near.chunks._chunks):  # type: ignore[attr-defined]
        near.chunks.drop(*key)
    began_s = served.now_s
    assert served.ask(1, 1).num_external_hit == 1600
    first_s = served.now_s - began_s
    assert len(near.chunks) == 100
    began_s = served.now_s
    assert served.ask(1, 1).num_external_hit == 1600
    assert served.now_s - began_s < first_s - 0.015


def test_two_copies_outlive_a_member() -> None:
    """Every chunk is in two of three directories; with one dead all of it is still found."""
    members = tuple(part(name) for name in "abc")
    served = Served(whole(StoreParts("three", members, Rendezvous(list("abc"), 2))))
    served.ask(0, 1)
    assert sum(len(member.chunks) for member in members) == 200
    served.tier.faults["b"] = StoreFault(StoreFaultKind.DEAD)
    assert served.ask(1, 1).num_external_hit == 1600
    link = served.engines[1].connector.link  # type: ignore[union-attr]
    assert link is not None
    told = {stats.id: stats for stats in link.part_stats()}
    assert told["b"].keys["lookup", "error"] > 0
    assert told["a"].keys["load", "hit"] > 0
    assert served.breaker(1) is BreakerState.CLOSED


def test_what_a_lost_node_takes_is_what_the_calculator_says_and_is_stored_anew() -> None:
    """A hundred prefixes of ten chunks, one copy of each on three nodes. With a node dead as much of them is
    found as `anbar advise ha` says; when each was computed once more, all of them are found again."""
    members = tuple(part(name) for name in "abc")
    tier = whole(StoreParts("three", members, Rendezvous(list("abc"), 1)), weighs_loads=False)
    served, prefixes = Served(tier), range(100)
    never = Wish(storing=Storing.NEVER)

    def found(wish: Wish) -> float:
        asked = [served.ask(1, document, 161, wish) for document in prefixes]
        return sum(request.num_external_hit for request in asked) / (160 * len(prefixes))

    for document in prefixes:
        served.ask(0, document, 161)
    assert found(never) == 1.0
    tier.faults["b"] = StoreFault(StoreFaultKind.DEAD)
    for document in range(100, 110):  # both engines' breakers open
        served.ask(0, document, 161)
        served.ask(1, document, 161)
    said = NodeLoss(3, 1, num_tokens=160, chunk_tokens=16).found
    assert said == pytest.approx(0.1966, abs=0.0001)
    assert found(never) == pytest.approx(said, abs=0.04)
    for document in prefixes:
        served.ask(0, document, 161)
    assert found(never) == 1.0


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(0.002, 1e9), (0.02, 2e7), (0.05, 1e8), (0.08, 3e7)])
def test_the_sooner_side_is_chosen_at_every_length(latency_s: float, bytes_per_s: float) -> None:
    """At ten lengths the same prompt is loaded and computed by force; what the engine chooses by itself is
    the side that took less, but where both are within a tenth."""
    served = Served(whole(part("one", latency_s, bytes_per_s)))
    learn(served)
    chosen, num_right = 0, 0
    for number, tokens in enumerate((64, 128, 192, 256, 384, 512, 800, 1200, 1600, 3200)):
        served.ask(0, number, tokens + 1)
        took_s = []
        for prefill in (PrefillCost(100.0), PrefillCost(1e-9), None):
            began_s = served.now_s
            request = served.ask(1, number, tokens + 1, Wish(prefill=prefill, storing=Storing.NEVER))
            took_s.append(served.now_s - began_s)
        load_s, compute_s, _ = took_s
        if abs(load_s - compute_s) > 0.1 * compute_s:
            chosen += 1
            num_right += (request.num_external_hit > 0) is (load_s < compute_s)
    assert chosen >= 8
    assert num_right == chosen
