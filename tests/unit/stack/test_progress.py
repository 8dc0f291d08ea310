"""How far a starting engine is, from its log."""

from pathlib import Path

import pytest

from anbar.adapters.vllm.launch import FIRST_PHASE, StartProgress, phase_of, root_cause

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


FAILED = """\
(EngineCore pid=7) ERROR 11-29 21:05:46 [core.py:1054] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-29 21:05:46 [core.py:1054] NotADirectoryError: [Errno 20] Not a directory: '/x'
(EngineCore pid=7) Process EngineCore:
(EngineCore pid=7) NotADirectoryError: [Errno 20] Not a directory: '/x'
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed: {}
(APIServer pid=1) OSError: something at the end
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (FAILED, "NotADirectoryError: [Errno 20] Not a directory: '/x'"),
        ("torch.OutOfMemoryError: CUDA out of memory\n", "torch.OutOfMemoryError: CUDA out of memory"),
        ("INFO [x.py:1] no ValueError: here\n", None),
    ],
)
def test_root_cause(tmp_path: Path, text: str, cause: str | None) -> None:
    """The error of the process that failed first, not of those above it."""
    log = tmp_path / "log"
    log.write_text(text)
    assert root_cause(log) == cause
    assert root_cause(tmp_path / "none") is None
