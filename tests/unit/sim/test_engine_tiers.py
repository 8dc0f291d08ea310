"""What an engine does with tiers below its device, one rule at a time."""

import math
from dataclasses import replace
from itertools import islice

import pytest

from anbar.core.cost import TierCost
from anbar.core.events import Tier
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.events import EngineEvent, Stored, TierRemoved, TierStored
from anbar.sim.engine.pace import ZERO
from anbar.sim.engine.request import EngineRequest, Status
from anbar.sim.engine.shape import HostShape, Offload
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.store import SharedCost
from anbar.tier.wish import Storing, Wish
from tests.unit.sim.driving import FRESH, ask, pieces, run, shape, step
from tests.unit.sim.workload import COST


def tiered(num_chunks: int = 20, *, chunk_blocks: int = 1, offload: Offload = Offload.ALL) -> Engine:
    """Six blocks of device behind which there is a host tier."""
    return Engine(shape(7, max_model_len=24), COST, Tiers(HostShape(num_chunks, chunk_blocks, offload)))


def filler(name: str) -> EngineRequest:
    """Takes the whole device."""
    return ask(name, list(islice(FRESH, 23)))


def test_a_store_is_copied_by_the_next_step() -> None:
    """A prompt of two blocks and an answer of five tokens: the step that fills a block plans its copy, the
    next one makes it and announces it. After the answer, a step without tokens stores its last block."""
    engine = tiered()
    request = ask("a", range(8), 5)
    engine.add(request)
    first, second, third = request.keys.first(3)
    stored: list[list[EngineEvent]] = []
    copied = []
    while (running := engine.start_step(0.0, 0.0)) is not None:
        copied.append(running.step.num_stored_tokens)
        events = engine.finish_step().events
        stored.append([event for event in events if isinstance(event, TierStored)])
    on_host = [TierStored((key,), Tier.HOST) for key in (first, second, third)]
    assert stored == [[], on_host[:2], [], [], [], [on_host[2]]]
    assert copied == [0, 8, 0, 0, 0, 4]


def test_prompts_only() -> None:
    """With `Offload.PROMPT` the answer's block stays on the device alone."""
    engine = tiered(offload=Offload.PROMPT)
    engine.add(ask("a", range(8), 8))
    run(engine)
    assert engine.counters.num_stored == 8


def test_chunks_have_the_key_of_their_last_block() -> None:
    """Chunks of two blocks: a prompt of five blocks stores two of them."""
    engine = tiered(chunk_blocks=2)
    request = ask("a", range(20))
    engine.add(request)
    keys = request.keys.first(5)
    events, _ = run(engine)
    assert [event for event in events if isinstance(event, TierStored)] == [
        TierStored((keys[1],), Tier.HOST),
        TierStored((keys[3],), Tier.HOST),
    ]


def test_a_loaded_prompt_runs_a_step_later_and_computes_its_last_token() -> None:
    """A prompt of exactly four blocks is evicted from the device and asked for again: a step loads all of
    it, the next computes one token. It counts as cached whole."""
    engine = tiered()
    engine.add(ask("a", range(16)))
    engine.add(filler("f"))
    run(engine)
    again = ask("b", range(16))
    engine.add(again)
    running, result = step(engine)
    assert pieces(running) == []
    assert running.step.num_loaded_tokens == 16
    assert again.status is Status.LOADING
    assert (engine.num_waiting, engine.num_deferred) == (1, 1)
    assert result.outputs == ()
    running, result = step(engine)
    assert (engine.num_waiting, engine.num_deferred) == (0, 0)
    assert pieces(running) == [("b", 15, 1)]
    assert [output.finished for output in result.outputs] == [True]
    assert Stored(again, 0, tuple(again.keys.first(4)), None) in result.events
    assert (again.num_device_hit, again.num_external_hit, again.num_cached_tokens) == (0, 16, 16)
    assert engine.counters.num_prompt_external_hit == 16


def test_a_request_may_limit_what_it_loads_and_stores() -> None:
    """At most 10 tokens, which is two chunks, to be stored, and 6 to be loaded: one chunk."""
    engine = tiered()
    first = ask("a", range(16))
    first.max_offload_tokens = 10
    engine.add(first)
    run(engine)
    assert engine.counters.num_stored == 8
    engine.add(filler("f"))
    run(engine)
    again = ask("b", range(16))
    again.max_load_tokens = 6
    engine.add(again)
    run(engine)
    assert again.num_external_hit == 4


