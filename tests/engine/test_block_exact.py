"""The engine model does with blocks exactly what vLLM does.

Real vLLM serves seeded batches that preempt, evict, share prefixes, load and store; the model serves the same
requests and is compared after every half of every step. Then hundreds of random engines, whose vLLM side
does everything but compute.
"""

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.engine.batches import SCENARIOS, Scenario
from tests.engine.recording import recorded
from tests.engine.replay import Replay

pytestmark = [pytest.mark.block_exact, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
NUM_RANDOM_ENGINES = 300


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_every_block_is_where_vllm_has_it(recordings: Path, scenario: Scenario) -> None:
    """Hits, evictions, preemptions, copies, queues, free blocks and events are equal in every step, counters
    in every batch, in batches that put the engine under pressure whatever the model answers."""
    totals = Replay(recorded.load(recordings / f"{scenario.name}.json.gz")).run()
    print(totals)
    assert totals.preemptions >= 2
    assert totals.evictions >= 50
    assert totals.device_hits > 0
    if scenario.host is not None:
        assert totals.host_evictions > 0
        assert totals.external_hits > 0


def test_a_difference_would_be_seen(recordings: Path) -> None:
    """The same recordings against engines that differ in one thing: each is found out."""
    recording = recorded.load(recordings / "host-pairs.json.gz")
    settings = recording.settings
    others = (
        replace(settings, num_blocks=settings.num_blocks + 1),
        replace(settings, max_num_batched_tokens=settings.max_num_batched_tokens - 1),
        replace(settings, host_chunks=settings.host_chunks + 1),
        replace(settings, offload_prompt_only=True),
        replace(settings, reserve_full_prompt=not settings.reserve_full_prompt),
    )
    for other in others:
        with pytest.raises(AssertionError, match="differ"):
            Replay(replace(recording, settings=other)).run()


def test_random_engines(engine_python: Path) -> None:
    """Random engines of all kinds, a third with a host tier and a third with a shared tier behind it (vLLM's
    tiering manager and the plugin's own code over a table), which preempt, evict, abort amid steps and have
    limits, scopes and slow stores: the model does the same in each of some 40,000 steps."""
    command = [engine_python, "-m", "tests.engine.dry", "--seeds", "0", str(NUM_RANDOM_ENGINES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    totals = json.loads(done.stdout.splitlines()[-1])
    for name, least in (("preemptions", 300), ("evictions", 3000), ("external_hits", 300), ("shared", 300)):
        assert totals[name] >= least, f"too little of {name} to show anything"
