"""The processes of router-overhead: engines, the bare proxy, our routers, the others."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.ports import free_port, free_ports

from anbar.apps.model import models_dir
from anbar.config.models import DEFAULT_MODEL
from benchmarks import peers
from benchmarks.bare_engine import MODEL

START_TIMEOUT_S = 180.0


@dataclass
class Target:
    """A row: who is asked, whether with fresh text, and whose processor time counts."""

    name: str
    port: int
    fresh: bool = False
    process: psutil.Process | None = None

    def cpu_s(self) -> float:
        if self.process is None:
            return 0.0
        total = 0.0
        for one in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:2])
        return total


class Stage:
    """The processes of a run."""

    def __init__(self, scratch: Path, stack: contextlib.ExitStack) -> None:
        self.scratch = scratch
        self._stack = stack
        self.model = models_dir(os.environ) / DEFAULT_MODEL
        self.ports = free_ports(2)
        self.engines = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.notes: list[str] = []

    def run(self, argv: Sequence[str]) -> psutil.Process:
        log = (self.scratch / f"{len(list(self.scratch.iterdir()))}.log").open("wb")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        if argv[0] == sys.executable:
            environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, env=environ, cwd=self.scratch, start_new_session=True
        )
        self._stack.callback(_end, process)
        return psutil.Process(process.pid)

    def ours(self, policy: str) -> tuple[int, psutil.Process]:
        port = free_port()
        engines = [{"name": f"e{number}", "url": url} for number, url in enumerate(self.engines)]
        config = {"state_dir": "state", "engines": engines, "router": {"port": port, "policy": policy}}
        path = self.scratch / f"{policy}.yaml"
        path.write_text(json.dumps(config))
        return port, self.run([sys.executable, "-m", "anbar.cli.main", "router", "--config", str(path)])

    def targets(self, with_peers: bool) -> list[Target]:
        """Start everything; those that do not come up are left out, and noted."""
        ours = [sys.executable, "-m", "benchmarks.bare_engine", "--model", str(self.model)]
        self.run([*ours, *map(str, self.ports)])
        answering(Target("engines", self.ports[0]), START_TIMEOUT_S)
        floor = free_port()
        made = [
            Target("no router", self.ports[0]),
            Target(
                "bare proxy",
                floor,
                process=self.run(
                    [sys.executable, "-m", "benchmarks.bare_proxy", *map(str, (floor, *self.ports))]
                ),
            ),
        ]
        port, process = self.ours("least_loaded")
        made.append(Target("anbar, no tokens", port, process=process))
        port, process = self.ours("predicted_ttft")
        made += [
            Target("anbar, cached", port, process=process),
            Target("anbar, fresh", port, fresh=True, process=process),
        ]
        for peer in peers.PEERS if with_peers else ():
            if not peer.is_installed:
                self.notes.append(
                    f"{peer.name} is absent: not installed (python -m benchmarks.peers install)"
                )
                continue
            port = free_port()
            start = peers.Start(str(peer.python), port, free_port(), self.engines, self.scratch)
            made.append(Target(peer.name, port, process=self.run(peer.start(start))))
        return [target for target in made if self._came_up(target)]

    def _came_up(self, target: Target) -> bool:
        try:
            answering(target, START_TIMEOUT_S)
        except TimeoutError as error:
            self.notes.append(f"{target.name} is absent: {error}")
            return False
        return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def call(port: int, path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return bytes(answer.read())


def send_all(port: int, requests: Sequence[bytes]) -> None:
    """One after the other, whatever comes back."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for request in requests:
        body = request.partition(b"\r\n\r\n")[2]
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        connection.getresponse().read()
    connection.close()


def answering(target: Target, timeout_s: float) -> None:
    """Until it serves a chat. Raises TimeoutError."""
    chat = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Is anybody there?"}]}
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            call(target.port, "/v1/chat/completions", chat)
        except OSError as error:
            if time.monotonic() > end_s:
                raise TimeoutError(f"no answer within {timeout_s:g} s ({error})") from error
            time.sleep(0.25)
        else:
            return
