"""The guide to the simulator: every command prints what it says."""

from pathlib import Path

import pytest

from tests.e2e.guide import REPO, Following, follow


@pytest.mark.timeout(900)
def test_its_commands_print_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, letter by letter, on a terminal of 110 columns."""
    monkeypatch.setenv("COLUMNS", "110")
    assert follow(REPO / "docs/guides/simulate.md", tmp_path, Following({}, {}, 800)) == 5
    assert (tmp_path / "preemption.html").stat().st_size > 10_000
