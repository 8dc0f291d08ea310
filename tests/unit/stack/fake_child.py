"""A child process with an engine's bad habits, in a hundredth of its size. Run as a script.

It answers what a launcher and a router ask before they count an engine as ready, and one chat. What engines
really answer is the emulator's affair.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

LIFE_S = 600.0
"""Longer than any test: none may pass since a child ended by itself."""


class Pages(BaseHTTPRequestHandler):
    def __init__(self, model: str, *args: Any) -> None:
        self.pages = {
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/metrics": {},
            "/v1/models": {
                "object": "list",
                "data": [{"id": model, "object": "model", "max_model_len": 256}],
            },
            "/v1/chat/completions": {"choices": [{"message": {"role": "assistant", "content": "A house."}}]},
        }
        super().__init__(*args)

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        body = json.dumps(page).encode()
        self.send_response(200 if page is not None else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *args: object) -> None:
        return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--own-session", action="store_true", help="children leave the session")
    parser.add_argument("--shm", action="store_true")
    parser.add_argument("--litter", action="store_true", help="temporary files that stay")
    parser.add_argument("--exit-code", type=int)
    parser.add_argument("--die-once", help="a file: exit 3 if it does not exist, after creating it")
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name", default="fake-model")
    options = parser.parse_args()
    for _ in range(options.children):
        if os.fork() == 0:
            if options.own_session:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(LIFE_S)
            os._exit(0)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.litter:
        place = Path(tempfile.gettempdir())
        (place / f"vllm_dist_{os.getpid()}").write_text("as vLLM leaves behind")
        (place / "torchinductor").mkdir(exist_ok=True)
    if options.shm:
        segment = shared_memory.SharedMemory(create=True, size=4096)
        resource_tracker.unregister(segment._name, "shared_memory")
        print(f"shm {segment.name}", flush=True)
    print("started", flush=True)
    time.sleep(options.delay_s)
    if options.die_once is not None and not os.path.exists(options.die_once):
        with open(options.die_once, "w"):
            pass
        sys.exit(3)
    if options.exit_code is not None:
        print("something went wrong", flush=True)
        sys.exit(options.exit_code)
    if options.port is not None:
        pages = partial(Pages, options.served_model_name)
        ThreadingHTTPServer(("127.0.0.1", options.port), pages).serve_forever()
    time.sleep(LIFE_S)


if __name__ == "__main__":
    main()
