"""An LMCache server on loopback, as a child process."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.engine.engine import BLOCK, LIMIT_S
from tests.ports import free_ports

CHUNK = 2 * BLOCK
"""Tokens of what it keeps under one key."""


class LmcacheServer:
    """`python` has LMCache. It may be killed, frozen and started again on the same port; it keeps nothing."""

    def __init__(self, python: Path, log: Path) -> None:
        self.port, self._page = free_ports(2)
        self._program = python.with_name("lmcache")
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it listens."""
        command = [str(self._program), "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--http-host", "127.0.0.1", "--http-port", str(self._page), "--chunk-size", str(CHUNK)]
        command += ["--l1-size-gb", "1", "--eviction-policy", "LRU", "--disable-observability"]
        command += ["--supported-transfer-mode", "auto"]  # the default is for GPUs only
        environ = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environ, start_new_session=True
            )
        deadline_s = time.monotonic() + LIMIT_S
        while not self._listens():
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < deadline_s, self._log.read_text()[-3000:]
            time.sleep(0.2)

    def signal(self, number: signal.Signals) -> None:
        """To the server and what it started."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, also when it is stopped; done when it has ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left after half a minute."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
            self.kill()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
