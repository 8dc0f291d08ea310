"""The tiny model, written once."""

from pathlib import Path

import pytest

from anbar.apps.emulator.text import ModelText, load_text
from anbar.apps.emulator.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("emulator") / "tiny")


@pytest.fixture(scope="session")
def text(model_dir: Path) -> ModelText:
    return load_text(model_dir, 512)
