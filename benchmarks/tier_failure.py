"""tier-failure: how long a client waits for its first token when the server of a cache dies under an engine.

    make bench NAME=tier-failure
    python -m benchmarks.tier_failure [--only anbar lmcache] [--trials N]

Real vLLM with `cache.mode: shared` over a Valkey server, and with `cache.mode: lmcache` over a server of
LMCache (`make install-lmcache`). A prompt's KV is in the server and nowhere else: the engine's own caches are
emptied. Just before it is asked for again the server is frozen (SIGSTOP) or killed (SIGKILL). What is told is
the time to first token, beside that of the same prompt computed (its first time) and served from the cache,
whether the text is the same, and whether the engine lived. A frozen server goes on, a killed one is started
again, empty, before the next trial.
"""

import argparse
import http.client
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from tests.engine.engine import SERVED_NAME, Engine, EngineConfig, story
from tests.engine.lmcache_server import LmcacheServer
from tests.integration.valkey.servers import Server as ValkeyServer
from tests.ports import free_port

from anbar.apps import interpreter, model
from anbar.config.lmcache import LmcacheConfig
from anbar.config.models import CacheConfig, CacheMode, Loading
from anbar.config.stores import StoreConfig, StoreKind
from anbar.config.valkey import ValkeyStoreConfig
from benchmarks.report import Report, Series

NUM_YEARS = 20
"""Some 320 tokens of a prompt."""
MAX_TOKENS = 8
LIMIT_S = 120.0
"""Longest wait for an answer; who has none by then has failed."""
BACK_S = 60.0
"""Longest wait until a prompt is served from the cache."""
HOST_BYTES = 512 * 1024 * 1024
CACHED_SHARE = 0.8
"""Of a prompt, from which on it counts as served from the cache."""
LMCACHE_PYTHON = Path(".venv-lmcache/bin/python")


class Fault(StrEnum):
    """What happens to the server."""

    SIGSTOP = "SIGSTOP"
    SIGKILL = "SIGKILL"


class Server(Protocol):
    """What a cache's server does for this."""

    def start(self) -> None: ...

    def signal(self, number: signal.Signals) -> None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class First:
    """`ttft_s` is None when there was no answer in time, or an error."""

    ttft_s: float | None
    text: str = ""
    cached: int = 0
    num_tokens: int = 1


@dataclass
class Found:
    """Of one system: seconds by what was asked, and how often it went wrong."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    unanswered: int = 0
    other_text: int = 0
    ended: int = 0
    not_back: int = 0
    """Engines that had to be started again, for their cache did not come back with its server."""

    def add(self, name: str, first: First, text: str) -> None:
        """`text`: what the same prompt gave before."""
        if first.ttft_s is None:
            self.unanswered += 1
            self.seconds.setdefault(name, []).append(LIMIT_S)
            return
        self.seconds.setdefault(name, []).append(first.ttft_s)
        self.other_text += first.text != text


class System:
    """An engine, and the server of its cache. `forgets_host`: the engine has a cache of its own in host RAM,
    to be emptied too; where it is the server's, that would empty the server."""

    def __init__(self, name: str, server: Server, start: Callable[[], Engine], *, forgets_host: bool) -> None:
        self.name = name
        self._server = server
        self._start = start
        self._forgets_host = forgets_host
        self._engine: Engine | None = None
        self._number = 0
        self.found = Found()

    def trial(self, fault: Fault) -> None:
        """A new prompt, computed, served from the cache, and asked for while the server is away."""
        engine = self._running()
        self._number += 1
        prompt = story(100 + self._number, NUM_YEARS)
        computed = ask(engine, prompt)
        served = self._until_served(engine, prompt)
        if served is None:
            self.found.not_back += 1
            self.close()
            return
        engine.forget(host=self._forgets_host)
        with self._away(fault):
            answer = ask(engine, prompt)
        asked = {f"computed before {fault}": computed, "served": served, f"after {fault}": answer}
        for name, first in asked.items():
            self.found.add(name, first, computed.text)
        print(f"{self.name}: {fault}: {computed.ttft_s} {served.ttft_s} {answer.ttft_s}", flush=True)
        if not is_healthy(engine):
            self.found.ended += 1
            self.close()

    def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            self._engine.kill()
            self._engine = None

    def _until_served(self, engine: Engine, prompt: str) -> First | None:
        """Storing is done behind the answer, and a cache that was away is tried again after a while."""
        deadline_s = time.monotonic() + BACK_S
        while time.monotonic() < deadline_s:
            engine.forget(host=self._forgets_host)
            answer = ask(engine, prompt)
            if answer.cached > CACHED_SHARE * answer.num_tokens:
                return answer
            time.sleep(0.5)
        return None

    def _running(self) -> Engine:
        if self._engine is None:
            self._engine = self._start()
            self._engine.start()
            self._engine.wait_ready()
            ask(self._engine, story(1, 4))  # the first request of an engine takes longer
        return self._engine

    @contextmanager
    def _away(self, fault: Fault) -> Iterator[None]:
        if fault is Fault.SIGSTOP:
            self._server.signal(signal.SIGSTOP)
        else:
            self._server.kill()
        try:
            yield
        finally:
            if fault is Fault.SIGSTOP:
                self._server.signal(signal.SIGCONT)
            else:
                self._server.start()


