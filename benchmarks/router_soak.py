"""router-soak: does a router keep what it should have let go?

100,000 requests of all kinds through `anbar router` to four emulated engines, two of which publish KV events:
new and repeated prompts, conversations that grow, streams, clients that leave at any point, engines that
break off, bad bodies, unknown models, repetitions under one key, pages. The router's resident memory after
the first 10,000 and at the end: it must not have grown by more than 5 %. The answers are judged too: nothing
but what each kind of request must get, and counters at zero in the end.

Not all that is bounded is full by 10,000. The words (65,536), the pieces of text that a tokenizer keeps
(64 MiB), segments of hash chains (8,192) and the answers kept for repetitions are; placements go up and down;
the fingerprints of events (16,384 batches of each engine, some 1.5 MB) are full at about 50,000.

The engines take the time that an 8B model takes on an H100, by `SPEED`: engines that compute for nothing
store and drop more blocks than any engine could, and what is measured then is how far behind the router is.
It is printed beside the memory.

The allocator is the C library's own, set by the router as it always does (docs/decisions/020-allocator.md).
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.harness import Raw, call
from tests.ports import free_port, free_ports

from benchmarks.bare_engine import MODEL
from benchmarks.overhead_stage import START_TIMEOUT_S, Stage, Target, answering
from benchmarks.report import Report

NUM_REQUESTS, NUM_FIRST = 100_000, 10_000
WANTED_RATIO = 1.05
NUM_CLIENTS = 24
NUM_SESSIONS, NUM_DOCUMENTS, NUM_NAMES, NUM_WORDS = 2_000, 300, 50, 70_000
SETTLE_S = 3.0
NEW_WORDS = 800
"""Of a new prompt: 3,100 tokens."""
GIVE_UP_S = 120.0
SPEED = "4"
"""How much faster than an H100's 8B model the engines are."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PAGES = ("/metrics", "/v1/models", "/ready", "/health", "/admin/engines", "/admin/explain", "/nothing")
GAUGES = ("in_flight_requests", "queued_prefill_tokens", "decoding_requests", "ghost_requests")
FAULTS = ("status", "reset", "close", "reset_mid_stream", "truncate", "error_mid_stream")


def vocabulary(rng: random.Random) -> list[str]:
    return ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(NUM_WORDS)]


WORDS = vocabulary(random.Random(7))


def words(rng: random.Random, num_words: int) -> str:
    """Text that nobody has seen, of words that were seen but for the first."""
    return f"{rng.getrandbits(64):x} {' '.join(rng.choices(WORDS, k=num_words))}"


