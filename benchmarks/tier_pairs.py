"""The same prompts, which nobody has seen, to an engine without a shared cache and to one with it."""

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from tests.engine.engine import Engine, EngineConfig, native, plain
from tests.ports import free_port

from anbar.config.models import CacheConfig, CacheMode
from anbar.config.stores import StoreConfig

MIB = 1024 * 1024
PROMPT_TOKENS, ANSWER_TOKENS = 448, 8
REQUESTS, STREAMS = 4, 2
"""Of one half of a pair, and how many of them at a time: some seven seconds."""

SETTLE_S = 0.5
"""After a half, in which what is still being stored ends; its CPU counts, its time does not."""


@dataclass(frozen=True)
class Bounds:
    """Of the directory and of host RAM: full after the first pairs, so that both evict as in production."""

    store_bytes: int = 512 * MIB
    host_bytes: int = 384 * MIB


@dataclass(frozen=True)
class Half:
    """One engine's half of a pair. `seconds` until the last answer; `cpu_s` of all the engine's processes,
    until it has settled."""

    seconds: float
    cpu_s: float
    tokens: int


@dataclass(frozen=True)
class Interval:
    """A ratio of many pairs: the geometric mean, its 95 % interval (bootstrap over pairs), and the median."""

    mean: float
    low: float
    high: float
    median: float


def interval(ratios: Sequence[float], resamples: int = 20_000) -> Interval:
    logs = np.log(np.asarray(ratios))
    rng = np.random.default_rng(7)
    means = rng.choice(logs, (resamples, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    return Interval(float(np.exp(logs.mean())), float(low), float(high), statistics.median(ratios))


def caches(directory: Path, bounds: Bounds) -> dict[str, CacheConfig]:
    """By name; `off` is what the others are compared with."""
    store = StoreConfig(path=directory / "store", capacity_bytes=bounds.store_bytes)
    return {
        "off": plain(),
        "native": native().model_copy(update={"host_bytes": bounds.host_bytes}),
        "shared": CacheConfig(mode=CacheMode.SHARED, host_bytes=bounds.host_bytes, store=store),
    }


@dataclass(frozen=True)
class Compared:
    """What is measured: engines of `model`, by the names of `caches`, so many pairs."""

    model: Path
    bounds: Bounds
    names: Sequence[str]
    pairs: int


def run_pairs(
    python: Path, compared: Compared, directory: Path, say: Callable[[str], None]
) -> tuple[dict[str, list[Half]], dict[str, float]]:
    """Halves by engine, one a pair; and what the shared one's tier counted. The order within a pair turns."""
    names, pairs = compared.names, compared.pairs
    settings = caches(directory, compared.bounds)
    halves: dict[str, list[Half]] = {name: [] for name in names}
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for name in names:
            config = EngineConfig(f"over-{name}-{os.getpid()}", compared.model, settings[name])
            engine = engines[name] = Engine(python, config, free_port(), directory / f"{name}.log")
            stack.callback(engine.kill)
            engine.start()
        for engine in engines.values():
            engine.wait_ready()
        for pair in range(pairs + 2):  # two warm up
            order = [*names[pair % len(names) :], *names[: pair % len(names)]]
            for name in order:
                half = ask(engines[name], pair)
                if pair >= 2:
                    halves[name].append(half)
            say(f"pair {pair - 1} of {pairs}: " + ", ".join(_told(halves, name) for name in names))
        counted = _counted(engines["shared"]) if "shared" in engines else {}
    return halves, counted


def ask(engine: Engine, seed: int) -> Half:
    """Equal prompts for equal seeds."""
    chance = random.Random(seed)
    prompts = [[chance.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(REQUESTS)]
    processes = _processes(engine)
    cpu_s, began_s = _cpu_s(processes), time.monotonic()
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(lambda prompt: engine.complete(prompt, ANSWER_TOKENS), prompts))
    seconds = time.monotonic() - began_s
    assert not any(answer.cached for answer in answers), "a prompt was not new"
    time.sleep(SETTLE_S)
    tokens = sum(answer.prompt_tokens for answer in answers) + REQUESTS * ANSWER_TOKENS
    return Half(seconds, _cpu_s(processes) - cpu_s, tokens)


def _processes(engine: Engine) -> list[psutil.Process]:
    main = psutil.Process(engine.pid)
    return [main, *main.children(recursive=True)]


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _told(halves: dict[str, list[Half]], name: str) -> str:
    last = halves[name][-1:] or [Half(0.0, 0.0, 0)]
    return f"{name} {last[0].seconds:.2f} s, {last[0].cpu_s:.2f} CPU s"


def _counted(engine: Engine) -> dict[str, float]:
    """What shows that there was something to store and nothing to load."""
    counted = {
        f"{name}:{result}": engine.metric(f"anbar_tier_{name}_total", result=result)
        for name in ("lookups", "stores")
        for result in ("hit", "miss", "timeout", "error", "refused", "queue_full", "filtered")
    }
    counted["bytes stored"] = engine.metric("anbar_tier_bytes_total", direction="store")
    counted["bytes loaded"] = engine.metric("anbar_tier_bytes_total", direction="load")
    return {name: value for name, value in counted.items() if value}
