"""Several engines in a process."""

import socket

import pytest

from anbar.apps.emulator.flags import parse
from anbar.apps.emulator.fleet import run
from anbar.core.errors import StackError


def _first_of_two_ports() -> tuple[int, socket.socket]:
    """A free port, and a socket that listens on the next one."""
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            taken = socket.socket()
            try:
                taken.bind(("127.0.0.1", port + 1))
                taken.listen()
            except (OSError, OverflowError):
                taken.close()
            else:
                return port, taken


def test_none_is_announced_when_one_cannot_start() -> None:
    """The second engine's port is taken: the error names it, and nobody is told of the first one."""
    port, taken = _first_of_two_ports()
    said: list[str] = []
    with taken, pytest.raises(StackError, match=f"127.0.0.1:{port + 1} cannot be listened on"):
        run(parse(["--port", str(port), "--count", "2"]), {"ANBAR_MODELS_DIR": "/nowhere"}, said.append)
    assert not [line for line in said if "http://" in line]
