"""Who counts as a client on this machine: the admin endpoints and explanations are theirs only."""

import ipaddress

from anbar.adapters.http.message import Request
from anbar.core.errors import RequestError

_PROXIED = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
"""A proxy on this machine that says so in one of these passes on other people's requests."""


def is_local(request: Request) -> bool:
    """Whether the request comes from this machine, from nobody behind a proxy, and not from a page in a
    browser that was told a stranger's name is this machine (DNS rebinding): its `Host` would be that name."""
    if not request.peer_is_local or any(request.header(name) is not None for name in _PROXIED):
        return False
    host = request.header(b"host")
    return host is None or _is_plain(host)


def must_be_local(request: Request) -> None:
    """Raises RequestError (403) for anybody else."""
    if not is_local(request):
        raise RequestError(
            "Only for clients on this machine, that ask without a proxy and by an address or `localhost`.",
            status=403,
            code="local_only",
        )


def _is_plain(host: bytes) -> bool:
    """Whether a `Host` header has an address or `localhost`, which no name server can point elsewhere."""
    name = host.decode("latin-1").strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
