"""From a configuration to an exchange: where this router listens, and whom it dials."""

import asyncio
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from anbar.adapters.peers.connect import Address, Local, Remote
from anbar.apps.router.worker import Worker
from anbar.config.exchange import host_and_port
from anbar.config.models import RouterConfig
from anbar.core.errors import ConfigError

MIN_SECRET_BYTES = 32


def is_shared(router: RouterConfig, worker: Worker | None) -> bool:
    """Whether there are other routers, or may be."""
    return worker is not None or bool(router.peers) or router.exchange.listen is not None


def secret_of(router: RouterConfig) -> bytes:
    """What all routers of an exchange over the network know; b"" when there is none. Raises ConfigError."""
    key, path = "router.exchange.secret_file", router.exchange.secret_file
    if not router.peers and router.exchange.listen is None:
        return b""
    if path is None:
        raise ConfigError(
            f"{key}: needed with router.peers and router.exchange.listen; `openssl rand -hex 32` makes one"
        )
    return _read(path, key)


def _read(path: Path, key: str) -> bytes:
    try:
        mode, secret = path.stat().st_mode, path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o007:
        raise ConfigError(f"{key}: {path} can be read by everybody: chmod o-rwx it")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"{key}: {path} has {len(secret)} bytes; allowed: {MIN_SECRET_BYTES} or more")
    return secret


def listens_at(router: RouterConfig, worker: Worker | None, secret: bytes) -> list[Address]:
    """Where other routers reach this one."""
    found: list[Address] = [] if worker is None else [Local(worker.socket)]
    if router.exchange.listen is not None:
        host, port = host_and_port(router.exchange.listen)
        found.append(Remote(host, port + (worker.place if worker is not None else 0), secret))
    return found


class Addresses:
    """Those of all other routers: siblings on this port, and what the names in `router.peers` stand for."""

    def __init__(
        self,
        router: RouterConfig,
        worker: Worker | None,
        secret: bytes,
        on_failure: Callable[[str, str], None] = lambda name, failure: None,
    ) -> None:
        """`on_failure` hears of a name that cannot be resolved for a reason that is new."""
        self._peers = [host_and_port(address) for address in router.peers]
        self._worker = worker
        self._secret = secret
        self._on_failure = on_failure
        self._failures: dict[str, str] = {}

    async def __call__(self) -> Sequence[Address]:
        """All that are known now; a name that cannot be resolved stands for nobody."""
        found: dict[Address, None] = {}
        worker = self._worker
        if worker is not None:
            others = (place for place in range(worker.count) if place != worker.place)
            found |= {Local(Worker(place, worker.count, worker.directory).socket): None for place in others}
        loop = asyncio.get_running_loop()
        for host, port in self._peers:
            try:
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                failure = error.strerror or str(error)
                if self._failures.get(host) != failure:
                    self._on_failure(host, failure)
                self._failures[host] = failure
                continue
            self._failures.pop(host, None)
            found |= {Remote(str(info[4][0]), port, self._secret): None for info in infos}
        return list(found)


def ports_of(router: RouterConfig) -> tuple[int, int]:
    """The first port on which this router's workers listen for others, and how many there are."""
    if router.exchange.listen is None:
        return 0, 0
    return host_and_port(router.exchange.listen)[1], router.workers
