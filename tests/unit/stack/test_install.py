"""scripts/install.py: what is there already is not installed again. A stand-in for the environment's python
writes down what it was asked, so nothing is fetched."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "install.py"
PYTHON = """#!/bin/sh
echo "$*" >> "{log}"
for word; do case "$word" in *.share-*) if grep -q broken "$word"; then exit 1; fi ;; esac; done
"""


class Environment:
    """A virtual environment as far as the script looks at it."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "asked.log"
        self.venv = directory / "venv"
        self.wanted = directory / "wanted.txt"
        python = self.venv / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON.format(log=self.log))
        python.chmod(0o755)

    def install(self, *lines: str) -> subprocess.CompletedProcess[str]:
        self.wanted.write_text("\n".join(lines) + "\n")
        self.log.write_text("")
        command = [sys.executable, str(SCRIPT), str(self.venv), str(self.wanted)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def asked(self) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if "pip install" in line]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path)


def test_installs_once(environment: Environment) -> None:
    """The first call installs the list and anbar itself; the second does nothing and says nothing."""
    first = environment.install("one==1", "two==2  # why", "", "# a comment")
    assert first.returncode == 0, first.stderr
    assert "venv: 2 packages installed" in first.stdout
    assert sum("-r" in line for line in environment.asked()) >= 1
    assert "--no-deps --no-build-isolation -e" in environment.asked()[-1]
    second = environment.install("one==1", "two==2  # why", "", "# a comment")
    assert (second.returncode, second.stdout, environment.asked()) == (0, "", [])


def test_a_change_installs_again(environment: Environment) -> None:
    """Another pin."""
    environment.install("one==1")
    assert environment.install("one==2").returncode == 0
    assert environment.asked()


def test_failure_is_not_taken_for_done(environment: Environment) -> None:
    """pip fails: status 1 and a word; the next call tries again."""
    failed = environment.install("broken==1", "one==1")
    assert failed.returncode == 1
    assert "pip failed" in failed.stderr
    assert environment.install("one==1").returncode == 0
    assert environment.asked()


def test_progress_counts_what_was_asked_for(tmp_path: Path) -> None:
    """pip itself and packages of before do not count; names are compared as pip compares them."""
    progress = runpy.run_path(str(SCRIPT))["_progress"]
    names = {"one-package", "two"}
    (tmp_path / "pip-25.0.dist-info").mkdir()
    assert progress(tmp_path, names) == "fetching 2 packages"
    (tmp_path / "One_Package-1.0.dist-info").mkdir()
    assert progress(tmp_path, names) == "1 of 2 packages installed"


def test_only_pins(environment: Environment) -> None:
    """A requirement that is not pinned is refused before anything is fetched."""
    done = environment.install("one>=1")
    assert done.returncode == 1
    assert "not pinned: ['one>=1']" in done.stderr
    assert environment.asked() == []
