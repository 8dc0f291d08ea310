"""One real vLLM engine as a child process, and what the tests ask of it over HTTP.

Its command is the one that `anbar up` would run (`anbar.config.render.engine_command`), so what is tested is
what a user gets.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anbar.adapters.process import guard
from anbar.adapters.process.cleanup import make_scratch_dir, remove_scratch_dir
from anbar.config.models import CacheConfig, CacheMode, Device, Dtype, LaunchConfig, Loading
from anbar.config.render import EngineCommand, EngineSlot, engine_command
from anbar.config.scope_rules import tenant_settings
from anbar.config.split import SplitVia
from anbar.config.stores import StoreConfig, store_settings
from anbar.config.tenants import TenantsConfig

READY_TIMEOUT_S = 600.0
LIMIT_S = 120.0
"""For whatever must come; nothing that works takes so long, however busy the machine is."""
BLOCK = 32
"""Tokens per block: the smallest that the CPU backend takes, so that short prompts make several blocks."""
SERVED_NAME = "m"
MIB = 1024 * 1024


@dataclass(frozen=True)
class EngineConfig:
    """What differs between the engines of these tests."""

    name: str
    model: Path
    cache: CacheConfig
    num_blocks: int = 64
    max_model_len: int = 1536
    cores: tuple[tuple[int, ...], ...] = ()
    """CPU ids of each worker; (): one worker, on all cores."""
    via: SplitVia = SplitVia.NONE
    tenants: TenantsConfig | None = None
    state_dir: Path | None = None
    """Where the tenants' data keys are. None: in a directory of the engine's own."""
    adapters: Path | None = None
    """Where its two LoRA adapters are, `a` and `b`; None: it has none."""
    env: Mapping[str, str] = field(default_factory=dict)

    def launch(self) -> LaunchConfig:
        """As in anbar.yaml. The development endpoints let tests empty an engine's caches."""
        return LaunchConfig(
            max_model_len=self.max_model_len,
            num_device_blocks=self.num_blocks,
            block_size=BLOCK,
            tensor_parallel=max(1, len(self.cores)),
            env={"VLLM_SERVER_DEV_MODE": "1", **self.env},
            args=() if self.adapters is None else _lora_args(self.adapters),
            weights_id=None if self.adapters is None else "a model and two adapters",
        )


def _lora_args(adapters: Path) -> tuple[str, ...]:
    modules = (f"{name}={adapters / name}" for name in ("a", "b"))
    return ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules", *modules)


def plain() -> CacheConfig:
    """KV that leaves the device is gone."""
    return CacheConfig(mode=CacheMode.NONE)


def native() -> CacheConfig:
    """Offload to host RAM."""
    return CacheConfig(mode=CacheMode.NATIVE, host_bytes=768 * MIB)


def shared(store: Path, host_bytes: int = 768 * MIB, chunk_blocks: int = 1) -> CacheConfig:
    """Offload to host RAM and to a store of files, and load whatever is there: how long a load takes on a
    busy machine decides nothing."""
    return CacheConfig(
        mode=CacheMode.SHARED,
        host_bytes=host_bytes,
        chunk_blocks=chunk_blocks,
        load=Loading.ALWAYS,
        store=StoreConfig(path=store, id="test"),
    )


@dataclass(frozen=True)
class Answer:
    """`seconds` from request to the whole answer; `cached` as vLLM reports it."""

    text: str
    prompt_tokens: int
    cached: int
    seconds: float