def ask(engine: Engine, prompt: str) -> First:
    """A greedy stream: when its first token came, and all of its text."""
    body = {
        "model": SERVED_NAME,
        "prompt": prompt,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    started_s = time.monotonic()
    ttft_s, text = None, ""
    usage: dict[str, Any] = {}
    with suppress(OSError, http.client.HTTPException):
        for event in events(request):
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                if choice["text"] and ttft_s is None:
                    ttft_s = time.monotonic() - started_s
                text += choice["text"]
    if not usage:
        return First(None)
    details = usage.get("prompt_tokens_details") or {}
    return First(ttft_s, text, details.get("cached_tokens") or 0, usage["prompt_tokens"])


def events(request: urllib.request.Request) -> Iterator[dict[str, Any]]:
    """Of a stream, as they come."""
    with urllib.request.urlopen(request, timeout=LIMIT_S) as said:
        for line in said:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def is_healthy(engine: Engine) -> bool:
    """Whether it serves."""
    try:
        with urllib.request.urlopen(f"{engine.url}/health", timeout=LIMIT_S):
            return True
    except OSError:
        return False


def anbar(logs: Path, stack: ExitStack) -> System:
    """Ours, over Valkey, with the deadlines that are the defaults."""
    server = ValkeyServer(logs / "valkey")
    server.start()
    stack.callback(server.kill)
    valkey = ValkeyStoreConfig(nodes=(server.node,))
    store = StoreConfig(kind=StoreKind.VALKEY, valkey=valkey)
    cache = CacheConfig(mode=CacheMode.SHARED, host_bytes=HOST_BYTES, load=Loading.ALWAYS, store=store)
    return _system("anbar", server, cache, logs, _vllm(), forgets_host=True)


def lmcache(logs: Path, stack: ExitStack) -> System:
    """LMCache as Anbar configures it: a request waits for at most 20 s (its own default is 300)."""
    server = LmcacheServer(LMCACHE_PYTHON.absolute(), logs / "lmcache.log")
    server.start()
    stack.callback(server.kill)
    cache = CacheConfig(mode=CacheMode.LMCACHE, lmcache=LmcacheConfig(server=f"127.0.0.1:{server.port}"))
    return _system("lmcache", server, cache, logs, LMCACHE_PYTHON.absolute(), forgets_host=False)


def _system(
    name: str, server: Server, cache: CacheConfig, logs: Path, python: Path, *, forgets_host: bool
) -> System:
    found = interpreter.inspect(_vllm(), "benchmarks")
    smollm2 = model.ensure_default(found, model.models_dir(os.environ), lambda text: None)
    id = f"anbar-bench-{os.getpid()}-{name}"
    config = EngineConfig(id, smollm2, cache, num_blocks=48, max_model_len=1024)

    def start() -> Engine:
        return Engine(python, config, free_port(), logs / f"{name}.log")

    return System(name, server, start, forgets_host=forgets_host)


def _vllm() -> Path:
    return interpreter.choose(os.environ)[0]


SYSTEMS = {"anbar": anbar, "lmcache": lmcache}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--trials", type=int, default=4, help="of each fault")
    args = parser.parse_args()
    found: dict[str, Found] = {}
    for name in args.only:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            system = SYSTEMS[name](Path(folder), stack)
            stack.callback(system.close)
            found[name] = system.found
            for _ in range(args.trials):
                for fault in Fault:
                    system.trial(fault)
                    reported(args, found).write()  # a run that is cut short has told what it saw
    reported(args, found).show()


def reported(args: argparse.Namespace, found: dict[str, Found]) -> Report:
    """What is known by now."""
    setup = {"prompt": story(100, NUM_YEARS)[:80] + "...", "years": NUM_YEARS, "trials": args.trials}
    suffix = "" if len(args.only) == len(SYSTEMS) else "-" + "-".join(args.only)
    command = " ".join(["make bench NAME=tier-failure", *sys.argv[1:]])
    report = Report(f"tier-failure{suffix}", command, setup)
    for name, of in found.items():
        _record(report, name, of)
    return report


def _record(report: Report, name: str, found: Found) -> None:
    series = {of: Series(f"{name}: {of}", seconds) for of, seconds in found.seconds.items()}
    report.series += series.values()
    for fault in Fault:
        if after := series.get(f"after {fault}"):
            computed = series[f"computed before {fault}"]
            report.ratio(f"{name}: first token after {fault}, of computing", after, computed)
    report.figures[f"{name}: answers that did not come"] = found.unanswered
    report.figures[f"{name}: answers with another text"] = found.other_text
    report.figures[f"{name}: engines that ended"] = found.ended
    report.figures[f"{name}: engines whose cache did not come back"] = found.not_back


if __name__ == "__main__":
    main()
