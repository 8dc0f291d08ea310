"""The KV events that the installed vLLM encodes, beside the golden payloads that the router is tested
with."""

import json
import subprocess
from pathlib import Path

import pytest

from tests import golden

pytestmark = pytest.mark.contract


def test_payloads_are_still_what_vllm_encodes(engine_python: Path, tmp_path: Path) -> None:
    """Byte for byte. When this fails after an upgrade: look at what changed, teach `kv_wire` to read it, and
    record it as another release with `tests/golden/make_kv_events.py`."""
    script, output = Path(__file__).with_name("kv_payloads.py"), tmp_path / "payloads.json"
    done = subprocess.run(
        [engine_python, script, output], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    recorded = json.loads((golden.FOLDER / "kv_events.json").read_text())["0.32"]
    assert json.loads(output.read_text()) == recorded
