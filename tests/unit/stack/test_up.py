"""`anbar up` as a user runs it, with fake engines behind a fake interpreter: the whole life of a stack."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from anbar.adapters.process import proc
from tests.unit.stack.place import Place
from tests.unit.stack.processes import CHILD


def test_life_of_a_stack(place: Place) -> None:
    """Start, the printed curl's endpoint answers, the printed commands mean this stack, the state file names
    the parts, Ctrl-C leaves nothing."""
    run = place.up().ready()
    text = run.text()
    assert "a-0: ready after" in text
    assert f"curl http://127.0.0.1:{place.base}/v1/chat/completions" in text
    config = place.directory / "anbar.yaml"
    assert f"{config} (anbar config show --config {config})" in text
    assert f"`anbar down --config {config}`" in text
    found = re.search(r"-d '(.*)'", text)
    assert found is not None
    assert place.post(run, "/v1/chat/completions", found[1].encode())["choices"]
    kinds = {part["name"]: (part["kind"], part["port"]) for part in place.state()["parts"]}
    assert kinds == {
        "a-0": ("engine", place.base + 1),
        "a-1": ("engine", place.base + 2),
        "router": ("router", place.base),
    }
    assert all(os.getpgid(place.pid(name)) == place.pid(name) for name in kinds)
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


def test_kill_9_and_up_again(place: Place) -> None:
    """kill -9 of the launcher ends everything by itself; the next `up` says so, cleans and works."""
    run = place.up().ready()
    scratch = Path(place.state()["scratch_dir"])
    assert scratch.is_dir()
    run.process.kill()
    run.process.wait()
    run.until(lambda: place.processes() == [])
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


def test_second_ctrl_c(place: Place) -> None:
    """The first waits for engines that do not listen to SIGTERM, and says that a second would not; nothing
    is left."""
    run = place.up(FAKE_CHILD="--delay-s 600 --ignore-term --children 1")
    log = place.state_dir / "logs" / "a-1.log"
    run.until(lambda: place.part("a-0") is not None and log.exists() and "started" in log.read_text())
    part = place.part("a-0")
    assert part is not None
    guard = part["guard"][0]
    os.kill(guard, signal.SIGSTOP)  # or a test that is slow itself would find the engine's grace over
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: "once more" in run.text())
    run.process.send_signal(signal.SIGINT)
    run.until(lambda: "SIGINT again: stopping at once" in run.text())
    os.kill(guard, signal.SIGCONT)
    assert run.ended() == 0
    place.assert_nothing_left()


def test_attached_engines_models(place: Place) -> None:
    """What can be asked for is not in the configuration: the printed curl names what the router serves."""
    engine = [sys.executable, str(CHILD), "--port", str(place.base + 1)]
    with subprocess.Popen([*engine, "--served-model-name", "attached-model"]) as process:
        try:
            place.launch = {}
            place.url = f"http://127.0.0.1:{place.base + 1}"
            assert '"model":"attached-model"' in place.up().ready().text()
        finally:
            process.terminate()


def test_real_and_emulated_engines_beside_each_other(place: Place) -> None:
    """Each is started by its own program, and both are served under their names."""
    place.launch["count"] = 1
    place.more = [
        {"name": "e", "launch": {"device": "emulated", "model": "/nonexistent/tiny", "port": place.base + 2}}
    ]
    run = place.up().ready()
    text = run.text()
    assert "serves fake-model, tiny (1 of 2 engines emulated: their answers are made up)" in text
    assert {part["name"]: part["kind"] for part in place.state()["parts"]} == {
        "a-0": "engine",
        "e-0": "emulated",
        "router": "router",
    }
    body = json.dumps({"model": "tiny", "prompt": "A storehouse", "max_tokens": 3}).encode()
    assert place.post(run, "/v1/completions", body)["usage"]["completion_tokens"] == 3
