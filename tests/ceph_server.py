"""A real Ceph of one node for tests: monitor, manager, an OSD in memory, and its object gateway, on loopback.

Its programs are Debian's packages `ceph-mon ceph-mgr ceph-osd radosgw ceph-common`. All of it ends with the
process that started it.
"""

import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import obstore
from obstore.exceptions import BaseError

from tests.ports import free_port
from tests.s3_server import KEY_ID, READER_ID, READER_SECRET, SECRET, S3Server
from tests.waiting import PATIENCE_S

_CAPABILITIES = {
    "mon.": ("mon", "allow *"),
    "client.admin": ("mon", "allow *", "mgr", "allow *", "osd", "allow *"),
    "mgr.x": ("mon", "allow profile mgr", "osd", "allow *"),
    "osd.0": ("mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"),
    "client.rgw": ("mon", "allow rw", "osd", "allow rwx"),
}
_CONF = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2}/0,v1:127.0.0.1:{v1}/0]
public addr = 127.0.0.1
keyring = {directory}/keyring
run dir = {directory}
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
mon data = {directory}/mon
mgr data = {directory}/mgr
osd data = {directory}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
mgr initial modules =
rgw frontends = beast endpoint=127.0.0.1:{rgw}
rgw thread pool size = 64
"""
_STARTS_S = 4 * PATIENCE_S
"""Four programs, one after the other."""


class CephServer(S3Server):
    """As `S3Server`, with a gateway that may be killed, frozen and started again while the others go on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._gateway_port = free_port()
        self._conf = directory / "ceph.conf"
        self._others: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def port(self) -> int:
        return self._gateway_port

    def start(self) -> None:
        """Start what does not run, and wait until the bucket answers."""
        is_first = not self._others
        if is_first:
            self._make()
        self._process = self._spawn("radosgw", "-n", "client.rgw")
        if is_first:
            self._users()
        self._until("the bucket", self._answers)

    def freeze_osd(self) -> None:
        """SIGSTOP: the gateway takes requests and gets no answers."""
        self._others["ceph-osd"].send_signal(signal.SIGSTOP)

    def thaw_osd(self) -> None:
        """SIGCONT."""
        self._others["ceph-osd"].send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the gateway."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None

    def end(self) -> None:
        """SIGKILL to all."""
        self.kill()
        for process in self._others.values():
            process.kill()
            process.wait(PATIENCE_S)

    def _make(self) -> None:
        """Monitor, manager and OSD, from nothing."""
        self.directory.mkdir(exist_ok=True)
        fsid, v2, v1 = str(uuid.uuid4()), free_port(), free_port()
        text = _CONF.format(fsid=fsid, v2=v2, v1=v1, rgw=self._gateway_port, directory=self.directory)
        self._conf.write_text(text)
        keyring, monmap = self.directory / "keyring", self.directory / "monmap"
        for number, (name, granted) in enumerate(_CAPABILITIES.items()):
            pairs = zip(granted[::2], granted[1::2], strict=True)
            caps = [word for kind, what in pairs for word in ("--cap", kind, what)]
            new = ["--create-keyring"] if number == 0 else []
            self._do("ceph-authtool", str(keyring), *new, "--gen-key", "-n", name, *caps)
        for part in ("mon", "mgr", "osd"):
            (self.directory / part).mkdir()
        address = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
        self._do("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, str(monmap))
        self._do("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(monmap), "--keyring", str(keyring))
        self._others["ceph-mon"] = self._spawn("ceph-mon", "-i", "a")
        self._others["ceph-mgr"] = self._spawn("ceph-mgr", "-i", "x")
        osd = str(uuid.uuid4())
        self._do("ceph", "--connect-timeout", str(int(_STARTS_S)), "osd", "new", osd, "0")
        self._do("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._others["ceph-osd"] = self._spawn("ceph-osd", "-i", "0")
        self._until("the OSD", lambda: b"1 up" in self._do("ceph", "osd", "stat"))

    def _users(self) -> None:
        """One who may do all with the bucket, and one who may read it."""
        admin = ("radosgw-admin", "-n", "client.rgw")
        keys = ("--access-key", KEY_ID, "--secret-key", SECRET)
        self._do(*admin, "user", "create", "--uid", "anbar", "--display-name", "anbar", *keys)
        reader = ("--subuser", f"anbar:{READER_ID}", "--access", "read", "--key-type", "s3")
        keys = ("--access-key", READER_ID, "--secret-key", READER_SECRET)
        self._do(*admin, "subuser", "create", "--uid", "anbar", *reader, *keys)

    def _answers(self) -> bool:
        with suppress(BaseError):
            obstore.put(self.client(), "", b"")  # makes the bucket; the client misses an ETag in the answer
        with suppress(BaseError):
            obstore.put(self.client(), "up", b"1")
            return True
        return False

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + _STARTS_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what} does not answer: {self._last_words()}"
            time.sleep(0.2)

    def _last_words(self) -> str:
        """Of every program."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-800:]}" for log in logs)

    def _do(self, program: str, *arguments: str) -> bytes:
        command = (program, "-c", str(self._conf), *arguments)
        done = subprocess.run(command, capture_output=True, check=False, timeout=_STARTS_S)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()[-1000:]}"
        return done.stdout

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = ("setpriv", "--pdeathsig", "KILL", program, "-f", "-c", str(self._conf), *arguments)
        with (self.directory / f"{program}.out").open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out)