class Engine:
    """Start it, ask it, end it."""

    def __init__(self, python: Path, config: EngineConfig, port: int, log: Path) -> None:
        self.config = config
        self.url = f"http://127.0.0.1:{port}"
        self._python = python
        self._port = port
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._record = log.with_suffix(".json")
        self._scratch_dir: Path | None = None

    @property
    def region(self) -> Path:
        """The host region's file, while it has a name."""
        return Path(f"/dev/shm/vllm_offload_{self.config.name}.mmap")

    def start(self) -> None:
        """Start the engine behind a guard, as `anbar up` does: nothing of it outlives the test run, however
        that ends. It is not ready yet."""
        self._scratch_dir = make_scratch_dir()
        command = self._command(self._scratch_dir)
        with self._log.open("wb") as log, open(os.devnull, "wb") as untold:
            options = ["--record", str(self._record), "--grace-s", "30", "--tell", str(untold.fileno())]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *options, "--", *command.argv],
                env={**os.environ, **command.env},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(untold.fileno(),),
            )

    @property
    def is_running(self) -> bool:
        """Started, and not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the guard, below which are the engine's processes."""
        assert self._process is not None
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it serves; fails with the end of its log."""
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                assert self._process is not None
                assert self._process.poll() is None, self.log_tail()
                assert time.monotonic() < deadline_s, self.log_tail()
                time.sleep(0.5)

    def terminate(self, timeout_s: float = LIMIT_S) -> None:
        """End it as a supervisor does: SIGTERM to the server, SIGKILL to what is left."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to all its processes at once; no harm when it has ended. vLLM's message queues in /dev/shm
        would outlive that: the guard, which lives on, removes them."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                main = int(json.loads(self._record.read_text())["main"])
                assert main > 0, "process group 0 would be this test's own"
                os.killpg(main, signal.SIGKILL)
            self._process.stdin.close()
            self._process.wait(LIMIT_S)
        if self._scratch_dir is not None:
            remove_scratch_dir(self._scratch_dir)

    def complete(self, prompt: str | list[int], max_tokens: int = 8, **fields: object) -> Answer:
        """A greedy completion of exactly `max_tokens` tokens."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **fields}
        data, seconds = self._post("/v1/completions", {"model": SERVED_NAME, **body})
        return _answer(data, data["choices"][0]["text"], seconds)

    def chat(self, messages: list[dict[str, str]], max_tokens: int, **fields: object) -> Answer:
        """A greedy chat completion."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}
        data, seconds = self._post("/v1/chat/completions", {"model": SERVED_NAME, **body})
        return _answer(data, data["choices"][0]["message"]["content"], seconds)

    def tokenize(self, **body: object) -> list[int]:
        """Token ids of a prompt or of messages."""
        data, _ = self._post("/tokenize", {"model": SERVED_NAME, **body})
        tokens: list[int] = data["tokens"]
        return tokens

    def heard(self, ask: Callable[[], Answer]) -> Answer:
        """The answer to `ask()` for which the store answered in time. An engine that waits for it for half a
        second computes instead, and lets it alone for a while: then both caches are dropped and it is asked
        again."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            before = self.num_unheard()
            answer = ask()
            if self.num_unheard() == before or time.monotonic() > deadline_s:
                return answer
            time.sleep(2.0)
            self.forget(host=True)

    def num_unheard(self) -> float:
        """Keys that the store was not asked for, or about which it said nothing in time."""
        return sum(
            self.metric(f"anbar_tier_{series}_total", result=result)
            for series in ("lookups", "loads")
            for result in ("timeout", "error", "refused", "queue_full")
        )

    def forget(self, *, host: bool = False) -> None:
        """Drop the device's prefix cache, and the host tier with `host`. The store is kept."""
        deadline_s = time.monotonic() + LIMIT_S
        path = f"/reset_prefix_cache?reset_external={'true' if host else 'false'}"
        while not self._post(path, None)[0]["success"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels; 0.0 when there are none."""
        total = 0.0
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=LIMIT_S) as response:
            for line in response.read().decode().splitlines():
                match = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
                if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
                    total += float(match[2])
        return total

    def wait_metric(self, name: str, minimum: float, **labels: str) -> float:
        """Wait until a metric has reached `minimum`; vLLM publishes once per step."""
        deadline_s = time.monotonic() + LIMIT_S
        while (value := self.metric(name, **labels)) < minimum:
            assert time.monotonic() < deadline_s, f"{name}{labels} is {value}, expected {minimum}"
            time.sleep(0.1)
        return value

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])

    def _post(self, path: str, body: object) -> tuple[dict[str, Any], float]:
        data = json.dumps(body).encode() if body is not None else b""
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}, method="POST"
        )
        started_s = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return json.load(response), time.monotonic() - started_s
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from error

    def _command(self, scratch_dir: Path) -> EngineCommand:
        config = self.config
        slot = EngineSlot(
            id=config.name,
            model=str(config.model),
            served_name=SERVED_NAME,
            device=Device.CPU,
            dtype=Dtype.FLOAT32,  # equal greedy tokens, whatever the batch
            port=self._port,
            scratch_dir=scratch_dir,
            region=config.name,
            threads=config.cores or (tuple(sorted(os.sched_getaffinity(0))),),
        )
        tier: dict[str, Any] = {"store": store_settings(config.cache.store, scratch_dir)}
        if config.tenants is not None:
            tier["tenants"] = tenant_settings(config.tenants, config.state_dir or scratch_dir)
        return engine_command(self._python, config.launch(), config.cache, slot, tier, config.via)


def _answer(data: dict[str, Any], text: str, seconds: float) -> Answer:
    usage = data["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return Answer(text, usage["prompt_tokens"], details.get("cached_tokens") or 0, seconds)


def story(seed: int, num_years: int = 60) -> str:
    """A text that differs from its first words on; about 16 tokens a year, easy to continue."""
    first = 1000 + 37 * seed
    years = (f"In year {first + i} the river {seed} rose {i} spans." for i in range(num_years))
    return f"Chronicle {seed}. " + " ".join(years)
