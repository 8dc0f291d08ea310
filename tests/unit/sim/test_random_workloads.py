"""The engine model under random load: nothing is lost, everything ends, and everything is announced."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sim.workload import Below, Workload, random_workload, serve

WORKLOADS = st.builds(
    random_workload, st.integers(0, 2**32), st.integers(1, 20), st.sampled_from((*Below, Below.HOST))
)
"""Many small engines; a failure shrinks to few requests."""


@given(WORKLOADS)
@settings(max_examples=150)
def test_every_block_is_accounted_for_and_every_request_ends(workload: Workload) -> None:
    """Requests arrive, share prefixes, are preempted and aborted, before steps and amid them, on pools that
    are too small, with and without tiers below. After each half of each step blocks, keys, holders and
    queues agree, and events tell what is cached. In the end every request that was not aborted has its whole
    answer, and no block is held."""
    engine, served = serve(workload)
    num_generated: dict[str, int] = {}
    finished = set()
    for _, outputs in served.outputs:
        for request_id, count, is_over in outputs:
            num_generated[request_id] = num_generated.get(request_id, 0) + count
            if is_over:
                finished.add(request_id)
    for ask, request in zip(workload.asks, served.requests, strict=True):
        assert num_generated.get(request.id, 0) == request.num_generated
        if request.id in finished:
            room = workload.shape.max_model_len - len(ask.prompt)
            assert request.num_generated == min(len(ask.answer), room)
        else:
            assert ask.aborts is not None
    assert engine.usage == 0.0
    assert engine.num_running == engine.num_waiting == 0
    counters = engine.counters
    assert counters.num_prompt == (
        counters.num_prompt_computed + counters.num_prompt_device_hit + counters.num_prompt_external_hit
    )
    assert counters.num_generated == sum(num_generated.values())
    assert counters.num_preemptions == sum(request.num_preemptions for request in served.requests)


@given(WORKLOADS)
@settings(max_examples=50)
def test_the_same_again(workload: Workload) -> None:
    """A second engine does exactly the same at the same times."""
    (_, first), (_, second) = serve(workload, checked=False), serve(workload, checked=False)
    assert (first.outputs, first.batches, first.ended_s) == (second.outputs, second.batches, second.ended_s)


def test_the_same_in_every_process() -> None:
    """Twelve workloads do to the byte what they did when this digest was written, whatever the order of
    sets in this process. A change of what the engine does changes it: then it is to be written anew."""
    text = hashlib.sha256()
    for seed in range(12):
        _, served = serve(random_workload(seed, 12, tuple(Below)[seed % 3]), checked=False)
        text.update(repr((served.outputs, served.batches, round(served.ended_s, 6))).encode())
    assert text.hexdigest() == "17f5300d792b2f1086c68af69182fc77eb61760f5083fd2784f7a1b73b8cf001"


@given(WORKLOADS)
@settings(max_examples=50)
def test_strides_change_nothing(workload: Workload) -> None:
    """Decode steps taken in strides: the same tokens by the end of each stride, the same batches of events at
    the same times, the same end."""
    asks = tuple(replace(ask, arrives=0, aborts=None) for ask in workload.asks)
    calm = replace(workload, asks=asks)
    if calm.store is not None:  # a stride may be late to give up a lookup
        calm = replace(calm, store=(calm.store[0], replace(calm.store[1], timeout_s=1e6)))
    engine, single = serve(calm)
    other, strides = serve(calm, strides=True)
    assert [events for _, events in strides.batches] == [events for _, events in single.batches]
    assert [time_s for time_s, _ in strides.batches] == pytest.approx(
        [time_s for time_s, _ in single.batches]
    )
    assert abs(strides.ended_s - single.ended_s) < 1e-6
    assert other.counters == engine.counters
    assert other.pool.free_order() == engine.pool.free_order()
    assert other.pool.contents() == engine.pool.contents()
    totals: list[tuple[float, dict[str, int]]] = []
    running: dict[str, int] = {}
    for time_s, outputs in single.outputs:
        for request_id, count, _ in outputs:
            running[request_id] = running.get(request_id, 0) + count
        totals.append((time_s, dict(running)))
    running.clear()
    for time_s, outputs in strides.outputs:
        for request_id, count, _ in outputs:
            running[request_id] = running.get(request_id, 0) + count
        assert any(abs(time_s - at_s) < 2e-6 and running == total for at_s, total in totals)
