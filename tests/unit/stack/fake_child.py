"""A child process with an engine's bad habits, in a hundredth of its size. Run as a script."""

import argparse
import os
import signal
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

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
    options = parser.parse_args()
    for _ in range(options.children):
        if os.fork() == 0:
            if options.own_session:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
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
        HTTPServer(("127.0.0.1", options.port), Health).serve_forever()
    time.sleep(60)


if __name__ == "__main__":
    main()
