"""The LMCache server that engines share with `cache.mode: lmcache`."""

from anbar.config.exchange import PeerAddress
from anbar.config.fields import ConfigModel, Seconds


class LmcacheConfig(ConfigModel):
    """An LMCache server (`lmcache server`) that runs already; engines need the package `lmcache`."""

    server: PeerAddress = "127.0.0.1:5555"
    """Host and port of its request server. It asks nobody who he is: keep it on a network of your own."""

    timeout_s: Seconds = 20.0
    """How long an engine waits for an answer before it gives up. LMCache's own default is 300 s, for which a
    server that dies holds the engine up before it ends it."""

    heartbeat_s: Seconds = 2.0
    """How often an engine asks whether the server lives. From a missed answer on it computes instead."""
