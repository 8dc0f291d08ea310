"""router-steps: what the interpreter does for one request that is answered with one token, counted.

Processor time is never the same twice; the number of calls and of steps of bytecode is, nearly. Chats that
were seen before go through a router one after the other, as in *no tokens* and *cached* of router-overhead,
and every step of every Python function is counted (`sys.settrace`); a coroutine that goes on counts as
called. What runs less than once in a request (probes, events) is left out. A step is no unit of time: some
call into C and do much there.
"""

import argparse
import asyncio
import contextlib
import json
import pickle
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.ports import free_port

import anbar
from anbar.apps.router.app import Router
from anbar.cli.main import main as command
from benchmarks.bare_engine import MODEL
from benchmarks.chats import Chats
from benchmarks.overhead_stage import START_TIMEOUT_S, Stage, Target, answering, call, send_all

Place = tuple[str, str]
"""A file and a function in it."""

ROWS = {"no tokens": "least_loaded", "cached": "predicted_ttft"}
NUM_REQUESTS = 160
_OF_REQUESTS = (str(Path(anbar.__file__).parent), "/jinja2/", "<template>")
"""In the paths of files whose functions count: the loop and the sockets of events work beside requests."""
_BESIDE = "/vllm/kv_"
"""But not these, which follow events; on a busy machine they look for some more than once in a request."""
NUM_SHOWN = 12
_PARTS = {
    "HTTP and JSON": ("adapters/http/",),
    "tokens": ("adapters/vllm/", "jinja2/", "<template>", "router/prompts.py"),
    "chains and index": (
        *("core/blocks.py", "route/chains.py", "route/index.py"),
        *("route/masks.py", "route/match.py", "route/residency.py", "route/rows.py"),
    ),
    "predictions and choice": ("route/policies/", "route/predict.py", "route/room.py", "core/fleet.py"),
    "metrics and log": ("adapters/telemetry/",),
}
"""What a part's files have in their path; the others are the rest: accounts, forwarding, self-check."""


def count_inside(out: Path, argv: list[str]) -> None:
    """Be `anbar ARGV`, a router, that counts from SIGUSR1 to SIGUSR2 and writes what it has counted."""
    steps, calls = Counter[CodeType](), Counter[CodeType]()

    def step(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            steps[frame.f_code] += 1
        return step

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        calls[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def end() -> None:
        sys.settrace(None)
        named = {(code.co_filename, code.co_qualname): (calls[code], num) for code, num in steps.items()}
        part = out.with_suffix(".part")
        part.write_bytes(pickle.dumps(named))
        part.replace(out)

    start: Callable[[Router], Any] = Router.start

    async def start_counting(router: Router) -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, sys.settrace, enter)
        loop.add_signal_handler(signal.SIGUSR2, end)
        return int(await start(router))

    Router.start = start_counting  # type: ignore[method-assign]
    sys.argv = ["anbar", *argv]
    command()


def counted(stage: Stage, policy: str, num_requests: int) -> dict[Place, tuple[float, float]]:
    """Calls and steps of each function in one request."""
    port, out = free_port(), stage.scratch / f"{policy}.counts"
    engines = [{"name": f"e{number}", "url": url} for number, url in enumerate(stage.engines)]
    config = stage.scratch / f"{policy}.yaml"
    quiet = {"port": port, "policy": policy, "health_interval_s": 300, "load_check_interval_s": 0}
    config.write_text(json.dumps({"state_dir": "state", "engines": engines, "router": quiet}))
    inside = [sys.executable, "-m", "benchmarks.router_steps", "--inside", str(out)]
    router = stage.run([*inside, "router", "--config", str(config)])
    answering(Target(policy, port, process=router), START_TIMEOUT_S)
    known = Chats(MODEL).known(400, False)
    for at in stage.ports:
        send_all(at, known)
    while json.loads(call(stage.ports[0], "/bench/backlog")):
        time.sleep(0.05)
    send_all(port, known * 8)  # more than the requests that all teach
    router.send_signal(signal.SIGUSR1)
    send_all(port, (known * (num_requests // len(known) + 1))[:num_requests])
    router.send_signal(signal.SIGUSR2)
    end_s = time.monotonic() + START_TIMEOUT_S
    while not out.exists():
        if time.monotonic() > end_s:
            raise TimeoutError("the router has not told what it has counted")
        time.sleep(0.05)
    found: dict[Place, tuple[int, int]] = pickle.loads(out.read_bytes())
    per = {place: (num / num_requests, steps / num_requests) for place, (num, steps) in found.items()}
    return {
        place: counts
        for place, counts in per.items()
        if counts[0] > 0.9 and any(name in place[0] for name in _OF_REQUESTS) and _BESIDE not in place[0]
    }


def part_of(file: str) -> str:
    return next((part for part, names in _PARTS.items() if any(name in file for name in names)), "the rest")


def show(row: str, counts: dict[Place, tuple[float, float]]) -> None:
    total = sum(steps for _, steps in counts.values())
    print(f"{row}: {sum(num for num, _ in counts.values()):.0f} calls, {total:.0f} steps")
    parts = Counter[str]()
    for (file, _), (_, steps) in counts.items():
        parts[part_of(file)] += steps  # type: ignore[assignment]
    for part, steps in parts.most_common():
        print(f"  {part}: {steps:.0f} steps, {steps / total:.1%}")
    most = sorted(counts.items(), key=lambda entry: -entry[1][1])[:NUM_SHOWN]
    for (file, name), (num, steps) in most:
        print(f"    {steps:5.0f} in {num:.1f} calls: {name} ({Path(file).name})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch, contextlib.ExitStack() as stack:
        stage = Stage(Path(scratch), stack)
        stage.run(
            [sys.executable, "-m", "benchmarks.bare_engine", "--model", str(stage.model)]
            + [str(port) for port in stage.ports]
        )
        answering(Target("engines", stage.ports[0]), START_TIMEOUT_S)
        for row, policy in ROWS.items():
            show(row, counted(stage, policy, options.requests))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        count_inside(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
