"""The guide to split prefill from decode, followed to the letter in an empty directory."""

from pathlib import Path

import pytest

from tests.e2e.guide import REPO, Following, follow
from tests.ports import free_ports

GUIDE = REPO / "docs/guides/split-prefill.md"
LIMIT_S = 400


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_guide(tmp_path: Path) -> None:
    """Every block runs without an error and prints what the guide says, at other ports; what a reader's eyes
    would wait for, the engines' events taken in, is waited for."""
    router, prefill, decode, _ = free_ports(4)
    settle = f"{REPO}/.venv/bin/python {REPO}/tests/e2e/settle.py http://127.0.0.1:{router}"
    asked = ("ask first 'And why?'", "ask second 'And where?'")
    patience = {"timeout 120": "timeout 300", **{line: f"{settle}\n{line}" for line in asked}}
    renamed = {"8000": str(router), "8100": str(prefill), "8200": str(decode)}
    assert follow(GUIDE, tmp_path, Following(renamed, patience, LIMIT_S)) == 3
