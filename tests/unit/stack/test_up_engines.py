"""Engines of `anbar up` that do not start, or die: said readably, started again or not, as configured."""

import os
import re
import signal

from tests.unit.stack.place import Place


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
    run = place.up(FAKE_CHILD="--delay-s 600")
    assert run.ended() == 1
    assert re.search(r"was not ready after \d+ s", run.text())
    place.assert_nothing_left()


def test_dead_engine_is_started_again(place: Place) -> None:
    """An engine killed with all its processes comes back under a new pid; the rest goes on."""
    place.launch["count"] = 1
    run = place.up().ready()
    old = place.pid("a-0")
    os.killpg(old, signal.SIGKILL)
    run.until(lambda: run.text().count("a-0: ready") == 2)
    assert place.pid("a-0") != old
    assert "a-0 ended with status 137" in run.text()


def test_dead_engine_stays_dead(place: Place) -> None:
    """restart: never; when the last engine is gone the stack ends with an error."""
    place.launch |= {"count": 1, "restart": "never"}
    run = place.up().ready()
    os.killpg(place.pid("a-0"), signal.SIGKILL)
    assert run.ended() == 1
    assert "no engine is left" in run.text()
    place.assert_nothing_left()
