"""The model that comes with the package: complete, and copied as it is."""

from pathlib import Path

from anbar.apps.emulator.text import load_text
from anbar.apps.emulator.tiny_model import TINY_MODEL_DIR, write_tiny_model

FILES = ["config.json", "tokenizer.json", "tokenizer_config.json"]


def test_as_it_comes() -> None:
    """It serves where it is; a Persian character is more than one token, and comes back whole."""
    text = load_text(TINY_MODEL_DIR, 512)
    tokens = text.words(" the انبار")
    assert len(tokens) == 1 + 1 + 2 * len("انبار")
    assert text.decode(tokens) == " the انبار"
    assert text.pieces([text.end_of_turn]) == ["<|im_end|>"]


def test_a_copy(tmp_path: Path) -> None:
    """The same bytes, into a directory that need not be there."""
    copy = write_tiny_model(tmp_path / "a" / "b")
    assert sorted(file.name for file in copy.iterdir()) == FILES
    assert all((copy / name).read_bytes() == (TINY_MODEL_DIR / name).read_bytes() for name in FILES)
