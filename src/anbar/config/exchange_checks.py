"""What must agree where several routers find each other. Pure."""

from collections.abc import Iterator

from anbar.config.exchange import host_and_port
from anbar.config.models import AnbarConfig
from anbar.config.problems import KeyPath, Problem


def check_exchange(config: AnbarConfig) -> Iterator[Problem]:
    """Problems of `router.exchange` and `router.peers`."""
    router, exchange = config.router, config.router.exchange
    if exchange.secret_file is None and (router.peers or exchange.listen is not None):
        text = "is needed with router.peers and router.exchange.listen; `openssl rand -hex 32` makes a secret"
        yield Problem(("router", "exchange", "secret_file"), text)
    if exchange.listen is None:
        return
    where: KeyPath = ("router", "exchange", "listen")
    first = host_and_port(exchange.listen)[1]
    last = first + router.workers - 1
    if last > 65535:
        yield Problem(where, f"{router.workers} workers from {first} need ports up to {last}")
    if first <= router.port <= last:
        yield Problem(where, f"gives the workers the ports {first} to {last}, of which router.port is one")
