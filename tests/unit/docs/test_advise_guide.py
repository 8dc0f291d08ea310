"""The guide to the calculators: every command prints what it says."""

from pathlib import Path

from tests.e2e.guide import REPO, Following, follow


def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    """All of them, letter by letter."""
    assert follow(REPO / "docs/guides/advise.md", tmp_path, Following({}, {}, 300)) == 10
