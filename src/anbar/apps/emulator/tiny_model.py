"""A model directory that needs no download: a tiny tokenizer that an emulator and a router can both load.

Byte-level BPE with a handful of merges and a ChatML template (SmolLM2's, less its default system message,
plus tools and thinking): a Persian or Hindi character is two or three tokens, so answers really do split
characters across tokens. There are no weights.
"""

from pathlib import Path

TINY_MODEL_DIR = Path(__file__).parent / "tiny-model"
"""The model as it comes with the package; not to be written to."""


def write_tiny_model(directory: Path) -> Path:
    """Copy the tiny model to `directory` (made if need be) and return it; the same bytes every time."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in TINY_MODEL_DIR.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return directory