def test_what_is_being_stored_or_loaded_delays_who_wants_it() -> None:
    """A prompt is being loaded; a second request for it waits for the load rather than load it again, and
    then finds it on the device. A request behind them that wants something else runs meanwhile."""
    engine = tiered()
    engine.add(ask("a", range(8)))
    engine.add(filler("f"))
    run(engine)
    for name in "bc":
        engine.add(ask(name, range(9)))
    engine.add(ask("d", range(100, 104)))
    assert pieces(step(engine)[0]) == [("d", 0, 4)]
    assert pieces(step(engine)[0]) == [("b", 8, 1), ("c", 8, 1)]
    assert engine.counters.num_loaded == 8


def test_the_end_of_a_prompt_leaves_the_host_before_its_beginning() -> None:
    """Four chunks. A request of three has ended; one of two needs a place: the third chunk goes."""
    engine = tiered(4)
    first, second = ask("a", range(12)), ask("b", range(50, 58))
    engine.add(first)
    run(engine)
    engine.add(second)
    events, _ = run(engine)
    assert [event for event in events if isinstance(event, TierRemoved)] == [
        TierRemoved((first.keys.first(3)[2],), Tier.HOST)
    ]


def test_a_store_that_finds_no_place_is_offered_again() -> None:
    """A host tier of two chunks and two prompts of two. The first one's are planned in step 0 and copied in
    step 1, and cannot go until then: the second one's are refused in both. They have a place in step 2 and
    are copied in step 3, though its answer fills the next chunk only in step 4."""
    engine = tiered(2)
    first, second = ask("a", range(8)), ask("b", range(50, 58), 6)
    engine.add(first)
    engine.add(second)
    stored = {
        number: [event.keys[0] for event in step(engine)[1].events if isinstance(event, TierStored)]
        for number in range(4)
    }
    assert stored == {0: [], 1: first.keys.first(2), 2: [], 3: second.keys.first(2)}


def test_an_id_may_be_used_again_at_once() -> None:
    """A request has ended, and what it left is not stored yet, when another comes under its id."""
    engine = tiered()
    engine.add(ask("a", range(8), 2))
    step(engine)
    step(engine)
    again = ask("a", range(50, 58), 3)
    engine.add(again)
    run(engine)
    assert again.num_generated == 3


COSTLY = SharedCost(0.25, TierCost(0.5, float("inf")), TierCost(0.125, float("inf")))


def pair(store: SharedTier) -> tuple[Engine, Engine]:
    """Two engines on one store."""
    one, other = (Engine(shape(7, max_model_len=24), ZERO, Tiers(HostShape(20), store)) for _ in range(2))
    return one, other


def test_what_one_engine_stored_another_loads() -> None:
    """The first engine stores a prompt in the shared tier. The second asks (0.25 s), fetches it into its host
    tier (0.5 s) while another request runs, loads it in a step, and computes the last token."""
    first, second = pair(SharedTier(50, COSTLY))
    request = ask("a", range(16))
    first.add(request)
    events, now_s = run(first)
    keys = request.keys.first(4)
    assert TierStored((keys[0],), Tier.SHARED) in events
    again, other = ask("b", range(16)), ask("c", [1, 2])
    second.add(again)
    second.add(other)
    running = second.start_step(now_s, now_s)
    assert running is not None
    assert pieces(running) == [("c", 0, 2)]
    second.finish_step()
    _, ended_s = run(second, now_s)
    assert ended_s - now_s == pytest.approx(0.75, abs=0.01)
    assert (again.num_external_hit, again.num_generated) == (16, 1)


def test_scopes_do_not_see_each_other_and_a_request_may_stay_out() -> None:
    """The same prompt under another scope is not found, nor one whose request wanted nothing stored, nor by a
    request that loads from host RAM only."""
    for stores, asks, expected in (
        (Wish("red"), Wish("red"), 8),
        (Wish("red"), Wish("blue"), 0),
        (Wish(storing=Storing.NEVER), Wish(), 0),
    ):
        first, second = pair(SharedTier(50))
        request, again = ask("a", range(8)), ask("b", range(8))
        request.wish, again.wish = stores, asks
        first.add(request)
        _, now_s = run(first)
        second.add(again)
        run(second, now_s)
        assert again.num_external_hit == expected
    first, second = pair(SharedTier(50))
    first.add(ask("a", range(8)))
    _, now_s = run(first)
    again = ask("b", range(8))
    again.loads_shared = False
    second.add(again)
    run(second, now_s)
    assert again.num_external_hit == 0


