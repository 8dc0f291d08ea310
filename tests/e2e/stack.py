"""A running stack as the end-to-end tests see it: a URL, the engines behind it, and what they say."""

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import yaml

from tests.e2e.settle import settle

REPO = Path(__file__).resolve().parents[2]
ANBAR = [str(REPO / ".venv/bin/python"), "-m", "anbar.cli.main"]
MODEL = "smollm2-135m-instruct"

WORDS = (
    *("river", "lantern", "copper", "window", "market", "garden", "engine", "winter", "letter", "mountain"),
    *("signal", "harvest", "silver", "bridge", "kitchen", "morning", "planet", "ribbon", "shadow", "teacher"),
    *("village", "wagon", "yellow", "anchor", "basket", "candle", "desert", "eagle"),
)


def prose(seed: int, num_words: int) -> str:
    """Text that no other seed shares a prefix with; one token a word for the small model."""
    rng = random.Random(seed)
    return f"Chronicle {seed}. " + " ".join(rng.choice(WORDS) for _ in range(num_words))


@dataclass(frozen=True)
class Engine:
    """One launched engine: `pid` leads the process group of all its processes."""

    id: str
    url: str
    pid: int

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of one of vLLM's metrics whose labels include `labels`."""
        text = httpx.get(f"{self.url}/metrics", timeout=60).text
        return sum_samples(text, name, labels)

    def kill(self) -> None:
        """SIGKILL the engine with all its processes, as a crash or the OOM killer would."""
        assert self.pid, "process group 0 would be this test's own"
        os.killpg(os.getpgid(self.pid), signal.SIGKILL)


def sum_samples(text: str, name: str, labels: Mapping[str, str]) -> float:
    """Sum of the samples of `name` in Prometheus text whose labels include `labels`; the metric must exist,
    or a test of a misspelt one could not fail."""
    assert f"# TYPE {name} " in text, f"there is no metric {name}"
    total = 0.0
    for line in text.splitlines():
        match = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        if match is None or match[1] != name:
            continue
        found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
        if labels.items() <= found.items():
            total += float(match[3])
    return total


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll `condition` every 50 ms; AssertionError naming `what` when it stays false."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.05)


@dataclass
class Answer:
    """A streamed answer with what the tests look at."""

    text: str
    usage: dict[str, Any]
    headers: httpx.Headers
    ttft_s: float
    chunks: list[dict[str, Any]]

    @property
    def engine(self) -> str:
        return self.headers["x-anbar-engine"]

    @property
    def predicted(self) -> int:
        return int(self.headers["x-anbar-cached-tokens-predicted"])

    @property
    def cached(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage["prompt_tokens"])


class Stack:
    """`anbar up` in a process of its own."""

    def __init__(self, config_path: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.config = yaml.safe_load(config_path.read_text())
        self.process = process
        self.output = output
        self.state_dir = Path(self.config["state_dir"])
        router = self.config["router"]
        self.url = f"http://127.0.0.1:{router['port']}"
        self.http = httpx.Client(base_url=self.url, timeout=120)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=120)

    def engines(self) -> dict[str, Engine]:
        """The engines that run now, from the state file."""
        parts = (part for part in self.state()["parts"] if part["kind"] in ("engine", "emulated"))
        return {part["name"]: Engine(part["name"], part["url"], part["pid"]) for part in parts}

    def state(self) -> dict[str, Any]:
        """The state file."""
        state: dict[str, Any] = json.loads((self.state_dir / "state.json").read_text())
        return state

    def attached(self) -> list[dict[str, Any]]:
        """The engines as the router's own configuration names them."""
        entries: list[dict[str, Any]] = yaml.safe_load((self.state_dir / "router.yaml").read_text())[
            "engines"
        ]
        return entries

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the router's own samples."""
        return sum_samples(self.http.get("/metrics").text, name, labels)

    def ready_engines(self) -> set[str]:
        """Ids of the engines that the router would send a request to."""
        return {engine["id"] for engine in self.admin() if engine["state"] == "ready"}

    def admin(self) -> list[dict[str, Any]]:
        """What the router says of each engine."""
        engines: list[dict[str, Any]] = self.http.get("/admin/engines").json()["engines"]
        return engines

    def complete(self, prompt: str | list[int], **fields: Any) -> Answer:
        """A greedy streamed completion."""
        return self._stream("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Answer:
        """A greedy streamed chat completion."""
        return self._stream("/v1/chat/completions", {"messages": messages, **fields})

    def tokenize(self, prompt: str) -> list[int]:
        """The prompt's token ids as an engine computes them."""
        engine = next(iter(self.engines().values()))
        body = {"model": MODEL, "prompt": prompt}
        return list(httpx.post(f"{engine.url}/tokenize", json=body, timeout=120).json()["tokens"])

    def settle(self) -> None:
        """Wait until the router has heard all that the engines had to say."""
        settle(self.url)

    def _stream(self, path: str, fields: dict[str, Any]) -> Answer:
        body = {
            "model": MODEL,
            "max_tokens": 8,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        start = time.monotonic()
        ttft_s, chunks = 0.0, []
        with self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise AssertionError(f"{response.status_code}: {response.read().decode()}")
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                ttft_s = ttft_s or time.monotonic() - start
                chunks.append(json.loads(line[6:]))
        text = "".join(
            choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            for chunk in chunks
            for choice in chunk["choices"]
        )
        usage = next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
        return Answer(text=text, usage=usage, headers=response.headers, ttft_s=ttft_s, chunks=chunks)


@contextmanager
def run_stack(
    config: dict[str, Any], directory: Path, options: Sequence[str] = (), ready_timeout_s: float = 500
) -> Iterator[Stack]:
    """`anbar up` with `config` and `options`, stopped at the end; its output is shown when it did not become
    ready."""
    config_path = directory / "anbar.yaml"
    config_path.write_text(yaml.safe_dump(config))
    output = directory / "up.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*ANBAR, "up", "--config", str(config_path), *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=REPO,
        )
    try:
        stack = Stack(config_path, process, output)
        deadline = time.monotonic() + ready_timeout_s
        while "curl" not in output.read_text():
            assert process.poll() is None, f"anbar up ended with {process.returncode}:\n{output.read_text()}"
            assert time.monotonic() < deadline, f"not ready in {ready_timeout_s} s:\n{output.read_text()}"
            time.sleep(0.2)
        with stack.http, stack.openai:
            yield stack
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], timeout_s: float = 120) -> int:
    """Ctrl-C, then wait; SIGKILL after `timeout_s`."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
