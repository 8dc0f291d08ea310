"""Pages that answer questions: each answer is what its command prints."""

from pathlib import Path

import pytest

from tests.e2e.guide import REPO, Following, follow


@pytest.mark.parametrize(
    ("page", "num_commands"),
    [
        ("layers", 1),
        ("connector-api", 2),
        ("when-offload-pays", 4),
        ("ha-of-the-shared-tier", 5),
        ("spinning-disks", 4),
    ],
)
def test_its_commands_print_what_it_says(
    page: str, num_commands: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, letter by letter, on a terminal of 110 columns."""
    monkeypatch.setenv("COLUMNS", "110")
    assert follow(REPO / f"docs/concepts/{page}.md", tmp_path, Following({}, {}, 300)) == num_commands