@dataclass
class Client:
    """One client that asks and asks, on connections that it keeps while they last."""

    port: int
    engine_ports: list[int]
    rng: random.Random
    documents: list[str]
    raw: Raw | None = None
    sessions: dict[int, list[dict[str, str]]] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def ask(self) -> None:
        """One request of some kind."""
        kind = self.rng.choices([*KINDS], [weight for weight, _ in KINDS.values()])[0]
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await KINDS[kind][1](self)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.statuses[f"{kind}: cut"] += 1
            self.raw = None  # an engine that breaks off breaks the client's connection
        except TimeoutError:
            self.wrong.append(f"{kind}: nothing within {GIVE_UP_S} s")
            self.raw = None

    async def post(
        self,
        kind: str,
        body: object,
        allowed: range | tuple[int, ...],
        path: str = COMPLETIONS,
        **headers: str,
    ) -> None:
        raw = await self._connection()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        raw.post(path, body, names)
        answer = await raw.answer()
        self.statuses[f"{kind}: {answer.status}"] += 1
        if answer.status not in allowed:
            self.wrong.append(f"{kind}: {answer.status} {answer.body[:200]!r}")

    async def new(self) -> None:
        await self.post("new", self._body(words(self.rng, NEW_WORDS)), SERVED)

    async def document(self) -> None:
        text = self.rng.choice(self.documents) + words(self.rng, 10)
        await self.post("document", self._body(text, stream=self.rng.random() < 0.5), SERVED)

    async def conversation(self) -> None:
        number = self.rng.randrange(NUM_SESSIONS)
        messages = self.sessions.setdefault(number, [])
        if len(messages) > 7:
            messages.clear()
        messages.append({"role": "user", "content": words(self.rng, 50)})
        body = {"model": self._name(), "messages": messages, "max_tokens": 8, "stream": True}
        await self.post("conversation", body, SERVED, CHAT, x_session_id=f"session-{id(self)}-{number}")
        messages.append({"role": "assistant", "content": "an answer"})

    async def leave(self) -> None:
        """Go away before, at or after the first byte."""
        body = self._body(words(self.rng, 40), stream=self.rng.random() < 0.7, max_tokens=200)
        raw = Raw(*await asyncio.open_connection("127.0.0.1", self.port))
        raw.post(COMPLETIONS, body)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if self.rng.random() < 0.6:
                await raw.head()
                await raw.reader.read(self.rng.randrange(1, 2000))
            await raw.abort()
        self.statuses["leave"] += 1

    async def bad(self) -> None:
        bodies = (b"{", b'{"model": 3}', b"\xff" * 100, {"model": MODEL}, self._body("a", n=-1), [1])
        await self.post("bad", self.rng.choice(bodies), (400,))
        await self.post("unknown", {"model": words(self.rng, 3), "prompt": "a"}, (404,))

    async def too_long(self) -> None:
        await self.post("too long", self._body(words(self.rng, 9000)), (400,))

    async def repeat(self) -> None:
        body, key = self._body(words(self.rng, 15)), f"{self.rng.getrandbits(64):x}"
        for _ in range(2):
            await self.post("repeat", body, SERVED, idempotency_key=key)

    async def page(self) -> None:
        raw = await self._connection()
        path = self.rng.choice(PAGES)
        raw.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        self.statuses[f"{path}: {(await raw.answer()).status}"] += 1

    async def fault(self) -> None:
        """The next request to some engine fails."""
        fault = {"kind": self.rng.choice(FAULTS), "count": 1}
        await call(self.rng.choice(self.engine_ports), "POST", "/emulator/fault", fault)

    def _name(self) -> str:
        return f"name-{self.rng.randrange(NUM_NAMES)}" if self.rng.random() < 0.5 else MODEL

    def _body(self, prompt: str, **fields: object) -> dict[str, object]:
        return {"model": self._name(), "prompt": prompt, "max_tokens": 4, "user": f"{id(self)}", **fields}

    async def _connection(self) -> Raw:
        if self.raw is None or self.rng.random() < 0.02:
            if self.raw is not None:
                await self.raw.close()
            self.raw = Raw(*await asyncio.open_connection("127.0.0.1", self.port))
        return self.raw


SERVED = (200, 429, 500, 502, 503, 504)
"""Of a request that is right, when engines break off."""

KINDS: dict[str, tuple[float, Callable[[Client], object]]] = {
    "new": (30, Client.new),
    "document": (15, Client.document),
    "conversation": (25, Client.conversation),
    "leave": (12, Client.leave),
    "bad": (6, Client.bad),
    "too long": (0.3, Client.too_long),
    "repeat": (4, Client.repeat),
    "page": (2, Client.page),
    "fault": (0.5, Client.fault),
}


