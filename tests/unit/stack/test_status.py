"""`anbar status` and `anbar down` beside a running, starting or killed `anbar up`."""

import contextlib
import os
import signal

from tests.unit.cli.test_commands import anbar
from tests.unit.stack.place import Place


def test_status_down_and_a_killed_launcher(place: Place) -> None:
    """`status` tells each part's pid and state; `down` says what it waits for; a launcher that was killed
    leaves processes that are ending, which is not nothing."""
    run = place.up().ready()
    config = str(place.directory / "anbar.yaml")
    part, pid = place.part("a-0"), place.pid("a-0")
    assert part is not None
    engine = ["a-0", "engine", str(pid), str(part["port"]), part["url"], "ready", part["log"]]

    def is_shown_ready() -> bool:  # a loaded machine's engine may be late with an answer to the router
        lines = anbar("status", "-c", config, cwd=place.directory).stdout.splitlines()
        rows = {line.split()[0]: line.split() for line in lines[1:]}
        return rows["a-0"] == engine and rows["router"][5] == "ready"

    run.until(is_shown_ready)
    held = (part["guard"][0], pid)  # the guard too, which would not leave the engine more than its grace
    try:
        for one in held:
            os.kill(one, signal.SIGSTOP)
        run.process.kill()
        run.process.wait()
        ending = anbar("status", "-c", config, cwd=place.directory)
    finally:
        for one in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGCONT)
    assert ending.returncode == 1
    assert f"was killed; its processes are ending: a-0 ({pid})" in ending.stdout
    run.until(lambda: place.processes() == [])
    assert "nothing runs" in anbar("status", "-c", config, cwd=place.directory).stdout
    place.up().ready()
    down = anbar("down", "-c", config, cwd=place.directory)
    assert down.stdout.splitlines() == [
        f"stopping the stack (process {place.runs[-1].process.pid}): running answers get up to 1 s to finish",
        "stopped",
    ]


def test_status_while_starting(place: Place) -> None:
    """An engine that loads is not one that is broken."""
    run = place.up(FAKE_CHILD="--delay-s 600")
    run.until(lambda: place.part("a-0") is not None)
    config = str(place.directory / "anbar.yaml")
    shown = anbar("status", "-c", config, cwd=place.directory)
    assert "starting" in shown.stdout
    assert "does not answer" not in shown.stdout
