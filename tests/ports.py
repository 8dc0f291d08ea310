"""TCP ports for the servers of tests, each given to one test alone.

A port that was free a moment ago may be taken when the server binds it: by another test that looked at the
same time, or by the kernel, which gives outgoing connections any port of its local range. So ports come from
below that range, and each is claimed, until this process ends, by a name in Linux's abstract socket
namespace: the kernel releases it with the process, and nothing is left on disk (unix(7))."""

import socket
from pathlib import Path

FIRST = 10_240
"""Below live the well-known servers."""
LAST = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - 1
SPARED = range(29_000, 30_000)
"""Where vLLM looks for a free port of its own (--master-port is 29501)."""

_claims: list[socket.socket] = []
"""Held open: closing one gives its port back."""


def free_port() -> int:
    """A TCP port on loopback that no other test gets while this process lives."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """As `free_port`, `count` consecutive ones. AssertionError when none are left."""
    run: list[socket.socket] = []
    for port in range(FIRST, LAST + 1):
        claim = None if port in SPARED else _claim(port)
        if claim is None:
            for one in run:
                one.close()
            run.clear()
            continue
        run.append(claim)
        if len(run) == count:
            _claims.extend(run)
            return list(range(port - count + 1, port + 1))
    raise AssertionError(f"no {count} consecutive free ports in {FIRST}..{LAST}")


def _claim(port: int) -> socket.socket | None:
    """The claim on a port; None when another test has it or something else listens there."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0anbar-test-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return None
    return claim
