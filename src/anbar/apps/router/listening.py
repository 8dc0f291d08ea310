"""The router's port: words for why it cannot be had, and how several workers come to share it."""

import errno
import socket
import sys
from contextlib import suppress

from anbar.core.errors import StackError


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """Why a router cannot listen there, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use: stop what listens there, which "
            f"`ss -ltnp 'sport = :{port}'` names, or choose another port with router.port or --port"
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges: choose one above 1023 with router.port or --port"
    reason = error.strerror or str(error)
    return f"cannot listen on {host} port {port}: {reason}; check router.host and router.port"


def reserve(host: str, port: int) -> list[socket.socket]:
    """Sockets that hold a port for workers of this user, which listen on it each for itself: without, two
    routers with workers would share one port and each get half of the other's requests. They do not listen,
    so the kernel gives them nothing. Raises StackError when somebody has the port."""
    if sys.platform != "linux":
        raise StackError(f"several workers cannot share a port on {sys.platform}: set router.workers to 1")
    held: list[socket.socket] = []
    try:
        held.append(_claim(host, port))
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            _bound(family, address, shared=False).close()
            held.append(_bound(family, address, shared=True))
    except OSError as error:
        for each in held:
            each.close()
        raise StackError(cannot_listen(host, port, error)) from error
    return held


def check_free(host: str, port: int) -> None:
    """Raises StackError when a router cannot listen there: to be asked before it touches a file that may be
    the one of the router that does."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in found:
            _bound(family, address, shared=False).close()
    except OSError as error:
        raise StackError(cannot_listen(host, port, error)) from error


def _claim(host: str, port: int) -> socket.socket:
    """By a name in Linux's abstract namespace, which goes with the process: workers' sockets do not stand in
    the way of other workers'."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0anbar-router-{host}-{port}")
    except OSError:
        claim.close()
        raise
    return claim


def _bound(family: socket.AddressFamily, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family is socket.AF_INET6:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock
