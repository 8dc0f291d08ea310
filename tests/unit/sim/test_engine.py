"""What an engine does, one rule at a time."""

import pytest

from anbar.core.errors import ConfigError, RequestError
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.events import Cleared, Removed, Stored
from anbar.sim.engine.request import Status
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from tests.unit.sim.driving import ask, pieces, run, shape, step
from tests.unit.sim.workload import BLOCK, COST


def test_a_request_is_computed_then_decoded_token_by_token() -> None:
    """A prompt of 6 tokens and an answer of 3: one step for the prompt gives the first token, two more."""
    engine = Engine(shape(), COST)
    engine.add(ask("a", range(6), 3))
    steps = [step(engine) for _ in range(3)]
    assert [pieces(running) for running, _ in steps] == [[("a", 0, 6)], [("a", 6, 1)], [("a", 7, 1)]]
    assert [result.outputs[0].finished for _, result in steps] == [False, False, True]
    assert engine.start_step(0.0) is None


def test_a_block_is_announced_by_the_step_that_fills_it() -> None:
    """The prompt fills one block, the second token of the answer another."""
    engine = Engine(shape(), COST)
    request = ask("a", range(6), 3)
    engine.add(request)
    first, second = request.keys.first(2)
    assert [step(engine)[1].events for _ in range(3)] == [
        (Stored(request, 0, (first,), None),),
        (),
        (Stored(request, 1, (second,), first),),
    ]


def test_prompts_are_cut_to_the_budget_and_decodes_come_first() -> None:
    """20 tokens a step: a prompt of 30 takes two; what its second part leaves goes to the next prompt, and
    while that is computed the first request decodes."""
    engine = Engine(shape(max_num_batched_tokens=20), COST)
    engine.add(ask("a", range(30), 5))
    engine.add(ask("b", range(100, 130)))
    assert [pieces(step(engine)[0]) for _ in range(3)] == [
        [("a", 0, 20)],
        [("a", 20, 10), ("b", 0, 10)],
        [("a", 30, 1), ("b", 10, 19)],
    ]


def test_a_hit_never_covers_the_last_token() -> None:
    """The same prompt of exactly two blocks again: only its first block is taken from the cache."""
    engine = Engine(shape(), COST)
    engine.add(ask("a", range(8)))
    run(engine)
    again = ask("b", range(8))
    engine.add(again)
    assert pieces(step(engine)[0]) == [("b", 4, 4)]
    assert (again.num_device_hit, again.num_cached_tokens) == (4, 4)
    assert engine.counters.num_prefix_queries == 16
    assert engine.counters.num_prefix_hits == 4


def test_another_salt_is_another_prefix() -> None:
    """And a request that must not read the cache computes all of its prompt."""
    engine = Engine(shape(), COST)
    engine.add(ask("a", range(8)))
    run(engine)
    engine.add(ask("b", range(8), salt=1))
    unread = ask("c", range(8))
    unread.reads_cache = False
    engine.add(unread)
    assert pieces(step(engine)[0]) == [("b", 0, 8), ("c", 0, 8)]
    assert engine.counters.num_prefix_queries == 16


def test_only_what_the_device_was_asked_for_counts_as_asked() -> None:
    """Without prefix caching the host tier is all that is asked, and every prompt token with it: the second
    request loads both of its chunks."""
    cacheless = EngineShape(BLOCK, 7, 8, 64, 24, prefix_caching=False)
    engine = Engine(cacheless, COST, Tiers(HostShape(20)))
    for name in "ab":
        engine.add(ask(name, range(9)))
        run(engine)
    counters = engine.counters
    assert (counters.num_prefix_queries, counters.num_prefix_hits) == (0, 0)
    assert (counters.num_external_queries, counters.num_external_hits) == (18, 8)


def test_who_came_last_is_preempted_and_comes_back_first() -> None:
    """Seven blocks. Two requests of three blocks grow; one block is left for both. The first gets it, the
    second, which is preempted, waits before a third that came meanwhile. It finds the part of its prompt that
    nobody needed."""
    engine = Engine(shape(8, max_model_len=28), COST)
    first, second, third = ask("a", range(12), 9), ask("b", range(50, 62), 9), ask("c", range(8))
    engine.add(first)
    engine.add(second)
    step(engine)
    engine.add(third)
    running, _ = step(engine)
    assert pieces(running) == [("a", 12, 1)]
    assert [request.id for request in running.step.preempted] == ["b"]
    assert [request.id for request in engine.scheduler.waiting()] == ["b", "c"]
    assert second.status is Status.PREEMPTED
    assert engine.counters.num_preemptions == 1
    run(engine)
    assert second.num_generated == 9
    assert second.num_preemptions == 1
    assert second.num_device_hit == 0, "the first admission found nothing, and that is what counts"


def test_a_prompt_that_does_not_fit_whole_waits() -> None:
    """With room for its first part only: it waits, and all behind it. Without the reservation it starts."""
    tokens = 4
    for reserves, expected in ((True, [("a", 12, 1)]), (False, [("a", 12, 1), ("b", 0, tokens - 1)])):
        engine = Engine(
            EngineShape(BLOCK, 9, 8, tokens, 32, reserve_full_prompt=reserves),
            COST,
        )
        engine.add(ask("a", range(12), 9))
        for _ in range(3):
            step(engine)
        engine.add(ask("b", range(50, 72)))
        engine.add(ask("c", [1]))
        assert pieces(step(engine)[0]) == expected


