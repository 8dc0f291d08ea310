"""Looks at where engines are listed. For the router and for the doctor."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from anbar.adapters.dns import Addresses, Resolver, Services
from anbar.apps.file_watch import FileWatch, Signature, signature
from anbar.config.discover import DiscoverConfig, Records, Scheme, name_server
from anbar.config.found import FoundEngine, Sighting, bracketed, read_engines
from anbar.core.errors import ConfigError, LookFailed
from anbar.core.look import LookFailure

MIN_TTL_S = 1.0
"""A record that holds for less is asked for no sooner."""


class Look(Protocol):
    """A source of engines. One look at a time."""

    async def look(self) -> Sighting:
        """The engines that are listed now. Raises LookFailed."""
        ...


def look_at(discover: DiscoverConfig) -> Look:
    """What looks at the source that `discover` names. Raises ConfigError when nothing can."""
    if discover.file is not None:
        return FileLook(discover.file, discover.scheme, discover.look_every_s)
    return DnsLook(discover, Resolver([name_server(server) for server in discover.nameserver]))


class FileLook:
    """A file. It is read when it has changed and rests: what is read while it is written may be a list all
    the same, and a shorter one. Until then what was read before holds, an error too."""

    def __init__(self, path: Path, scheme: Scheme, every_s: float) -> None:
        self._path = path
        self._scheme = scheme
        self._every_s = every_s
        self._watch = FileWatch(None)
        self._last: Sighting | str | None = None

    async def look(self) -> Sighting:
        """As `Look.look`; the file system may be a slow one."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> Sighting:
        now = signature(self._path)
        if now is None:
            raise LookFailed(LookFailure.MISSING, f"{self._path}: there is no such file")
        if self._watch.is_due(now) or self._last is None:
            self._last = self._read(now)
        if isinstance(self._last, str):
            raise LookFailed(LookFailure.INVALID, self._last)
        return self._last

    def _read(self, now: Signature) -> Sighting | str:
        """What is listed, or why that cannot be told."""
        self._watch.was_read(now)
        try:
            return Sighting(read_engines(self._path, self._scheme), self._every_s)
        except ConfigError as error:
            return str(error)


class Names(Protocol):
    """Who is asked for names: `anbar.adapters.dns.Resolver`."""

    async def addresses(self, name: str, *, v6: bool = False) -> Addresses: ...

    async def services(self, name: str) -> Services: ...


class DnsLook:
    """A name of the DNS. What it says holds for its time to live, within bounds."""

    def __init__(self, discover: DiscoverConfig, names: Names) -> None:
        self._discover = discover
        self._names = names

    async def look(self) -> Sighting:
        """As `Look.look`."""
        name, port = self._discover.dns or "", self._discover.port
        if self._discover.records is Records.SRV:
            return self._of_services(name, await self._names.services(name))
        assert port is not None, "records of addresses need a port"
        v6 = self._discover.records is Records.AAAA
        found = await self._names.addresses(name, v6=v6)
        return self._sighting([(address, port) for address in found.values], found.ttl_s)

    def _of_services(self, name: str, found: Services) -> Sighting:
        """Those of the lowest priority: they are the engines, as long as one record of them is there. Hosts
        without an address are not there; those whose addresses could not be told may be."""
        there = [service for service in found.values if service.addresses or service.host in found.untold]
        lowest = min((service.priority for service in there), default=0)
        used = [service for service in there if service.priority == lowest]
        places = [(address, service.port) for service in used for address in service.addresses]
        untold = [found.untold[service.host] for service in used if service.host in found.untold]
        if untold and not places:
            raise LookFailed(untold[0].failure, f"SRV {name}: {untold[0]}")
        if not places:
            raise LookFailed(LookFailure.EMPTY, f"SRV {name}: none of its hosts has an address")
        return self._sighting(places, found.ttl_s, "; ".join(sorted({str(error) for error in untold})))

    def _sighting(self, places: Sequence[tuple[str, int]], ttl_s: float, untold: str = "") -> Sighting:
        scheme = self._discover.scheme.value
        urls = dict.fromkeys(f"{scheme}://{bracketed(host)}:{port}" for host, port in places)
        again_s = min(max(ttl_s, MIN_TTL_S), self._discover.look_every_s)
        return Sighting(tuple(FoundEngine(url=url) for url in urls), again_s, untold)
