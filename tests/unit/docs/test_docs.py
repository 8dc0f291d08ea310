"""The documentation is checked like code: links lead somewhere, examples load, pages are current."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from anbar.config.load import load

REPO = Path(__file__).resolve().parents[3]
PAGES = [REPO / name for name in ("README.md", "CHANGELOG.md")] + sorted((REPO / "docs").rglob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links of a page name files that exist."""
    links = re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_examples_of_configurations_load(tmp_path: Path) -> None:
    """Every YAML example with engines is a valid anbar.yaml."""
    examples = [text for page in PAGES for text in blocks(page, "yaml") if "engines:" in text]
    assert len(examples) >= 3
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        load(path, environ={})


def test_the_reference_is_current() -> None:
    """The generated pages are what the code says today."""
    command = [sys.executable, str(REPO / "scripts/gen_reference.py"), "--check"]
    assert subprocess.run(command, check=False, timeout=180).returncode == 0


def test_the_numbers_of_the_readme_are_those_measured() -> None:
    """Ratios in the README are those of the recorded benchmark."""
    ratios = json.loads((REPO / "benchmarks/results/main-job.json").read_text())["ratios"].values()
    written = re.findall(r"\*\*([\d.]+) × sooner\*\*", (REPO / "README.md").read_text())
    assert written == [f"{ratio:.1f}" for ratio in ratios]
