"""The guide «develop against a fleet without a GPU», followed to the letter in an empty directory."""

from pathlib import Path

import pytest

from tests.e2e.guide import REPO, Following, follow, matches, read_blocks
from tests.ports import free_ports

GUIDE = REPO / "docs/guides/develop-without-gpu.md"
LIMIT_S = 600
"""Some 50 s on two cores that nobody else uses; half of it are the starts of eight engines."""
SETTLE = f"{REPO}/.venv/bin/python {REPO}/tests/e2e/settle.py"


@pytest.mark.timeout(LIMIT_S + 30)
def test_the_guide(tmp_path: Path) -> None:
    """Every shell and Python block runs without an error and prints what the guide says, in their order. The
    guide's ports are swapped for free ones, so that a stack that runs here is no obstacle; and it waits for
    what a reader's eyes would wait for, and longer, where the guide waits for a moment."""
    ports = free_ports(9)
    renamed = {"8000": str(ports[0]), **{str(8100 + index): str(ports[1 + index]) for index in range(8)}}
    patience = {
        "sleep 0.3": f"{SETTLE} http://127.0.0.1:{ports[0]}",
        "_timeout_s: 3": "_timeout_s: 6",
        "timeout 60": "timeout 200",
    }
    assert follow(GUIDE, tmp_path, Following(renamed, patience, LIMIT_S)) > 10


@pytest.mark.parametrize(
    ("expected", "printed", "is_same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a \n", True),
        ("a\n", "b\n", False),
        ("a … c\n", "a b c\n", True),
        ("a\n…\nc\n", "a\nx\ny\nc\n", True),
        ("a\n…\nc\n", "a\nc\n", True),
        ("a\n", "a\nb\n", False),
        ("1.…\n", "15\n", False),
    ],
)
def test_what_counts_as_printed(tmp_path: Path, expected: str, printed: str, is_same: bool) -> None:
    """The check itself can fail."""
    page = tmp_path / "page.md"
    page.write_text(f"Some prose.\n\n```sh\ntrue\n```\n\n```text\n{expected}```\n")
    (block,) = read_blocks(page)
    assert matches(block, printed, {}) is is_same
