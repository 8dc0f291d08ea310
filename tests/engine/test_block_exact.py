"""The engine model does with blocks exactly what vLLM does.

Real vLLM serves seeded batches that preempt, evict, share prefixes, load and store; the model serves the same
requests and is compared after every half of every step. `ANBAR_RECORDINGS` names a directory with recordings
that were made before (`python -m tests.engine.recording --out DIRECTORY`); without it they are made now.
"""

import os
import subprocess
from pathlib import Path

import pytest

from anbar.sim.engine.shape import HostShape, Offload
from tests.engine.batches import SCENARIOS, Scenario
from tests.engine.recording import recorded
from tests.engine.replay import Replay

pytestmark = pytest.mark.block_exact

ROOT = Path(__file__).parents[2]
RECORDING_TIMEOUT_S = 600.0


@pytest.fixture(scope="module")
def recordings(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a recording of each scenario."""
    if given := os.environ.get("ANBAR_RECORDINGS"):
        return Path(given)
    made = tmp_path_factory.mktemp("recordings")
    command = [engine_python, "-m", "tests.engine.recording", "--out", made]
    subprocess.run(command, check=True, cwd=ROOT, timeout=RECORDING_TIMEOUT_S)
    return made


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_every_block_is_where_vllm_has_it(recordings: Path, scenario: Scenario) -> None:
    """Hits, evictions, preemptions, copies, queues, free blocks and events are equal in every step, in
    batches that put the engine under pressure."""
    totals = Replay(recorded.load(recordings / f"{scenario.name}.json.gz")).run()
    print(totals)
    assert totals.preemptions >= 2
    assert totals.evictions >= 50
    assert totals.device_hits > 0
    if scenario.host is not None:
        assert totals.external_hits > 0
        assert totals.host_evictions > 0


def test_a_difference_would_be_seen(recordings: Path) -> None:
    """The same recordings against engines that differ in one thing: each is found out."""
    recording = recorded.load(recordings / "host-pairs.json.gz")
    settings = recording.settings
    host = HostShape(settings.host_chunks, settings.chunk_blocks, Offload.ALL)
    others = (
        _but(recording, num_blocks=settings.num_blocks + 1),
        _but(recording, max_num_batched_tokens=settings.max_num_batched_tokens - 1),
        _but(recording, host_chunks=host.num_chunks + 1),
        _but(recording, offload_prompt_only=True),
        _but(recording, reserve_full_prompt=not settings.reserve_full_prompt),
    )
    for other in others:
        with pytest.raises(AssertionError, match="differ"):
            Replay(other).run()


def _but(recording: recorded.Recording, **changes: int | bool) -> recorded.Recording:
    settings = {name: getattr(recording.settings, name) for name in recorded.Settings.__struct_fields__}
    return recorded.Recording(
        recording.scenario,
        recording.vllm,
        recorded.Settings(**settings | changes),
        recording.batches,
    )
