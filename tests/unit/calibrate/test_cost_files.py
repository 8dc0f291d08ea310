"""Cost files on disk: whole or not at all, and readable errors."""

from pathlib import Path

import pytest

from anbar.apps.calibrate.files import check_writable, read_cost_file, write_cost_file
from anbar.core.cost import EngineCost
from anbar.core.cost_file import CostFile, EngineType, Measured
from anbar.core.errors import ConfigError


def _content(front_s: float) -> CostFile:
    engine = EngineType("m", "cpu", "float32", "0.32.0", 32, 46080, 2048)
    return CostFile(engine, Measured("2026-01-02T03:04:05Z", "test", 1.0), EngineCost(front_s=front_s))


def test_write_and_read(tmp_path: Path) -> None:
    """Written into a new directory, read back, overwritten; nothing else is left there."""
    path = tmp_path / "costs" / "m.json"
    write_cost_file(path, _content(1.0))
    write_cost_file(path, _content(2.0))
    assert read_cost_file(path) == _content(2.0)
    assert [file.name for file in path.parent.iterdir()] == ["m.json"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A directory in the way, or a file where a directory should be: said, and nothing is left behind."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "taken", tmp_path / "file" / "m.json"):
        with pytest.raises(ConfigError, match=f"{path}: cannot be written"):
            write_cost_file(path, _content(1.0))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "taken"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """No file, no text, another kind of file, an endless one: each is said with its name."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "long").write_bytes(b" " * (1024**2 + 1))
    for name in ("nothing", "bytes", "text", "long"):
        with pytest.raises(ConfigError, match=f"{tmp_path / name}: "):
            read_cost_file(tmp_path / name)


def test_whether_it_could_be_written(tmp_path: Path) -> None:
    """Asked beforehand: a place that is fine stays as it is, without directories that it would need; others
    are refused in the same words."""
    check_writable(tmp_path / "m.json")
    check_writable(tmp_path / "costs" / "cpu" / "m.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "m.json"):
        with pytest.raises(ConfigError, match=f"{path}: cannot be written"):
            check_writable(path)
