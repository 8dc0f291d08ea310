"""What `cache.mode: lmcache` needs beside vLLM."""

import socket
from collections.abc import Iterator

from anbar.apps.doctor.finding import Finding, fail, ok
from anbar.apps.interpreter import Interpreter
from anbar.config.exchange import host_and_port
from anbar.config.lmcache import LmcacheConfig

SUPPORTED_LMCACHE = "0.5"
_CONNECT_TIMEOUT_S = 2.0


def check_lmcache(config: LmcacheConfig, interpreter: Interpreter) -> Iterator[Finding]:
    """The package in the engine's interpreter, and a server that listens."""
    found, where = interpreter.lmcache, f"{interpreter.path} ({interpreter.origin})"
    fix = f"{interpreter.path} -m pip install 'lmcache=={SUPPORTED_LMCACHE}.*'"
    if found is None:
        yield fail("LMCache", f"cache.mode is lmcache, and there is no LMCache in {where}", fix)
    elif not found.startswith(f"{SUPPORTED_LMCACHE}."):
        yield fail("LMCache", f"{found} in {where} is not supported, only {SUPPORTED_LMCACHE}.*", fix)
    else:
        yield ok("LMCache", f"{found} in {where}")
    host, port = host_and_port(config.server)
    try:
        socket.create_connection((host, port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        what = f"no LMCache server at {config.server} (cache.lmcache.server): {error.strerror or error}"
        yield fail(
            "LMCache server",
            what,
            f"lmcache server --host {host} --port {port} --l1-size-gb 4 --eviction-policy LRU",
        )
    else:
        yield ok("LMCache server", f"listens at {config.server}")
