"""`anbar calibrate` from its options to its file."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anbar.apps.calibrate.files import read_cost_file
from anbar.apps.calibrate.given import Given, dtype_of, kv_bytes_of, parse_given
from anbar.apps.calibrate.live import device_of, read_key
from anbar.apps.calibrate.target import EngineFacts
from anbar.cli.main import app
from anbar.core.errors import ConfigError, MeasureError
from tests.unit.calibrate.scripted_vllm import MODELS, ScriptedVllm, scripted_vllm

CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "dtype": "bfloat16",
}


@pytest.fixture
def engine() -> Iterator[ScriptedVllm]:
    """A scripted engine in a thread of its own: the command has its own event loop."""
    loop, ready, running = asyncio.new_event_loop(), threading.Event(), list[ScriptedVllm]()

    async def serve() -> None:
        async with scripted_vllm() as found:
            running.append(found)
            ready.set()
            await asyncio.Event().wait()

    task = loop.create_task(serve())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    ready.wait()
    yield running[0]
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    loop.close()


def test_the_whole_command(engine: ScriptedVllm, tmp_path: Path) -> None:
    """An engine is measured, the table is printed, the file is written, and a second run replaces it."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    engine.pages["/v1/models"] = (200, json.dumps(MODELS).replace("/models/m", str(tmp_path)).encode())
    engine.bursts = None
    out = tmp_path / "costs" / "m.json"
    out.parent.mkdir()
    out.write_text("an older file")
    arguments = ["calibrate", engine.url, "--quick", "--out", str(out), "--given", "device=cpu"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert f"written: {out}" in result.output
    assert "step of 1 tokens, s" in result.output
    assert "prompts" in result.output
    content = read_cost_file(out)
    assert content.engine.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert (content.engine.dtype, content.engine.device) == ("bfloat16", "cpu")
    assert content.cost.tokens.points
    assert [file.name for file in out.parent.iterdir()] == ["m.json"]


def test_nothing_is_written_when_it_fails(engine: ScriptedVllm, tmp_path: Path) -> None:
    """The engine ends its answers early: the old file stays as it is."""
    out = tmp_path / "m.json"
    out.write_text("an older file")
    arguments = ["calibrate", engine.url, "--out", str(out), "--given", "device=cpu"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, MeasureError)
    assert out.read_text() == "an older file"
    assert [file.name for file in tmp_path.iterdir()] == ["m.json"]


def test_a_place_that_cannot_be_written_is_said_first(engine: ScriptedVllm, tmp_path: Path) -> None:
    """Not after minutes of measuring: the engine is not even asked."""
    result = CliRunner().invoke(app, ["calibrate", engine.url, "--out", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert engine.heads == []


def test_a_malformed_address_is_said_first() -> None:
    """Before anything is asked about an engine that cannot be meant."""
    result = CliRunner().invoke(app, ["calibrate", "nonsense"])
    assert isinstance(result.exception, ConfigError)
    assert "'nonsense'" in str(result.exception)
    assert "--given" not in str(result.exception)


def test_given() -> None:
    """What the engine does not tell is checked key by key."""
    assert parse_given([]) == Given()
    assert parse_given(["device=NVIDIA H200", "kv_bytes_per_token=46080"]) == Given("NVIDIA H200", "", 46080)
    for wrong in ("device", "colour=red", "kv_bytes_per_token=0", "max_num_batched_tokens=2k", "=3"):
        with pytest.raises(ConfigError, match="--given"):
            parse_given([wrong])


def _facts(root: Path) -> EngineFacts:
    return EngineFacts("http://e", "m", str(root), "0.32.0", 4096, 32, 700, has_offload=True)


def test_kv_bytes(tmp_path: Path) -> None:
    """Said on the command line, else as copied to the host, else from the model's config.json and dtype."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    facts = _facts(tmp_path)
    assert kv_bytes_of(facts, Given(kv_bytes_per_token=7), copied=5) == 7
    assert kv_bytes_of(facts, Given(), copied=5) == 5
    assert kv_bytes_of(facts, Given(), copied=0) == 23040
    assert kv_bytes_of(facts, Given(dtype="float32"), copied=0) == 46080
    assert dtype_of(facts, Given()) == "bfloat16"
    for content, why in (
        ("[]", "cannot be read on this machine"),
        ("{}", "cannot be read on this machine"),
        ("nonsense", "cannot be read on this machine"),
        ('{"model_type": "llama"}', "names no dtype"),
    ):
        (tmp_path / "config.json").write_text(content)
        assert dtype_of(facts, Given()) == "unknown"
        with pytest.raises(MeasureError, match=rf"config.json {why}; say them: --given kv_bytes_per_token=N"):
            kv_bytes_of(facts, Given(), copied=0)


def test_device() -> None:
    """Only where there is no choice is it told from the machine."""
    no_gpu, gpu = {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "0"}
    assert device_of("http://127.0.0.1:8000", no_gpu) == "cpu"
    with pytest.raises(ConfigError, match="device=NAME"):
        device_of("http://localhost:8000", gpu)
    with pytest.raises(ConfigError, match="another machine"):
        device_of("http://gpu-7:8000", no_gpu)


def test_key() -> None:
    """The key comes from a variable, and is never shown."""
    assert read_key(None, {}) is None
    assert read_key("KEY", {"KEY": " abc\n"}) == "abc"
    for value in ("", "a b", "a\nb", "ü"):
        with pytest.raises(ConfigError, match="--api-key-env KEY") as caught:
            read_key("KEY", {"KEY": value})
        assert not value or value not in str(caught.value)
