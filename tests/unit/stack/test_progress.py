"""How far a starting engine is, from its log."""

from pathlib import Path

import pytest

from anbar.adapters.vllm.launch import FIRST_PHASE, StartProgress, phase_of

LINE = "(EngineCore pid=1) INFO 11-29 21:05:46 [default_loader.py:501] Loading weights took 0.89 seconds"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (LINE, "weights are loaded"),
        ("INFO [model.py:733] Resolved architecture: LlamaForCausalLM", "reading the model's configuration"),
        ("[kv_cache_utils.py:2327] CPU KV cache size: 23,296 tokens", "allocating the KV cache"),
        ("INFO:     Application startup complete.", "answering"),
        ("anything else", None),
    ],
)
def test_phases(line: str, phase: str | None) -> None:
    """Lines of vLLM 0.32."""
    assert phase_of(line) == phase


def test_growing_log(tmp_path: Path) -> None:
    """Half lines wait for their end; a rotated log begins anew; a missing one changes nothing."""
    log = tmp_path / "log"
    progress = StartProgress(log)
    assert progress.phase() == FIRST_PHASE
    log.write_text(LINE[:-30])
    assert progress.phase() == FIRST_PHASE
    log.write_text(LINE + "\nnoise\n")
    assert progress.phase() == "weights are loaded"
    log.write_text("Application startup complete\n")
    assert progress.phase() == "answering"
