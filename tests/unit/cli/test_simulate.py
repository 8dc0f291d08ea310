"""`anbar simulate`: its forms, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anbar.cli.main import app

SCENARIO = """
workload: {duration_s: 2, streams: [{rate: 3, shared_tokens: 200, answer_tokens: 10}]}
fleet: {kv_tokens: 4000}
cache: {modes: [none]}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    """A file with a small one."""
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    return str(path)


def test_list_names_the_scenarios_of_the_package() -> None:
    """A line each, with what it is about."""
    output = CliRunner().invoke(app, ["simulate", "--list"]).output
    assert "\npreemption       long answers and little HBM" in output
    assert len(output.splitlines()) == 11


def test_show_prints_a_scenario_to_begin_from() -> None:
    """As it is in the package."""
    output = CliRunner().invoke(app, ["simulate", "fixed-prompt", "--show"]).output
    assert output.startswith("about: one prompt of 14,808 tokens")


def test_forms(scenario: str, tmp_path: Path) -> None:
    """JSON, CSV and a page; the seed of the command line wins."""
    page = tmp_path / "page.html"
    found = CliRunner().invoke(app, ["simulate", scenario, "--json", "--seed", "7", "--html", str(page)])
    assert json.loads(found.output)["seed"] == 7
    assert page.read_text().startswith("<!doctype html>")
    assert (
        CliRunner().invoke(app, ["simulate", scenario, "--csv"]).output.startswith("scenario,mode,kv_tokens")
    )
    assert "first token p50, s" in CliRunner().invoke(app, ["simulate", scenario]).output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["simulate"], "which scenario? A file, or one of chat, "),
        (["simulate", "chat", "--json", "--csv"], "--json and --csv; allowed: one of them"),
        (["simulate", "nix"], "cannot be read"),
    ],
)
def test_what_is_refused(arguments: list[str], text: str) -> None:
    """In a sentence."""
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code != 0
    assert text in str(found.exception)


def test_a_page_that_cannot_be_written(scenario: str, tmp_path: Path) -> None:
    """The path is named."""
    found = CliRunner().invoke(app, ["simulate", scenario, "--html", str(tmp_path / "no" / "page.html")])
    assert "cannot be written: No such file" in str(found.exception)
