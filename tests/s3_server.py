"""A real S3 server for tests: SeaweedFS, all of it in one process, on loopback.

It ends with the process that started it: the kernel sees to it (`setpriv --pdeathsig`).
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from anbar.adapters.store.s3 import Place
from anbar.adapters.store.s3.client import connect
from tests.ports import free_ports
from tests.waiting import PATIENCE_S

BUCKET = "anbar-kv"
KEY_ID, SECRET = "anbar-test", "secret-of-the-test"
READER_ID, READER_SECRET = "reader", "secret-of-the-reader"

_IDENTITIES = {
    "identities": [
        {
            "name": "anbar",
            "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
            "actions": ["Read", "List", "Write"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": READER_ID, "secretKey": READER_SECRET}],
            "actions": ["Read", "List"],
        },
    ]
}


class S3Server:
    """One server and its bucket. It may be killed, frozen and started again on the same port and data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(8)[::2], strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def credentials(self, key_id: str = KEY_ID, secret: str = SECRET, profile: str = "default") -> Path:
        """A file with credentials, as an operator makes it."""
        file = self.directory / f"credentials-{key_id}-{len(secret)}"
        text = f"[{profile}]\naws_access_key_id = {key_id}\naws_secret_access_key = {secret}\n"
        file.write_text(text)
        return file

    def place(self, prefix: str = "anbar", **changes: object) -> Place:
        """The bucket as a store takes it."""
        known: dict[str, object] = {
            "bucket": BUCKET,
            "prefix": prefix,
            "endpoint": self.endpoint,
            "credentials_file": self.credentials(),
            "allow_http": True,
        }
        return Place(**known | changes)  # type: ignore[arg-type]

    def start(self) -> None:
        """Start, and wait until the bucket answers."""
        self.directory.mkdir(exist_ok=True)
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        (self.directory / "identities.json").write_text(json.dumps(_IDENTITIES))
        command = [
            *("setpriv", "--pdeathsig", "KILL", str(Path(sys.executable).with_name("weed")), "server"),
            *(f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"),
            *(f"-{name}.port={port}" for name, port in self._ports.items()),
            *(f"-{name}.port.grpc={port + 1}" for name, port in self._ports.items()),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-s3.autoCreateBucket=false"),
            *("-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=30"),
            f"-s3.config={self.directory / 'identities.json'}",
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()

    def client(self) -> Client:
        """The bucket without Anbar: to look at objects and to damage them."""
        return connect(self.place(), attempt_s=PATIENCE_S, retry_s=PATIENCE_S)

    def freeze(self) -> None:
        """SIGSTOP: connections stay, and nothing answers. Done when all of its threads have stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and what the server leaves in /tmp."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._process = None
        for name, port in self._ports.items():
            for socket in (f"{name}-{port}", f"{name}-grpc-{port + 1}"):
                Path(f"/tmp/seaweedfs-{socket}.sock").unlink(missing_ok=True)

    def end(self) -> None:
        """For good."""
        self.kill()

    def _wait(self) -> None:
        """Until the bucket is made and an object can be written: the parts come up one after the other."""
        assert self._process is not None
        bucket = f"http://127.0.0.1:{self._ports['filer']}/buckets/{BUCKET}/"
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                with suppress(urllib.error.HTTPError):  # an answer: it is there already, or will be next time
                    urllib.request.urlopen(urllib.request.Request(bucket, method="POST"), timeout=PATIENCE_S)
                obstore.put(self.client(), "up", b"1")
            except (OSError, BaseError):
                time.sleep(0.05)
            else:
                return
        raise AssertionError((self.directory / "log").read_text(errors="replace")[-2000:])


@contextmanager
def running_s3(directory: Path, kind: type[S3Server] = S3Server) -> Iterator[S3Server]:
    """A server of one's own."""
    server = kind(directory)
    try:
        server.start()
        yield server
    finally:
        server.end()
