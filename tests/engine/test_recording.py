"""Recordings of real vLLM hold together: what the engine model is held to is what happened."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from anbar.adapters.vllm.block_hash import Identity, extend
from anbar.sim.engine.shape import HostShape, Offload
from tests.engine.batches import SCENARIOS
from tests.engine.recording import recorded
from tests.engine.recording.recorded import Recording, Step

pytestmark = [pytest.mark.block_exact, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", params=list(SCENARIOS))
def recording(request: pytest.FixtureRequest, recordings: Path) -> Recording:
    return recorded.load(recordings / f"{request.param}.json.gz")


def test_it_is_the_engine_that_was_asked_for(recording: Recording) -> None:
    """vLLM took the settings as they are: none was raised, lowered or ignored."""
    scenario, settings = SCENARIOS[recording.scenario], recording.settings
    shape = {
        name: getattr(settings, name) for name in settings.__struct_fields__ if hasattr(scenario.shape, name)
    }
    assert len(shape) == 8
    assert scenario.shape == replace(scenario.shape, **shape)
    if scenario.host is None:
        assert settings.host_chunks == 0
        return
    offload = Offload.PROMPT if settings.offload_prompt_only else Offload.ALL
    assert scenario.host == HostShape(settings.host_chunks, settings.chunk_blocks, offload)


def test_keys_are_the_hashes_that_we_compute(recording: Recording) -> None:
    """Of tokens and salt, as the router and the emulator do."""
    block_size = recording.settings.block_size
    for batch in recording.batches:
        for asked in batch.requests:
            keys: list[bytes] = []
            tokens = asked.prompt + asked.answer
            extend(keys, tokens, block_size, len(tokens) // block_size, Identity(salt=asked.salt))
            assert [key.hex() for key in keys] == list(asked.keys)


def test_every_block_is_free_or_held(recording: Recording) -> None:
    """The free queue and the requests' blocks are all blocks but block 0; none is in both."""
    usable = set(range(1, recording.settings.num_blocks))
    for step in _steps(recording):
        held = {block for blocks in step.blocks.values() for block in blocks}
        assert len(set(step.free)) == len(step.free)
        assert not held & set(step.free)
        assert held | set(step.free) == usable
        assert set(step.free) <= set(step.free_after)
    for batch in recording.batches:
        assert set(batch.steps[-1].free_after) == usable


def test_events_tell_what_the_device_holds(recording: Recording) -> None:
    """Replayed, they give the prefix cache after every step, block by block of the same key."""
    known = Counter[str]()
    for step in _steps(recording):
        for event in step.events:
            if event.type == "cleared":
                known.clear()
            elif event.medium == "GPU":
                (known.update if event.type == "stored" else known.subtract)(event.keys)
        assert min(known.values(), default=0) >= 0
        assert +known == Counter(key for key in step.cached if key is not None)


def test_events_tell_what_the_host_tier_holds(recording: Recording) -> None:
    """Replayed, they give the host tier whenever no store is under way."""
    known: set[str] = set()
    under_way: set[int] = set()
    for step in _steps(recording):
        under_way |= {transfer.job for transfer in step.stores}
        under_way -= set(step.completed)
        for event in step.events:
            if event.medium == "CPU":
                (known.update if event.type == "stored" else known.difference_update)(event.keys)
        assert len(step.host) <= recording.settings.host_chunks
        assert known <= set(step.host)
        if not under_way:
            assert known == set(step.host)
    assert not under_way


def test_every_request_gets_its_answer(recording: Recording) -> None:
    """Also those that were preempted; only aborted ones get less."""
    for batch in recording.batches:
        answers = {asked.id: list[int]() for asked in batch.requests}
        finished = Counter[str]()
        for output in (output for step in batch.steps for output in step.outputs):
            answers[output.request] += output.tokens
            finished[output.request] += output.finished
        for asked in batch.requests:
            assert answers[asked.id] == list(asked.answer)
            if len(asked.answer) < asked.max_tokens:
                assert asked.aborts is not None
            else:
                assert finished[asked.id] == 1
        preempted = Counter(id_ for step in batch.steps for id_ in step.preempted)
        assert preempted == +Counter({asked.id: asked.num_preemptions for asked in batch.requests})


def test_steps_keep_to_the_limits(recording: Recording) -> None:
    """Token budget and number of running requests; nobody is admitted in a step that preempts."""
    settings = recording.settings
    for batch in recording.batches:
        running_before: tuple[str, ...] = ()
        for step in batch.steps:
            assert sum(piece.num_new for piece in step.pieces) <= settings.max_num_batched_tokens
            assert len(step.running) <= settings.max_num_seqs
            if step.preempted:
                assert set(step.running) <= set(running_before)
            running_before = step.running


def test_copies_name_their_chunks(recording: Recording) -> None:
    """A transfer moves whole chunks, or to the device the part of its first chunk that is missing there."""
    size = recording.settings.chunk_blocks
    for step in _steps(recording):
        for transfer in step.stores:
            assert len(transfer.blocks) == size * len(transfer.keys) == size * len(transfer.chunks)
        for transfer in step.loads:
            assert len(transfer.keys) == len(transfer.chunks)
            assert size * (len(transfer.keys) - 1) < len(transfer.blocks) <= size * len(transfer.keys)


def _steps(recording: Recording) -> Iterator[Step]:
    return (step for batch in recording.batches for step in batch.steps)
