"""A directory in which a test runs `anbar up`."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from anbar.adapters.process.cleanup import clean_stale
from anbar.adapters.process.state import read_state
from tests.unit.stack.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for run in made.runs:
        run.process.terminate()
        try:
            run.process.wait(60)
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()
    state = read_state(made.state_dir / "state.json")
    if state is not None:
        clean_stale(state)
    assert made.processes() == []