class Soak:
    """The stage and the course of the run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.engine_ports: list[int] = []
        for with_events in (True, False):
            self._engines(with_events)
        for port in self.engine_ports:
            answering(Target("engine", port), START_TIMEOUT_S)
        self.port = free_port()
        self.router = stage.run(
            [sys.executable, "-m", "anbar.cli.main", "router", "--config", str(self._config())]
        )
        answering(Target("router", self.port), START_TIMEOUT_S)
        self.rss: list[tuple[int, float]] = []
        """Requests so far, and the router's MiB."""

    def _engines(self, with_events: bool) -> None:
        ports = free_ports(2)
        argv = [sys.executable, "-m", "anbar.cli.main", "emulate", "--model", str(self._stage.model)]
        argv += ["--served-model-name", MODEL, "--port", str(ports[0]), "--count", "2", "--speed", SPEED]
        argv += ["--num-gpu-blocks-override", "2000", "--enable-prompt-tokens-details"]
        if with_events:
            events = free_ports(4)
            config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{events[0]}"}
            config["replay_endpoint"] = f"tcp://*:{events[2]}"
            argv += ["--kv-events-config", json.dumps(config)]
        self._stage.run(argv)
        self.engine_ports += ports

    def _config(self) -> Path:
        engines = [
            {"name": f"e{number}", "url": f"http://127.0.0.1:{port}"}
            for number, port in enumerate(self.engine_ports)
        ]
        router = {
            "port": self.port,
            "models": {f"name-{number}": [{"model": MODEL}] for number in range(NUM_NAMES)},
            "record": {"path": "blocks.jsonl", "file_bytes": 1024**2, "files": 2},
            "idempotency_max_bytes": 2**20,
            "load_check_interval_s": 1.0,
        }
        path = self._stage.scratch / "anbar.yaml"
        path.write_text(json.dumps({"state_dir": "state", "engines": engines, "router": router}))
        return path

    async def run(self, num_requests: int, num_first: int, seed: int) -> list[Client]:
        """All requests; memory is looked at after each `num_first`, while nothing runs."""
        rng = random.Random(seed)
        documents = [words(rng, 500) for _ in range(NUM_DOCUMENTS)]
        clients = [
            Client(self.port, self.engine_ports, random.Random(f"{seed} {number}"), documents)
            for number in range(NUM_CLIENTS)
        ]
        for done in range(0, num_requests, num_first):
            left = iter(range(min(num_first, num_requests - done)))
            began_s = time.perf_counter()
            await asyncio.gather(*(self._work(client, left) for client in clients))
            took_s = time.perf_counter() - began_s
            await asyncio.sleep(SETTLE_S)
            mib = self.router.memory_info().rss / 2**20
            self.rss.append((done + num_first, mib))
            behind = await self.behind()
            print(
                f"{done + num_first:7} requests, {num_first / took_s:5.0f}/s: {mib:.1f} MiB; {behind}",
                flush=True,
            )
        return clients

    async def behind(self) -> str:
        """How far the events of each engine that has some were taken in."""
        page = json.loads((await call(self.port, "GET", "/admin/engines")).body)
        told = [engine["kv_events"] | engine["self_check"] for engine in page["engines"]]
        keys = ("last_sequence", "lag_s", "waiting", "dropped", "replays", "rebuilds")
        return "; ".join(" ".join(f"{key} {kv[key]}" for key in keys) for kv in told if kv["address"])

    @staticmethod
    async def _work(client: Client, left: object) -> None:
        for _ in left:  # type: ignore[attr-defined]
            await client.ask()
        if client.raw is not None:
            await client.raw.close()
            client.raw = None

    def defects(self) -> list[str]:
        """What the router has logged of errors that nobody expected, with where they came from."""
        told = (path.read_text(errors="replace").splitlines() for path in self._stage.scratch.glob("*.log"))
        return [line for lines in told for line in lines if '"defect"' in line or "Traceback" in line]

    async def counters(self) -> dict[str, float]:
        """What should be zero when nothing runs."""
        lines = (await call(self.port, "GET", "/metrics")).body.decode().splitlines()
        found: Counter[str] = Counter()
        for line in lines:
            name = line.partition("{")[0].removeprefix("anbar_router_")
            if name in GAUGES or name == "defects_total":
                found[name] += float(line.rpartition(" ")[2])
        return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--first", type=int, default=NUM_FIRST)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        soak = Soak(Stage(Path(scratch), stack))
        clients = asyncio.run(soak.run(options.requests, options.first, options.seed))
        counters = asyncio.run(soak.counters())
        cpu_s = sum(soak.router.cpu_times()[:2])
        defects = soak.defects()
    statuses = sum((client.statuses for client in clients), Counter[str]())
    wrong = [text for client in clients for text in client.wrong]
    first, last = soak.rss[0][1], soak.rss[-1][1]
    report = Report("router-soak", "make soak-router", {"requests": options.requests, "seed": options.seed})
    report.ratios[f"memory after {soak.rss[-1][0]:,} requests / after {soak.rss[0][0]:,}"] = last / first
    report.figures |= {f"MiB after {number:,}": round(mib, 1) for number, mib in soak.rss}
    report.figures["processor ms per request"] = round(cpu_s / options.requests * 1e3, 2)
    report.setup |= {"answers": dict(sorted(statuses.items())), "counters at the end": counters}
    report.show()
    for line in (*sorted(f"{count:7} {what}" for what, count in statuses.items()), *wrong[:20], *defects):
        print(line)
    if options.write:
        print(f"written: {report.write()}")
    if wrong or any(counters.values()):
        sys.exit(f"{len(wrong)} wrong answers; counters: {counters}")
    if last / first > WANTED_RATIO:
        sys.exit(f"the router's memory has grown by {last / first - 1:.1%}")


if __name__ == "__main__":
    main()
