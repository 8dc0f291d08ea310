"""Where routers find each other."""

import re
from typing import Annotated

from pydantic import AfterValidator

from anbar.config.fields import ConfigModel, NamedPath

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


def host_and_port(address: str) -> tuple[str, int]:
    """Of `host:port`; an IPv6 address stands in brackets. ValueError for anything else."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ValueError(
            "allowed: a host and a port from 1 to 65535, such as 10.0.0.7:7000 or anbar-routers.prod.svc:7000"
        )
    return found[1].strip("[]"), int(found[2])


def _checked(address: str) -> str:
    host_and_port(address)
    return address


PeerAddress = Annotated[str, AfterValidator(_checked)]


class ExchangeConfig(ConfigModel):
    """How routers on several machines hear of each other's requests. Workers of one router do without."""

    listen: PeerAddress | None = None
    """Where other routers reach this one. The second worker listens on the next port, and so on. null:
    nowhere."""

    secret_file: NamedPath | None = None
    """File with the secret that all routers share, of 32 bytes at least, not readable by everybody. Needed
    with `listen` and with `router.peers`."""
