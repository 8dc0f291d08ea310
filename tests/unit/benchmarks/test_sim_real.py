"""The scenario of the benchmark sim-real: what is asked, and what a simulation of it comes to."""

import json
import random
from pathlib import Path

from benchmarks import sim_real
from benchmarks.sim_real import Outcome, compare
from benchmarks.validation.emulated import recorded_cost

from anbar.sim.engine.engine import Tiers
from anbar.sim.engine.shape import EngineShape, HostShape
from tests.engine.engine import BLOCK
from tests.unit.calibrate.virtual_engine import VirtualEngine

CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
    "model_type": "llama",
    "tie_word_embeddings": True,
}
"""SmolLM2-135M's, as far as sizes go."""


def test_second_turns_begin_with_first_ones() -> None:
    """In the trace that is written for the simulator, a conversation's second prompt has all whole blocks of
    the first, and only prompts behind the same system prompt have any in common."""
    turns = sim_real.make_turns(random.Random(1))
    asks = sim_real.fill(turns, range(1000), random.Random(2))
    rows = [json.loads(line) for line in sim_real.as_trace(asks).splitlines()]
    firsts = {}
    for turn, row in zip(turns, rows, strict=True):
        ids = row["hash_ids"]
        assert len(ids) == row["input_length"] // BLOCK
        if not turn.num_further:
            firsts[turn.conversation] = (turn.system, ids)
        else:
            assert ids[: len(firsts[turn.conversation][1])] == firsts[turn.conversation][1]
    one, other = ({i for of, ids in firsts.values() if of == system for i in ids} for system in (0, 1))
    assert not one & other


def test_the_simulated_scenario_is_the_engine_models(tmp_path: Path) -> None:
    """`anbar simulate` on the files that the benchmark writes, and the engine model driven directly with the
    same requests: hits and preemptions are equal, times within the front's share and rounded arrivals."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    content = recorded_cost()
    turns = sim_real.make_turns(random.Random(sim_real.SEED))
    simulated = sim_real.simulated(turns, content, config)
    kv_bytes = content.engine.kv_bytes_per_token
    shape = EngineShape(
        block_size=BLOCK,
        num_blocks=sim_real.NUM_BLOCKS,
        max_num_seqs=sim_real.MAX_NUM_SEQS,
        max_num_batched_tokens=content.engine.max_num_batched_tokens,
        max_model_len=sim_real.MAX_MODEL_LEN,
        kv_bytes_per_token=kv_bytes,
    )
    host = HostShape(sim_real.HOST_BYTES // (kv_bytes * BLOCK))
    engine = VirtualEngine(shape, content.cost, Tiers(host))
    asks = sim_real.fill(turns, range(1000, 40_000), random.Random(sim_real.SEED))
    driven = sim_real.outcome_at(engine.play(asks), engine.engine.counters.num_preemptions)
    assert simulated.preemptions >= 3
    assert simulated.hit_rate > 0.3
    assert [one.text for one in compare("simulated", "driven", [driven], simulated) if not one.is_close] == []
    assert simulated.computed == driven.computed


def test_what_is_too_far_and_what_cannot_be_told() -> None:
    """A time that is 20 % off is too far; where the runs differ by more than that from each other, nothing is
    close; one preemption more is nothing."""
    real = [Outcome(0.5, 1000, 5, t, 2.0, 300.0) for t in (1.0, 1.01, 1.02)]
    found = Outcome(0.5, 1000, 6, 1.21, 2.0, 300.0)
    by_name = {one.text.partition(":")[0]: one for one in compare("x", "real", real, found)}
    assert [name for name, one in by_name.items() if not one.is_close] == ["mean TTFT, s"]
    restless = [Outcome(0.5, 1000, 5, t, 2.0, 300.0) for t in (1.0, 1.4, 1.8)]
    texts = [one.text for one in compare("x", "real", restless, found) if not one.is_close]
    assert len(texts) == 1
    assert "RESTLESS" in texts[0]
