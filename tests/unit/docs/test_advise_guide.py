"""The guide to verdict and calculators, and the skill: every command prints what it says."""

from pathlib import Path

import pytest

from tests.e2e.guide import REPO, Following, follow


def test_its_commands_print_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, letter by letter, on a terminal of 110 columns."""
    monkeypatch.setenv("COLUMNS", "110")
    assert follow(REPO / "docs/guides/advise.md", tmp_path, Following({}, {}, 300)) == 16


def test_the_skills_examples_print_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a log to a verdict, as an engineer or an agent follows it."""
    monkeypatch.setenv("COLUMNS", "110")
    assert follow(REPO / "skills/vllm-stack-decider/SKILL.md", tmp_path, Following({}, {}, 300)) == 6
