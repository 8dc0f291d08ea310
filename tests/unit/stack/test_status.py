"""`anbar status` and `anbar down` beside a running, starting or killed `anbar up`."""

import os
import signal

from tests.unit.cli.test_commands import anbar
from tests.unit.stack.place import Place


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
