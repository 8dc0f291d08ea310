"""Stores of each kind that can be damaged and taken away while engines use them."""

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import obstore

from anbar.config.s3 import S3Config
from anbar.config.stores import StoreConfig, StoreKind
from anbar.config.valkey import ValkeyStoreConfig
from tests.engine.network import Network, NetworkProxy
from tests.integration.valkey.servers import server as running_valkey
from tests.s3_server import BUCKET, running_s3

TIMEOUT_S = 5.0
"""Deadline of a call on these stores: one that hangs costs a test seconds, and one that is slow because the
machine is busy is not taken for one that hangs."""
NAMESPACE_AT = slice(8, 24)
"""Of a record: the digest of its fingerprint (`anbar.adapters.store.record`)."""

Outage = Callable[[], AbstractContextManager[None]]


class FaultyStore(ABC):
    """A running store. Records are what it holds, as they lie there, by a name of its own."""

    config: StoreConfig

    @abstractmethod
    def records(self) -> dict[str, bytes]: ...

    @abstractmethod
    def put(self, name: str, record: bytes) -> None: ...

    @abstractmethod
    def remove(self, name: str) -> None: ...

    @property
    @abstractmethod
    def outages(self) -> Mapping[str, Outage]:
        """Ways to be away, by name."""

    # What can happen to records

    def flip(self) -> None:
        """One bit in the middle of each."""
        for name, record in self.records().items():
            middle = len(record) // 2
            self.put(name, record[:middle] + bytes([record[middle] ^ 4]) + record[middle + 1 :])

    def truncate(self) -> None:
        """Their second half."""
        for name, record in self.records().items():
            self.put(name, record[: len(record) // 2])

    def swap(self) -> None:
        """Each becomes what the next one was: whole, and of another key."""
        found = self.records()
        names = sorted(found)
        for name, other in zip(names, [*names[1:], names[0]], strict=True):
            self.put(name, found[other])

    def delete(self) -> None:
        for name in self.records():
            self.remove(name)

    def refingerprint(self) -> None:
        """They were written for other weights, or by another version."""
        for name, record in self.records().items():
            changed = bytearray(record)
            changed[NAMESPACE_AT] = bytes(16)
            self.put(name, bytes(changed))

    @property
    def damages(self) -> Mapping[str, Callable[[], None]]:
        return {
            "flipped bits": self.flip,
            "truncated": self.truncate,
            "swapped": self.swap,
            "deleted": self.delete,
            "of another fingerprint": self.refingerprint,
        }


class FilesUnderTest(FaultyStore):
    """A directory; of its own small file system when that can be mounted."""

    def __init__(self, directory: Path, *, is_mounted: bool) -> None:
        self._root = directory / "store"
        self._is_mounted = is_mounted
        self.config = StoreConfig(path=self._root, id="files-under-test", timeout_s=TIMEOUT_S)

    def records(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self._root.rglob("*.kv")}

    def put(self, name: str, record: bytes) -> None:
        Path(name).write_bytes(record)

    def remove(self, name: str) -> None:
        Path(name).unlink(missing_ok=True)

    @property
    def outages(self) -> Mapping[str, Outage]:
        mounted: dict[str, Outage] = {"full": self._full, "read-only": self._read_only}
        return {"vanished": self._vanished, **(mounted if self._is_mounted else {})}

    @contextmanager
    def _vanished(self) -> Iterator[None]:
        aside = self._root.with_name("aside")
        self._root.rename(aside)
        try:
            yield
        finally:
            aside.rename(self._root)

    @contextmanager
    def _full(self) -> Iterator[None]:
        ballast = self._root.with_name("ballast")
        free = os.statvfs(self._root)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize)
        try:
            yield
        finally:
            ballast.unlink()

    @contextmanager
    def _read_only(self) -> Iterator[None]:
        mount = str(self._root.parent)
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", mount], check=True)


class ServerUnderTest(FaultyStore):
    """What is reached over a network that can fail, and is a process that can die or stand still."""

    def __init__(self, port: int, process: Callable[[str], None], stack: ExitStack) -> None:
        """`process` obeys kill, start, freeze and thaw."""
        self.proxy = stack.enter_context(NetworkProxy(port))
        self._process = process

    @property
    def outages(self) -> Mapping[str, Outage]:
        return {
            "killed": lambda: self._between("kill", "start"),
            "frozen": lambda: self._between("freeze", "thaw"),
            "lost": lambda: self._on(Network.LOST),
            "reset": lambda: self._on(Network.RESET),
            "cut in a value": self._cut,
        }

    @contextmanager
    def _between(self, before: str, after: str) -> Iterator[None]:
        self._process(before)
        try:
            yield
        finally:
            self._process(after)

    @contextmanager
    def _on(self, network: Network) -> Iterator[None]:
        self.proxy.network = network
        try:
            yield
        finally:
            self.proxy.network = Network.WORKS

    @contextmanager
    def _cut(self) -> Iterator[None]:
        self.proxy.cut_after = 20_000
        try:
            yield
        finally:
            self.proxy.cut_after, self.proxy.network = None, Network.WORKS


class ValkeyUnderTest(ServerUnderTest):
    """A Valkey server. Killed, it comes back empty."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._server = stack.enter_context(running_valkey(directory / "valkey"))
        deeds = {
            "kill": self._server.kill,
            "start": self._server.start,
            "freeze": lambda: self._server.signal(signal.SIGSTOP),
            "thaw": lambda: self._server.signal(signal.SIGCONT),
        }
        super().__init__(self._server.port, lambda deed: deeds[deed](), stack)
        valkey = ValkeyStoreConfig(nodes=(f"127.0.0.1:{self.proxy.port}",))
        self.config = StoreConfig(
            kind=StoreKind.VALKEY, valkey=valkey, id="valkey-under-test", timeout_s=TIMEOUT_S
        )

    def records(self) -> dict[str, bytes]:
        found = {name.decode("latin-1"): self._server.ask(b"GET", name) for name in self._server.names()}
        return {name: bytes(value) for name, value in found.items() if isinstance(value, bytes | bytearray)}

    def put(self, name: str, record: bytes) -> None:
        self._server.ask(b"SET", name.encode("latin-1"), record)

    def remove(self, name: str) -> None:
        self._server.ask(b"DEL", name.encode("latin-1"))

    @property
    def outages(self) -> Mapping[str, Outage]:
        return {**super().outages, "full": self._full}

    @contextmanager
    def _full(self) -> Iterator[None]:
        self._server.ask(b"CONFIG", b"SET", b"maxmemory", b"1mb")
        try:
            yield
        finally:
            self._server.ask(b"CONFIG", b"SET", b"maxmemory", b"0")


class S3UnderTest(ServerUnderTest):
    """A bucket of a SeaweedFS server."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._server = stack.enter_context(running_s3(directory / "s3"))
        deeds = {
            "kill": self._server.kill,
            "start": self._server.start,
            "freeze": self._server.freeze,
            "thaw": self._server.thaw,
        }
        super().__init__(self._server.port, lambda deed: deeds[deed](), stack)
        s3 = S3Config(
            bucket=BUCKET,
            endpoint=f"http://127.0.0.1:{self.proxy.port}",
            credentials_file=self._server.credentials(),
            allow_http=True,
        )
        self.config = StoreConfig(kind=StoreKind.S3, s3=s3, id="s3-under-test", timeout_s=TIMEOUT_S)

    def records(self) -> dict[str, bytes]:
        client = self._server.client()
        names = [
            meta["path"] for page in obstore.list(client) for meta in page if meta["path"].endswith(".kv")
        ]
        return {name: bytes(obstore.get(client, name).bytes()) for name in names}

    def put(self, name: str, record: bytes) -> None:
        obstore.put(self._server.client(), name, record)

    def remove(self, name: str) -> None:
        obstore.delete(self._server.client(), name)
