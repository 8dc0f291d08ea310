"""Several engines in a process."""

import socket

import pytest

from anbar.apps.emulator.flags import parse
from anbar.apps.emulator.fleet import run
from anbar.core.errors import StackError
from tests.ports import free_ports


def test_none_is_announced_when_one_cannot_start() -> None:
    """The second engine's port is taken: the error names it, and nobody is told of the first one."""
    port, next_port = free_ports(2)
    said: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", next_port))
        taken.listen()
        with pytest.raises(StackError, match=f"127.0.0.1:{next_port} cannot be listened on"):
            run(parse(["--port", str(port), "--count", "2"]), {"ANBAR_MODELS_DIR": "/nowhere"}, said.append)
    assert not [line for line in said if "http://" in line]
