"""Whether a server of ours could listen on a port of this machine."""

import errno
import socket

import psutil

TAKEN = "it is taken"


def can_listen(host: str, port: int) -> bool:
    """Whether a server could bind now; port 0: any port."""
    return bind_problem(host, port) is None


def bind_problem(host: str, port: int) -> str | None:
    """Why a server cannot listen there, in words; None when it can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return f"the address {host} is not known ({error.strerror})"
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except PermissionError:
            return "ports below 1024 need privileges"
        except OSError as error:
            return TAKEN if error.errno == errno.EADDRINUSE else str(error.strerror)
    return None


def holder_of(port: int) -> int | None:
    """The process that listens on a port, as far as we may know."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port:
                return connection.pid
    except psutil.Error:
        return None
    return None
