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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

LIMIT_S = 120.0
ROUNDS = 3
PAUSE_S = 0.1
END = -1
"""The number of the message that ends a replay."""


def settle(router: str) -> None:
    """AssertionError when it is never quiet."""
    num_quiet, before = 0, None
    end_s = time.monotonic() + LIMIT_S
    with ThreadPoolExecutor(16) as threads:
        while num_quiet < ROUNDS:
            assert time.monotonic() < end_s, f"the router has not heard everything: {before}"
            time.sleep(PAUSE_S)
            engines = [e for e in _json(f"{router}/admin/engines")["engines"] if _is_followed(e)]
            heard = {engine["id"]: engine["kv_events"]["last_sequence"] for engine in engines}
            is_quiet = heard == before and all(threads.map(_has_no_more, engines))
            num_quiet, before = num_quiet + 1 if is_quiet else 0, heard


def _is_followed(engine: dict[str, Any]) -> bool:
    return engine["state"] == "ready" and engine["kv_events"]["address"]


def _has_no_more(engine: dict[str, Any]) -> bool:
    """Whether the engine, after a step, has published nothing that the router does not know."""
    events, url = engine["kv_events"], engine["url"]
    # Less than a block: nothing of it is cached or announced.
    _json(f"{url}/v1/completions", {"model": engine["models"][0], "prompt": [7], "max_tokens": 1})
    source = _json(f"{url}/kv_event_sources")["0"]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, round(1000 * LIMIT_S)
        socket.connect(source["replay_endpoint"].replace("*", "127.0.0.1"))
        socket.send_multipart([b"", (events["last_sequence"] + 1).to_bytes(8, "big")])
        replayed = int.from_bytes(socket.recv_multipart()[-2], "big", signed=True)
    return bool(events["complete"]) and replayed == END


def _json(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
        return json.load(reply)


if __name__ == "__main__":
    settle(sys.argv[1])
