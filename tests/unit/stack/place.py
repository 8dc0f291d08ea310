"""One `anbar up` in a process of its own, in a directory of its own: for the tests that run it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from anbar.adapters.process import proc
from tests.ports import free_ports
from tests.unit.stack.processes import fake_python, tiny_model

ANBAR = Path(__file__).with_name("roomy_anbar.py")
START_S = 120.0


class Run:
    """One `anbar up` in a process of its own."""

    def __init__(self, directory: Path, config: Path, env: dict[str, str]) -> None:
        self.output = directory / f"up-{time.monotonic_ns()}.log"
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(ANBAR), "up", "--config", str(config)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text()

    def until(self, check: Callable[[], bool], limit_s: float = START_S) -> None:
        deadline = time.monotonic() + limit_s
        while not check():
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)

    def ready(self) -> "Run":
        self.until(lambda: "curl" in self.text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.text()
        return self

    def ended(self, limit_s: float = START_S) -> int:
        self.until(lambda: self.process.poll() is not None, limit_s)
        return int(self.process.returncode)


class Place:
    """A directory with a configuration, and all that was started in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.base, *_ = free_ports(3)
        self.state_dir = directory / "state"
        self.env = {
            "ANBAR_ENGINE_PYTHON": str(fake_python(directory)),
            "CUDA_VISIBLE_DEVICES": "",
        }
        self.runs: list[Run] = []
        self.scratch_dirs: set[Path] = set()
        self.url = ""
        self.store: dict[str, str] = {}
        self.more: list[dict[str, Any]] = []
        self.launch: dict[str, Any] = {
            "model": str(tiny_model(directory)),
            "count": 2,
            "port": self.base + 1,
            "kv_cache_bytes": "16MiB",
            "served_name": "fake-model",
        }

    def up(self, **env: str) -> Run:
        config = self.directory / "anbar.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "state_dir": str(self.state_dir),
                    "engines": [
                        {"name": "a", **({"url": self.url} if self.url else {"launch": self.launch})},
                        *self.more,
                    ],
                    "cache": {"mode": "shared", "host_bytes": "16MiB", "store": self.store},
                    "router": {"port": self.base, "drain_timeout_s": 1},
                }
            )
        )
        self.runs.append(Run(self.directory, config, {**self.env, **env}))
        return self.runs[-1]

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state_dir / "state.json").read_text())
        self.scratch_dirs.add(Path(found["scratch_dir"]))
        return found

    def part(self, name: str) -> dict[str, Any] | None:
        """What the state file says of a part; None while it says nothing."""
        if not (self.state_dir / "state.json").exists():
            return None
        return next((part for part in self.state()["parts"] if part["name"] == name), None)

    def pid(self, name: str) -> int:
        """The leader of a part's process group: only what is surely one may be killed as a group."""
        part = self.part(name)
        assert part is not None
        pid = part["pid"]
        assert isinstance(pid, int), part
        assert pid > 1, part
        return pid

    def post(self, run: Run, path: str, body: bytes) -> dict[str, Any]:
        """The stack's answer with status 200: a loaded machine's router may take its engines for ill."""
        url = f"http://127.0.0.1:{self.base}{path}"
        answers: list[dict[str, Any]] = []

        def is_answered() -> bool:
            request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answers.append(json.load(answer))
            except OSError:
                return False
            return True

        run.until(is_answered)
        return answers[0]

    def processes(self) -> list[int]:
        """What runs with something of this directory in its command line, launchers aside."""
        launchers = {run.process.pid for run in self.runs}
        found = []
        for entry in proc.all_entries():
            try:
                command = Path(f"/proc/{entry.id.pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(self.directory) in command and entry.id.pid not in launchers and not entry.zombie:
                found.append(entry.id.pid)
        return found

    def assert_nothing_left(self) -> None:
        assert self.processes() == []
        assert not (self.state_dir / "state.json").exists()
        assert not any(path.exists() for path in self.scratch_dirs)
        assert sorted(path.name for path in self.state_dir.iterdir()) == ["lock", "logs"]
        for offset in range(3):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", self.base + offset))
