"""How servers become a cluster of three primaries, and what its nodes tell of it."""

from collections.abc import Sequence

from anbar.adapters.store.valkey.names import NUM_SLOTS
from tests.integration.valkey.servers import Server
from tests.waiting import wait_until

PRIMARIES = 3


def form(servers: Sequence[Server]) -> None:
    """Start the servers and make them one cluster; those after the primaries are replicas of the first."""
    for number, one in enumerate(servers):
        one.start()
        one.ask(b"CLUSTER", b"SET-CONFIG-EPOCH", b"%d" % (number + 1))
    bounds = [NUM_SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
    for number, one in enumerate(servers[:PRIMARIES]):
        one.ask(b"CLUSTER", b"ADDSLOTSRANGE", b"%d" % bounds[number], b"%d" % (bounds[number + 1] - 1))
    for one in servers[1:]:
        one.ask(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % servers[0].port, b"%d" % servers[0].bus_port)
    wait_until(lambda: all(told(one).count("connected") == len(servers) for one in servers))
    for one in servers[PRIMARIES:]:
        wait_until(lambda one=one: one.ask(b"CLUSTER", b"REPLICATE", name_of(servers[0])) == b"OK")
    wait_until(lambda: all("cluster_state:ok" in info(one, b"CLUSTER", b"INFO") for one in servers))
    for one in servers[PRIMARIES:]:
        wait_until(lambda one=one: "master_link_status:up" in info(one, b"INFO"))
    wait_until(lambda: all(told(one).count("slave ") == len(servers) - PRIMARIES for one in servers))


def info(one: Server, *request: bytes) -> str:
    reply = one.ask(*request)
    return reply.decode() if isinstance(reply, bytes) else ""


def told(one: Server) -> str:
    """What a node knows of all: a line each."""
    return info(one, b"CLUSTER", b"NODES").replace("disconnected", "")


def name_of(one: Server) -> bytes:
    """The name by which nodes know each other."""
    return info(one, b"CLUSTER", b"MYID").encode()
