"""Telling weights apart."""

import json
import struct
from pathlib import Path

import pytest

from anbar.adapters.vllm.weights import PAGE_BYTES, weights_digest
from anbar.core.errors import ConfigError


def write_safetensors(path: Path, payload: bytes, name: str = "w") -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + payload)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two shards, the second large enough to be sampled."""
    write_safetensors(tmp_path / "model-1.safetensors", b"a" * 100)
    write_safetensors(tmp_path / "model-2.safetensors", bytes(1000 * PAGE_BYTES))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_copy_is_equal(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The same files in another directory, with other time stamps, are the same weights."""
    copy = tmp_path_factory.mktemp("copy")
    for path in model.glob("*.safetensors"):
        (copy / path.name).write_bytes(path.read_bytes())
    assert weights_digest(copy) == weights_digest(model)


def test_other_files_do_not_count(model: Path) -> None:
    """A README, or the configuration (which the fingerprint takes from vLLM), is not part of the weights."""
    before = weights_digest(model)
    (model / "config.json").write_text('{"changed": true}')
    (model / "README.md").write_text("text")
    assert weights_digest(model) == before


@pytest.mark.parametrize("offset", [0, 50, -1])
def test_a_changed_byte_in_a_small_file(model: Path, offset: int) -> None:
    """Small files are read whole."""
    before = weights_digest(model)
    path = model / "model-1.safetensors"
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    assert weights_digest(model) != before


def test_training_is_seen_in_a_large_file(model: Path) -> None:
    """One byte of every page changes, as it does when weights are trained."""
    before = weights_digest(model)
    data = bytearray(1000 * PAGE_BYTES)
    data[::PAGE_BYTES] = b"\x01" * 1000
    write_safetensors(model / "model-2.safetensors", bytes(data))
    assert weights_digest(model) != before


def test_a_changed_header_is_seen(model: Path) -> None:
    """The same bytes under another tensor name."""
    before = weights_digest(model)
    write_safetensors(model / "model-2.safetensors", bytes(1000 * PAGE_BYTES), name="v")
    assert weights_digest(model) != before


def test_a_missing_shard_is_seen(model: Path) -> None:
    """Fewer files are other weights."""
    before = weights_digest(model)
    (model / "model-1.safetensors").unlink()
    assert weights_digest(model) != before


def test_one_file(tmp_path: Path) -> None:
    """Weights may be one file that is named directly."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" * 10)
    first = weights_digest(path)
    path.write_bytes(b"GGUF" * 9 + b"gguf")
    assert weights_digest(path) != first


def test_no_weights(tmp_path: Path) -> None:
    """Nothing to look at: say what to do instead of sharing blindly."""
    with pytest.raises(ConfigError, match="weights_id"):
        weights_digest(tmp_path)
