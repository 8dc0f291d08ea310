"""The router's part of vLLM's NIXL handshake against vLLM's own scheduler code, without engines."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from anbar.apps.emulator.nixl import Nixl, takes
from anbar.apps.router.split_bodies import REMOTE_DECODE, read_answer

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def seen(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vLLM makes of a prompt of 40 tokens in three blocks."""
    output = tmp_path_factory.mktemp("handshake") / "seen.json"
    script = Path(__file__).with_name("nixl_handshake.py")
    command = [engine_python, script, output, REMOTE_DECODE.decode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_the_prefill_engine_computes_and_keeps(seen: dict[str, Any]) -> None:
    """It fetches nothing, and its blocks outlive the request."""
    assert (seen["prefill_loads"], seen["prefill_keeps_blocks"]) == (0, True)


def test_what_it_answers_is_handed_on(seen: dict[str, Any]) -> None:
    """The router finds the place of the blocks in such an answer, and passes it on as it is."""
    answer = read_answer(json.dumps({"choices": [], "kv_transfer_params": seen["answered"]}).encode())
    assert answer.where == seen["answered"]


def test_the_decode_engine_loads_the_prompt(seen: dict[str, Any]) -> None:
    """All of it, or what it has not got itself."""
    assert seen["decode_loads"] == [40, True]
    assert seen["decode_loads_besides"] == [24, True]


def test_the_emulator_says_the_same(seen: dict[str, Any]) -> None:
    """Field by field, but for what only a real engine has; and it takes what a real one says."""
    own = {"remote_block_ids", "remote_engine_id", "remote_request_id"}
    place = dict(Nixl().place("cmpl-r", 40, 0, 16))
    assert place.pop("remote_prefill_cached_tokens") == 0  # the engine's, not the connector's
    assert list(place) == list(seen["answered"])
    assert {k: v for k, v in place.items() if k not in own} == {
        k: v for k, v in seen["answered"].items() if k not in own
    }
    assert takes(seen["answered"])
