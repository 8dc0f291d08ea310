"""Waits until a router has heard all that its engines have to say of their caches.

An engine publishes stores into host RAM and the shared store some steps after the answer, and on a busy
machine one may stand still and say nothing for seconds. So quiet is not measured in seconds: in several
rounds each engine is made to take a step, and has then published nothing that the router has not taken in.

    python settle.py ROUTER_URL
"""

import json
import sys
import time
import urllib.request
from typing import Any

import zmq

LIMIT_S = 120.0
ROUNDS = 3
PAUSE_S = 0.1


def settle(router: str) -> None:
    """AssertionError when it is never quiet."""
    quiet, before = 0, None
    end_s = time.monotonic() + LIMIT_S
    while quiet < ROUNDS:
        assert time.monotonic() < end_s, f"the router has not heard everything: {before}"
        time.sleep(PAUSE_S)
        engines = [engine for engine in _json(f"{router}/admin/engines")["engines"] if _is_followed(engine)]
        for engine in engines:
            _take_a_step(engine["url"])
        heard = {engine["id"]: engine["kv_events"]["last_sequence"] for engine in engines}
        is_quiet = (
            heard == before
            and all(engine["kv_events"]["complete"] for engine in engines)
            and not any(_has_more(engine["url"], heard[engine["id"]]) for engine in engines)
        )
        quiet, before = quiet + 1 if is_quiet else 0, heard


def _is_followed(engine: dict[str, Any]) -> bool:
    return engine["state"] == "ready" and engine["kv_events"]["address"]


def _take_a_step(engine: str) -> None:
    """The shortest completion: less than a block, so that nothing of it is cached or announced."""
    model = _json(f"{engine}/v1/models")["data"][0]["id"]
    _json(f"{engine}/v1/completions", {"model": model, "prompt": [7], "max_tokens": 1})


def _has_more(engine: str, last: int) -> bool:
    """Whether the engine has published batches after that one; its replay ends with one of number -1."""
    source = _json(f"{engine}/kv_event_sources")["0"]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, round(1000 * LIMIT_S)
        socket.connect(source["replay_endpoint"].replace("*", "127.0.0.1"))
        socket.send_multipart([b"", (last + 1).to_bytes(8, "big")])
        return int.from_bytes(socket.recv_multipart()[-2], "big", signed=True) >= 0


def _json(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        return json.load(reply)


if __name__ == "__main__":
    settle(sys.argv[1])
