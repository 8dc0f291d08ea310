"""Where each launched entry's model is; emulated ones need no more than a tokenizer, and fetch nothing."""

from pathlib import Path

import pytest

from anbar.apps.interpreter import Interpreter
from anbar.apps.stack.models import TINY_MODEL, locate_models
from anbar.config.models import AnbarConfig
from anbar.core.errors import StackError


class Notes:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, part: str, text: str, elapsed_s: float) -> None:
        self.said.append(text)

    def ready(self, part: str, elapsed_s: float) -> None:
        self.said.append(part)

    def note(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(text)


VLLM = Interpreter(Path("/x/python"), "test", "3.11", "0.32.0", True, "0.1.0", (), None)


def located(
    directory: Path, model: str, device: str, interpreter: Interpreter | None = None
) -> tuple[str, list[str]]:
    launch = {"model": model, "device": device}
    config = AnbarConfig.model_validate({"engines": [{"name": "a", "launch": launch}]})
    notes = Notes()
    environ = {"ANBAR_MODELS_DIR": str(directory / "models")}
    return locate_models(config, interpreter, environ, directory, notes)["a"], notes.said


def with_tokenizer(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def test_tokenizer_that_is_here(tmp_path: Path) -> None:
    """A directory's own, and the unpacked small model's: nothing is said, nothing written."""
    own = with_tokenizer(tmp_path / "llama")
    assert located(tmp_path, str(own), "emulated") == (str(own), [])
    small = with_tokenizer(tmp_path / "models" / "smollm2-135m-instruct")
    assert located(tmp_path, "smollm2-135m-instruct", "emulated") == (str(small), [])
    assert not (tmp_path / TINY_MODEL).exists()


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "org/model", "/nonexistent/model"])
def test_tokenizer_that_is_not_here(tmp_path: Path, model: str) -> None:
    """The emulator's own takes its place, for router and engine alike; that is said, and the way out."""
    place, said = located(tmp_path, model, "emulated")
    assert place == str(tmp_path / TINY_MODEL)
    assert (tmp_path / TINY_MODEL / "tokenizer.json").is_file()
    assert len(said) == 1
    assert f"no tokenizer of {model} is here" in said[0]
    assert ("`make model`" if model == "smollm2-135m-instruct" else "launch.model") in said[0]


def test_real_engines(tmp_path: Path) -> None:
    """A directory is taken, a hub name left to vLLM, a directory that is not there refused."""
    assert located(tmp_path, str(tmp_path), "cpu", VLLM) == (str(tmp_path), [])
    assert located(tmp_path, "org/model", "cpu", VLLM) == ("org/model", [])
    with pytest.raises(StackError, match="/nonexistent/model does not exist"):
        located(tmp_path, "/nonexistent/model", "cpu", VLLM)
