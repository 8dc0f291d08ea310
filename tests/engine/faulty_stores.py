"""Stores of each kind that can be damaged and taken away while engines use them."""

import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

import obstore

from anbar.config.s3 import S3Config
from anbar.config.stores import StoreConfig, StoreKind
from anbar.config.valkey import ValkeyStoreConfig
from tests.integration.valkey.forming import PRIMARIES, form
from tests.integration.valkey.servers import Server, cluster
from tests.integration.valkey.servers import server as running_valkey
from tests.s3_server import BUCKET, running_s3
from tests.tcp_proxy import Network, running_proxy
from tests.waiting import wait_until

TIMEOUT_S = 5.0
"""Deadline of a call on these stores: one that hangs costs a test seconds, and one that is slow because the
machine is busy is not taken for one that hangs."""
NAMESPACE_AT = slice(8, 24)
"""Of a record: the digest of its fingerprint (`anbar.adapters.store.record`)."""

CAPACITY_BYTES = 20 * 1024 * 1024
"""Of a store that is to evict: little, so that it does so soon."""
_PAUSE_S = 0.2

Outage = Callable[[], AbstractContextManager[None]]


@contextmanager
def again_and_again(deed: Callable[[], None]) -> Iterator[None]:
    """The deed is done once, and then all the time, on a thread of its own."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(_PAUSE_S):
            deed()

    deed()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


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

    def evicting(self) -> AbstractContextManager[None]:
        """While entries go to make room for others, or because they have become old."""
        return again_and_again(self.delete)

    # What can happen to records

    def flip(self) -> None:
        """One bit in the middle of each."""
        for name, record in self.records().items():
            if not record:
                continue  # truncated before, again and again
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
        for name, other in zip(names, [*names[1:], *names[:1]], strict=True):
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

    def __init__(self, directory: Path, *, is_mounted: bool, capacity_bytes: int | None = None) -> None:
        self._root = directory / "store"
        self._is_mounted = is_mounted
        self.config = StoreConfig(
            path=self._root, id="files-under-test", timeout_s=TIMEOUT_S, capacity_bytes=capacity_bytes
        )

    def records(self) -> dict[str, bytes]:
        found = {}
        for path in self._root.rglob("*.kv"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found[str(path)] = path.read_bytes()
        return found

    def put(self, name: str, record: bytes) -> None:
        with suppress(FileNotFoundError):
            Path(name).write_bytes(record)

    def remove(self, name: str) -> None:
        Path(name).unlink(missing_ok=True)

    @property
    def outages(self) -> Mapping[str, Outage]:
        mounted: dict[str, Outage] = {"full": self._full, "read-only": self._read_only}
        return {"vanished": self._vanished, **(mounted if self._is_mounted else {})}

    def evicting(self) -> AbstractContextManager[None]:
        """By its capacity."""
        return nullcontext()

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
        try:
            with ballast.open("wb") as file:
                self._fill(file.fileno())
            yield
        finally:
            ballast.unlink()

    def _fill(self, file: int) -> None:
        """As much as there is, while others write too."""
        while free := os.statvfs(self._root).f_bavail * os.statvfs(self._root).f_bsize:
            with suppress(OSError):  # by now there is less
                os.posix_fallocate(file, os.fstat(file).st_size, free)

    @contextmanager
    def _read_only(self) -> Iterator[None]:
        mount = str(self._root.parent)
        read_only = ["mount", "-o", "remount,ro", mount]
        # It is refused as long as a file is being written.
        wait_until(lambda: subprocess.run(read_only, capture_output=True, check=False).returncode == 0)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", mount], check=True)


class ServerUnderTest(FaultyStore):
    """What is reached over a network that can fail, and is a process that can die or stand still."""

    def __init__(self, port: int, process: Callable[[str], None], stack: ExitStack) -> None:
        """`process` obeys kill, start, freeze and thaw."""
        self.proxy = stack.enter_context(running_proxy(port))
        self._process = process

    @property
    def outages(self) -> Mapping[str, Outage]:
        return {
            "killed": lambda: self._between("kill", "start"),
            "frozen": lambda: self._between("freeze", "thaw"),
            "lost": lambda: self._on(Network.LOST),
            "reset": lambda: self._on(Network.RESET),
            "slow": lambda: self._on(Network.SLOW),
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
        self.proxy.cut_after_bytes = 20_000
        try:
            yield
        finally:
            self.proxy.cut_after_bytes = None


class ValkeyUnderTest(ServerUnderTest):
    """A Valkey server, or another one that speaks its language. Killed, it comes back empty."""

    def __init__(self, directory: Path, stack: ExitStack, binary: str | None = None) -> None:
        told = ("--notify-keyspace-events", "Exeg")
        self._server = stack.enter_context(running_valkey(directory / "valkey", *told, binary=binary))
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
        return records_of(self._server)

    def put(self, name: str, record: bytes) -> None:
        self._server.ask(b"SET", name.encode("latin-1"), record)

    def remove(self, name: str) -> None:
        self._server.ask(b"DEL", name.encode("latin-1"))

    @property
    def outages(self) -> Mapping[str, Outage]:
        return {**super().outages, "full": self._full}

    def evicting(self) -> AbstractContextManager[None]:
        """By its memory."""
        return self._limited(b"%d" % CAPACITY_BYTES, b"allkeys-lru")

    def _full(self) -> AbstractContextManager[None]:
        return self._limited(b"1mb", b"noeviction")

    @contextmanager
    def _limited(self, memory: bytes, policy: bytes) -> Iterator[None]:
        self._server.ask(b"CONFIG", b"SET", b"maxmemory-policy", policy, b"maxmemory", memory)
        try:
            yield
        finally:
            self._server.ask(b"CONFIG", b"SET", b"maxmemory", b"0")


class ClusterUnderTest(FaultyStore):
    """Three Valkey servers that share the keys. A record's name begins with its server's number."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._servers = cluster(directory, PRIMARIES)
        for one in self._servers:
            stack.callback(one.kill)
        form(self._servers)
        valkey = ValkeyStoreConfig(nodes=(str(self._servers[0].node),), cluster=True)
        self.config = StoreConfig(
            kind=StoreKind.VALKEY, valkey=valkey, id="cluster-under-test", timeout_s=TIMEOUT_S
        )

    def records(self) -> dict[str, bytes]:
        every = [(number, records_of(one)) for number, one in enumerate(self._servers)]
        return {f"{number}{name}": record for number, found in every for name, record in found.items()}

    def put(self, name: str, record: bytes) -> None:
        self._servers[int(name[0])].ask(b"SET", name[1:].encode("latin-1"), record)

    def remove(self, name: str) -> None:
        self._servers[int(name[0])].ask(b"DEL", name[1:].encode("latin-1"))

    @property
    def outages(self) -> Mapping[str, Outage]:
        return {"killed": self._killed, "frozen": self._frozen}

    @contextmanager
    def _killed(self) -> Iterator[None]:
        """One node, which comes back empty and with the slots that it had."""
        self._servers[1].kill()
        try:
            yield
        finally:
            self._servers[1].start()

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        self._servers[1].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._servers[1].signal(signal.SIGCONT)


def records_of(server: Server) -> dict[str, bytes]:
    """What a Valkey server holds."""
    found = {name.decode("latin-1"): server.ask(b"GET", name) for name in server.names()}
    return {name: bytes(value) for name, value in found.items() if isinstance(value, bytes | bytearray)}


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
        found = {}
        for name in names:
            with suppress(FileNotFoundError):  # removed meanwhile
                found[name] = bytes(obstore.get(client, name).bytes())
        return found

    def put(self, name: str, record: bytes) -> None:
        obstore.put(self._server.client(), name, record)

    def remove(self, name: str) -> None:
        obstore.delete(self._server.client(), name)
