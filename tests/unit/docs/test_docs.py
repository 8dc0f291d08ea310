"""The documentation is checked like code: links lead somewhere, examples load, pages are current."""

import ast
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from anbar.adapters.telemetry.request_log import LINES
from anbar.apps.router.reload import LIVE, RESTART
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


def test_named_tests_exist() -> None:
    """The pages on failures name tests that there are."""
    tests = [(path.name, path.read_text()) for path in (REPO / "tests").rglob("test_*.py")]
    pages = [REPO / "docs" / page for page in ("concepts/failures.md", "guides/ha.md")]
    named = [name for page in pages for name in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page.read_text())]
    assert len(named) > 20
    found = {(name, test) for name, text in tests for test in re.findall(r"def (test_\w+)\(", text)}
    assert set(named) - found == set()


def test_the_reference_is_current() -> None:
    """The generated pages are what the code says today."""
    command = [sys.executable, str(REPO / "scripts/gen_reference.py"), "--check"]
    assert subprocess.run(command, check=False, timeout=180).returncode == 0


def test_what_a_reload_applies_is_told() -> None:
    """The guide names every key that is live, and every one that needs a restart, each where it belongs."""
    page = (REPO / "docs/guides/change-configuration.md").read_text()
    live, _, restart = page.partition("**All other keys need a restart**")
    for keys, text in ((LIVE, live), (RESTART, restart)):
        assert [key for key in keys if f"`{key.removeprefix('router.')}`" not in text] == []


def test_every_line_of_the_log_is_described() -> None:
    """The kinds of lines that the router writes by name are those of the reference."""
    calls = (
        node
        for path in (REPO / "src/anbar/apps/router").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
    )
    kinds = {
        word.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr.lstrip("_") in ("line", "log")
        for word in ast.walk(call.args[0])
        if isinstance(word, ast.Constant)
    }
    assert kinds == set(LINES)


def test_the_numbers_of_the_readme_are_those_measured() -> None:
    """Ratios and rates in the README are those of the recorded benchmarks."""
    results = {
        name: json.loads((REPO / f"benchmarks/results/{name}.json").read_text())
        for name in ("main-job", "emulator-fidelity", "emulator-speed")
    }
    readme = (REPO / "README.md").read_text()
    sooner = re.findall(r"\*\*([\d.]+) × sooner\*\*", readme)
    assert sooner == [f"{ratio:.1f}" for ratio in results["main-job"]["ratios"].values()]
    to_real = re.findall(r"\| (\d\.\d\d) \| (\d\.\d\d) \|", readme)
    ratios = [f"{ratio:.2f}" for ratio in results["emulator-fidelity"]["ratios"].values()]
    assert to_real == list(zip(ratios[:3], ratios[3:], strict=True))
    (answers,) = re.findall(r"gives ([\d,]+) one-token answers a second", readme)
    by_clock = statistics.median(results["emulator-speed"]["series"][0]["seconds"])
    assert int(answers.replace(",", "")) == int(1 / by_clock) // 100 * 100
