"""The guide «why did my request go there», followed to the letter in an empty directory."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.guide import matches, outputs, read_blocks, shell_script
from tests.ports import free_ports

REPO = Path(__file__).resolve().parents[2]
GUIDE = REPO / "docs/guides/explain.md"
LIMIT_S = 400


@pytest.mark.timeout(LIMIT_S + 60)
def test_the_guide(tmp_path: Path) -> None:
    """Every block runs without an error and prints what the guide says, at other ports; what a reader's eyes
    would wait for, the engines' events taken in, is waited for."""
    blocks = read_blocks(GUIDE)
    ports = free_ports(3)
    renamed = {"8000": str(ports[0]), "8100": str(ports[1])}
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANBAR_")}
    env["PATH"] = f"{REPO / '.venv/bin'}:{env['PATH']}"
    settle = f"{REPO}/.venv/bin/python {REPO}/tests/e2e/settle.py http://127.0.0.1:{ports[0]}"
    asked = ("ask first 'And why?'", "ask second 'And then?'")
    patience = {"timeout 120": "timeout 300", **{line: f"{settle}\n{line}" for line in asked}}
    script = f"set -eo pipefail\n{shell_script(blocks, renamed, patience)}"
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            _end(process.pid)
            process.wait()
    text = (tmp_path / "output").read_text()
    printed = outputs(text)
    assert status == 0, text
    assert len(printed) == len(blocks) == 6
    wrong = [
        (block.expected, printed[number])
        for number, block in enumerate(blocks)
        if not matches(block, printed[number], renamed)
    ]
    assert wrong == []


def _end(session: int) -> None:
    """End what a script that was cut short has left running: the launcher takes its engines with it."""
    try:
        os.killpg(session, signal.SIGTERM)
    except ProcessLookupError:
        return
