"""Asks the DNS without blocking the event loop, and says how it failed.

The system's own resolver (`getaddrinfo`) blocks, tells no times to live, knows no SRV records and does not
tell a name that is not there from a server that does not answer: so this goes by dnspython.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dns.asyncresolver
import dns.exception
import dns.message
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver

from anbar.core.errors import ConfigError, LookFailed
from anbar.core.look import LookFailure

RESOLV_CONF = "/etc/resolv.conf"
LIFETIME_S = 5.0
"""For one question, all servers and tries together."""
NUM_AT_ONCE = 16
"""Questions for the addresses of SRV targets that are under way at a time."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a name, sorted, and for how many seconds they hold."""

    values: tuple[str, ...]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Service:
    """One SRV record."""

    priority: int
    weight: int
    host: str
    port: int
    addresses: tuple[str, ...]
    """Of `host`; IPv4 if it has any. Empty: it has none, or they could not be told."""


@dataclass(frozen=True, slots=True)
class Services:
    """The SRV records of a name, sorted. `untold`: hosts whose addresses could not be told, and why."""

    values: tuple[Service, ...]
    ttl_s: float
    untold: Mapping[str, LookFailed]


class Resolver:
    """Asks `servers` (addresses and ports, in this order), or those of /etc/resolv.conf, which is read again
    when it has changed. A name without a dot at its end is looked for in that file's search domains too.

    Raises ConfigError when there is nobody to ask.
    """

    def __init__(self, servers: Sequence[tuple[str, int]] = (), lifetime_s: float = LIFETIME_S) -> None:
        self._servers = tuple(servers)
        self._lifetime_s = lifetime_s
        self._read_as = _signature()
        self._resolver = self._made()

    async def addresses(self, name: str, *, v6: bool = False) -> Addresses:
        """The A or AAAA records of a name. Raises LookFailed."""
        kind = dns.rdatatype.AAAA if v6 else dns.rdatatype.A
        answer = await self._ask(name, kind)
        values = tuple(sorted(record.address for record in answer))
        return Addresses(values, float(answer.chaining_result.minimum_ttl))

    async def services(self, name: str) -> Services:
        """The SRV records of a name, each with its host's addresses. Raises LookFailed."""
        answer = await self._ask(name, dns.rdatatype.SRV)
        records = sorted(
            (record.priority, record.weight, record.target, record.port)
            for record in answer
            if record.target != dns.name.root  # RFC 2782: "the service is decidedly not available"
        )
        hosts = sorted({target for _, _, target, _ in records})
        limit = asyncio.Semaphore(NUM_AT_ONCE)
        found = await asyncio.gather(*(self._host(host, answer.response, limit) for host in hosts))
        by_host = dict(zip(hosts, found, strict=True))
        told = {host: got for host, got in by_host.items() if isinstance(got, Addresses)}
        ttls = [
            float(answer.chaining_result.minimum_ttl),
            *(got.ttl_s for got in told.values() if got.values),
        ]
        nobody = Addresses((), 0.0)
        return Services(
            tuple(
                Service(priority, weight, _text(host), port, told.get(host, nobody).values)
                for priority, weight, host, port in records
            ),
            min(ttls),
            {_text(host): got for host, got in by_host.items() if isinstance(got, LookFailed)},
        )

    async def _host(
        self, host: dns.name.Name, answer: dns.message.Message, limit: asyncio.Semaphore
    ) -> Addresses | LookFailed:
        """The addresses of an SRV record's host; none if it has none."""
        for rrset in answer.additional:
            if rrset.name == host and rrset.rdtype == dns.rdatatype.A:
                return Addresses(tuple(sorted(record.address for record in rrset)), float(rrset.ttl))
        async with limit:
            try:
                return await self.addresses(host.to_text())
            except LookFailed as error:
                if error.failure is not LookFailure.EMPTY:
                    return Addresses((), 0.0) if error.failure.nobody else error
            try:
                return await self.addresses(host.to_text(), v6=True)
            except LookFailed as error:
                return Addresses((), 0.0) if error.failure.nobody else error

    async def _ask(self, name: str, kind: dns.rdatatype.RdataType) -> dns.resolver.Answer:
        asked = f"{kind.name} {name}"
        try:
            try:
                return await self._current().resolve(name, kind, search=True, lifetime=self._lifetime_s)
            finally:
                _heed_cancellation()
        except dns.resolver.NXDOMAIN as error:
            raise LookFailed(LookFailure.NAME_UNKNOWN, f"{asked}: there is no such name") from error
        except dns.resolver.NoAnswer as error:
            raise LookFailed(LookFailure.EMPTY, f"{asked}: the name has no such record") from error
        except dns.exception.Timeout as error:
            text = f"{asked}: no answer within {self._lifetime_s:g} s from {self._asked()}"
            raise LookFailed(LookFailure.TIMEOUT, text) from error
        except (dns.exception.DNSException, ConfigError) as error:
            text = f"{asked}: {self._asked()} could not answer: {_reason(error)}"
            raise LookFailed(LookFailure.SERVER, text) from error

    def _current(self) -> dns.asyncresolver.Resolver:
        """With the servers and search domains of now: to read the file for each question would hold up the
        event loop."""
        now = _signature()
        if now != self._read_as:
            self._resolver, self._read_as = self._made(), now
        return self._resolver

    def _made(self) -> dns.asyncresolver.Resolver:
        try:
            made = dns.asyncresolver.Resolver(RESOLV_CONF)
        except dns.resolver.NoResolverConfiguration as error:
            if not self._servers:
                raise ConfigError(
                    "/etc/resolv.conf names no server to ask: set engines[].discover.nameserver"
                ) from error
            made = dns.asyncresolver.Resolver(configure=False)
        if self._servers:
            made.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in self._servers]
        return made

    def _asked(self) -> str:
        if not self._servers:
            return "the servers of /etc/resolv.conf"
        return ", ".join(f"{host} port {port}" for host, port in self._servers)


def _signature() -> tuple[int, int, int] | None:
    """Of /etc/resolv.conf: inode, size and time of change in ns; None: there is none."""
    try:
        found = os.stat(RESOLV_CONF)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _heed_cancellation() -> None:
    """dnspython waits by `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes in the
    same moment as what it waits for."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _text(host: dns.name.Name) -> str:
    return host.to_text(omit_final_dot=True)


def _reason(error: Exception) -> str:
    """What the last server has said; servers' words end up here, so they are cut."""
    errors = getattr(error, "kwargs", {}).get("errors", ())
    return str(errors[-1][3] if errors else error)[:200]