def test_a_watermark_keeps_blocks_free_beside_others() -> None:
    """Half of eight blocks are to stay free: alone, a request may take five; a second one beside it waits."""
    engine = Engine(EngineShape(BLOCK, 9, 8, 64, 32, watermark=0.5), COST)
    engine.add(ask("a", range(18), 2))
    engine.add(ask("b", [1]))
    assert pieces(step(engine)[0]) == [("a", 0, 18)]
    run(engine)
    assert engine.counters.num_generated == 3


def test_no_more_requests_run_than_allowed() -> None:
    """Two at once: the third waits until one has ended."""
    engine = Engine(shape(max_num_seqs=2), COST)
    for name in "abc":
        engine.add(ask(name, range(3), 2))
    assert pieces(step(engine)[0]) == [("a", 0, 3), ("b", 0, 3)]
    assert (engine.num_running, engine.num_waiting) == (2, 1)
    step(engine)
    assert pieces(step(engine)[0]) == [("c", 0, 3)]


def test_an_answer_ends_where_the_context_does() -> None:
    """12 tokens of context, a prompt of 10, an answer of 9 that gets no further than 2."""
    engine = Engine(shape(max_model_len=12), COST)
    request = ask("a", range(10), 9)
    engine.add(request)
    run(engine)
    assert request.num_generated == 2
    assert request.status is Status.FINISHED


def test_a_prompt_that_fills_the_context() -> None:
    """It is computed, and gets one token: that is what a pooling engine does with an input."""
    engine = Engine(shape(max_model_len=12), COST)
    request = ask("a", range(12), 1)
    engine.add(request)
    run(engine)
    assert (request.num_generated, request.status) == (1, Status.FINISHED)


def test_what_cannot_be_served_is_refused() -> None:
    """An empty or too long prompt, no answer, an id twice; an engine whose context its device cannot hold."""
    engine = Engine(shape(max_model_len=12), COST)
    for prompt, num_answer in (((), 1), (range(13), 1), (range(4), 0)):
        with pytest.raises(RequestError, match="prompt"):
            engine.add(ask("a", prompt, num_answer))
    engine.add(ask("a", [1]))
    with pytest.raises(RequestError, match="already"):
        engine.add(ask("a", [2]))
    with pytest.raises(ConfigError, match="max_model_len"):
        Engine(shape(4, max_model_len=13), COST)
    with pytest.raises(ConfigError, match="host"):
        Tiers(shared=SharedTier(5))


def test_an_abort_amid_a_step_gives_no_output_and_frees_at_once() -> None:
    """One of two requests goes while a step computes both, and a waiting one before it was tried."""
    engine = Engine(shape(max_num_seqs=2), COST)
    for name in "abc":
        engine.add(ask(name, range(6), 5))
    assert engine.start_step(0.0) is not None
    usage = engine.usage
    engine.abort(RequestId("a"))
    engine.abort(RequestId("c"))
    engine.abort(RequestId("unknown"))
    assert engine.usage < usage
    assert [output.request.id for output in engine.finish_step().outputs] == ["b"]
    assert pieces(step(engine)[0]) == [("b", 6, 1)]
    engine.add(ask("a", range(6)))


def test_a_cache_in_use_is_not_cleared() -> None:
    """Refused while a request runs; done when idle, and announced with the next step's events."""
    engine = Engine(shape(), COST)
    engine.add(ask("a", range(8), 2))
    step(engine)
    assert not engine.clear_cache()
    run(engine)
    assert engine.clear_cache()
    request = ask("b", range(8))
    engine.add(request)
    assert step(engine)[1].events == (Cleared(), Stored(request, 0, tuple(request.keys.first(2)), None))


def test_evictions_are_announced_before_what_takes_their_place() -> None:
    """Three blocks: the second request takes the first one's, last block first."""
    engine = Engine(shape(4, max_model_len=12), COST)
    first, second = ask("a", range(11)), ask("b", range(50, 61))
    engine.add(first)
    run(engine)
    engine.add(second)
    keys = first.keys.first(2)
    assert step(engine)[1].events == (
        Removed((keys[1],)),
        Removed((keys[0],)),
        Stored(second, 0, tuple(second.keys.first(2)), None),
    )
    assert engine.pool.num_evictions == 2


def test_a_stride_ends_before_the_next_arrival() -> None:
    """Decode steps take half a second. By 1.2 s two of them fit, and the first always does; without an
    arrival a stride goes on until the block is full."""
    for until_s, expected in ((1.2, 2), (0.1, 1), (9.0, 3)):
        engine = Engine(shape(), COST)
        engine.add(ask("a", [1], 40))
        running = engine.start_step(0.0, until_s)
        assert running is not None
        assert running.step.num_repeats == expected
        assert running.ends_s == pytest.approx(expected / 2)
        assert [output.num_tokens for output in engine.finish_step().outputs] == [expected]
        engine.check_integrity()


def test_a_prompt_that_another_engine_computed_is_here_at_once() -> None:
    """Of a prompt of five blocks and a half, of which the device has one: only its last token is computed.
    The rest counts as coming from outside, and can be hit by others afterwards."""
    engine = Engine(shape(20), COST)
    engine.add(ask("before", range(4)))
    run(engine)
    request = ask("a", range(22), 2)
    request.num_remote_tokens = 22
    engine.add(request)
    running, result = step(engine)
    assert pieces(running) == [("a", 21, 1)]
    assert (request.num_device_hit, request.num_external_hit, request.num_cached_tokens) == (4, 18, 22)
    assert (engine.counters.num_prefix_hits, engine.counters.num_external_hits) == (4, 18)
    assert Stored(request, 1, tuple(request.keys.first(5)[1:]), request.keys.first(1)[0]) in result.events
    run(engine)
    again = ask("b", range(22))
    engine.add(again)
    run(engine)
    assert again.num_device_hit == 20
