"""Options that several commands share."""

import shlex
from pathlib import Path

import pytest

from anbar.cli.options import command_line


def test_a_command_that_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The options come back from a shell as they were given."""
    monkeypatch.setattr("sys.argv", ["/x/anbar/cli/main.py"])
    assert command_line("down", None, []) == "anbar down"
    settings = ["state_dir=/my state", "router.port=1"]
    line = command_line("config show", Path("my fleet.yaml"), settings, "--emulated")
    assert shlex.split(line) == [
        *("anbar", "config", "show", "--config", "my fleet.yaml"),
        *("--set", "state_dir=/my state", "--set", "router.port=1", "--emulated"),
    ]


def test_the_program_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`anbar` is what a shell finds; where that is another one, or none, the program is named by its path."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "anbar").touch(0o755)
    called = str(tmp_path / "one" / "anbar")
    monkeypatch.setattr("sys.argv", [called])
    monkeypatch.setenv("PATH", str(tmp_path / "one"))
    assert command_line("down", None, []) == "anbar down"
    for path in (tmp_path / "other", tmp_path / "none"):
        monkeypatch.setenv("PATH", str(path))
        assert command_line("down", None, []) == f"{called} down"
