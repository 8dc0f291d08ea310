"""`engines[].discover`: engines that come and go, found in a file or by a name of the DNS."""

from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from anbar.config.fields import ConfigModel, Int, NamedPath, Port, Seconds

FILE_EVERY_S = 1.0
DNS_EVERY_S = 30.0


class Records(StrEnum):
    """What a name of the DNS is asked for."""

    A = "a"
    AAAA = "aaaa"
    SRV = "srv"


class Scheme(StrEnum):
    """How engines are spoken to whose listing gives no more than host and port."""

    HTTP = "http"
    HTTPS = "https"


_NAME = (
    r"^([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?$"
)


def _address(value: str) -> str:
    host, port = name_server(value)
    if not host or not 0 < port < 65536:
        raise ValueError(
            "allowed: an address, with a port if it is not 53: 10.0.0.10, 10.0.0.10:5353, [::1]:53"
        )
    return value


def name_server(text: str) -> tuple[str, int]:
    """Address and port of a name server; ("", 0) if it is none."""
    bare = text.count(":") > 1 and not text.startswith("[")
    try:
        parts = urlsplit(f"//[{text}]" if bare else f"//{text}")
        return parts.hostname or "", parts.port if parts.port is not None else 53
    except ValueError:
        return "", 0


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class DiscoverConfig(ConfigModel):
    """Where the engines of an entry are listed: in a `file` or under a name of the `dns`. All that the entry
    says besides is said of each of them; in `events` and `replay`, `{host}` and `{port}` stand for the
    engine's. An engine that is found has the id `<name>@<host>:<port>`."""

    file: NamedPath | None = None
    """A YAML or JSON file: a list of addresses, of keys with `url` and what differs from the entry, or of
    `targets` and `labels` as Prometheus has them (file_sd). It is watched. A bad one is refused, and the one
    before goes on."""

    dns: Annotated[str, StringConstraints(pattern=_NAME, max_length=254)] | None = None
    """A name whose records list the engines, such as a headless service's. With a dot at its end it is asked
    for as it is, else also in the domains that /etc/resolv.conf names."""

    records: Records = Records.A
    """a, aaaa: each address is an engine, at `port`. srv: each record names an engine's host and port; those
    with the lowest priority are used, weights are not, since the router knows better how busy each is."""

    port: Port | None = None
    """The engines' HTTP port, with `a` and `aaaa`."""

    scheme: Scheme = Scheme.HTTP
    """For addresses that come without one. Engines found in the DNS are spoken to by their addresses: with
    https their certificates must name these."""

    nameserver: Annotated[tuple[Annotated[str, AfterValidator(_address)], ...], BeforeValidator(_listed)] = ()
    """Who is asked, in this order, in place of the servers in /etc/resolv.conf."""

    every_s: Seconds | None = None
    """Seconds between two looks; with `dns` the longest, since a record whose time to live is over is asked
    for again, at most once a second. null: 1 for a file, 30 for the DNS."""

    leave_after: Annotated[Int, Field(ge=1, le=1000)] = 3
    """Good looks in a row in which an engine is missing before it is drained. A look that fails or finds
    nobody in the DNS takes no engine away that answers its health checks."""

    empty_grace_s: Seconds = 60.0
    """While the DNS names no engine at all: seconds for which an engine may fail its health checks before it
    is no longer waited for."""

    max_engines: Annotated[Int, Field(ge=1, le=10_000)] = 256
    """Most engines of this entry. More are named in `/admin/discovery` and not used."""

    @property
    def look_every_s(self) -> float:
        """`every_s`, or what stands for null."""
        if self.every_s is not None:
            return self.every_s
        return FILE_EVERY_S if self.file is not None else DNS_EVERY_S

    @property
    def source(self) -> str:
        """What is looked at, in words."""
        if self.file is not None:
            return f"file {self.file}"
        port = f" port {self.port}" if self.port is not None else ""
        return f"{self.records.value.upper()} {self.dns}{port}"