@pytest.mark.parametrize("is_stored", [True, False])
def test_what_another_engine_is_storing_is_waited_for(is_stored: bool) -> None:
    """The second engine asks first, and was told to expect the prompt: it waits, and loads what the first
    engine stores half a second later. Where nothing comes it waits for a second and computes."""
    first, second = pair(SharedTier(50, COSTLY))
    again = ask("b", range(16))
    again.wish = Wish(wait_s=1.0, expect_tokens=16)
    second.add(again)
    now_s = 0.0
    while now_s < 0.5:
        running = second.start_step(now_s, now_s)
        assert running is not None
        now_s = running.ends_s
        second.finish_step()
    assert again.status is Status.WAITING
    if is_stored:
        first.add(ask("a", range(16)))
        run(first, now_s)
    _, ended_s = run(second, now_s)
    assert (again.num_external_hit, again.num_generated) == (16 if is_stored else 0, 1)
    assert ended_s < 2.0


def test_a_full_store_drops_what_was_used_last_longest_ago() -> None:
    """A store of two chunks gets a third: the first is gone, which the engine that stored announces."""
    engine, _ = pair(SharedTier(2))
    request = ask("a", range(12))
    engine.add(request)
    events, _ = run(engine)
    keys = request.keys.first(3)
    removed = [event for event in events if isinstance(event, TierRemoved)]
    assert removed == [TierRemoved((keys[0],), Tier.SHARED)]


def test_what_is_gone_before_it_was_fetched_is_computed() -> None:
    """The second engine has found a prompt in the store and fetches it, which takes half a second, when what
    the first engine stores takes its place. The request is computed then; it does not ask again."""
    first, second = pair(SharedTier(2, COSTLY))
    first.add(ask("a", range(8)))
    _, now_s = run(first)
    again = ask("b", range(8))
    second.add(again)
    for at_s in (now_s, now_s + 0.3):
        assert second.start_step(at_s, at_s) is not None
        second.finish_step()
    first.add(ask("c", range(50, 58)))
    run(first, now_s + 0.3)
    _, ended_s = run(second, now_s + 0.45)
    assert (again.num_external_hit, again.num_generated) == (0, 1)
    # It was asked for at 0 s, found at 0.3 s, and missing at 0.8 s; what was computed is stored until 0.93 s.
    assert ended_s - now_s == pytest.approx(0.93, abs=0.02)


def test_clearing_one_engine_ends_no_call_of_another() -> None:
    """The second engine asks for what the first one stored, which takes a quarter of a second and half a
    second more to fetch. The first clears its tiers meanwhile, and does not wait for what it is storing (its
    last call ends much later): the second is served when it is without that."""
    ended = []
    for clears in (False, True):
        first, second = pair(SharedTier(50, replace(COSTLY, store=TierCost(3.0, math.inf))))
        first.add(ask("a", range(16)))
        _, now_s = run(first)
        first.add(ask("b", range(100, 120)))
        is_on_host = False
        while not is_on_host:
            running, result = step(first, now_s)
            now_s = running.ends_s
            is_on_host = any(isinstance(event, TierStored) for event in result.events)
        again = ask("c", range(16))
        second.add(again)
        step(second, now_s)
        if clears:
            first.clear_cache(tiers=True)
            first.check_integrity()
        _, ended_s = run(second, now_s)
        assert again.num_external_hit == 16
        ended.append(ended_s - now_s)
    assert ended[0] == ended[1] >= 0.75


def test_a_slow_store_delays_a_request_no_longer_than_it_may() -> None:
    """Lookups take 3 s, but the request waits only half a second, and then computes."""
    engine, _ = pair(SharedTier(50, SharedCost(lookup_s=3.0)))
    request = ask("a", range(8))
    request.wish = Wish(wait_s=0.5)
    engine.add(request)
    now_s = 0.0
    while not request.num_generated:
        running = engine.start_step(now_s)
        assert running is not None
        now_s = running.ends_s
        engine.finish_step()
    assert now_s == pytest.approx(0.5, abs=0.02)
