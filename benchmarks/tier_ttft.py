"""tier-ttft: time to first token of prompts that a tier holds, and whether engines load them when that pays.

One real vLLM engine for each store: a directory in memory, a Valkey server, an S3 server, and a Valkey server
behind a link (`slow`) that is late and slow enough for loading to pay only beyond some 400 tokens. Prompts
are token ids that nobody has seen. Each is computed and stored, then asked for again in a random order, with
an empty device cache and, but for *host*, empty host RAM:

- *recompute*: nothing is looked up;
- *load*: the request says that computing takes for ever, so that the engine loads;
- *skip*: it says that computing takes no time, so that the engine looks up and computes;
- *auto*: it says nothing, and the engine decides by what it has measured;
- *host*: from host RAM.

A decision of *auto* is right when it is the side whose median was lower; where the two are within `--noise`
of each other either is. `--add` keeps what the last run found of other stores.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.engine import MIB, Engine, EngineConfig
from tests.integration.valkey.servers import server as running_valkey
from tests.ports import free_port
from tests.s3_server import BUCKET, running_s3

from anbar.apps import interpreter, model
from anbar.config.models import CacheConfig, CacheMode
from anbar.config.s3 import S3Config
from anbar.config.stores import StoreConfig, StoreKind
from anbar.config.valkey import ValkeyStoreConfig
from benchmarks.report import RESULTS, Report, Series
from benchmarks.slow_link import SlowLink

BLOCK, VOCABULARY = 32, 40_000
KV_BYTES_PER_TOKEN = 46_080
STORES = ("files", "valkey", "s3", "slow")
LENGTHS = {"slow": (64, 128, 256, 512, 768, 1024)}
USUAL_LENGTHS = (32, 128, 512, 1536)
WARM = (256, 128, 512, 192)
"""Lengths of the prompts by which the engine learns what loading and computing take, before it is judged."""
BREAK_EVEN_TOKENS = 400
"""Of the slow link: half of a token's computing goes into its load, and as many halves into the delay."""
ASK: dict[str, dict[str, Any]] = {
    "recompute": {"max_load_tokens": 0},
    "load": {"anbar": {"prefill_s_per_token": 100.0}},
    "skip": {"anbar": {"prefill_s_per_token": 1e-9}},
    "auto": {},
    "host": {},
}


@dataclass
class Measured:
    """Seconds by mode at one length, one a round, and how often `auto` loaded."""

    length: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    loaded: list[bool] = field(default_factory=list)

    def median(self, mode: str) -> float:
        return statistics.median(self.seconds[mode])

    def right(self, noise: float) -> list[bool]:
        """Of each decision, whether it was."""
        gain = self.median("skip") / self.median("load")
        if 1 / (1 + noise) < gain < 1 + noise:
            return [True] * len(self.loaded)
        return [loaded is (gain > 1) for loaded in self.loaded]


class Bench:
    """One engine and its store."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng

    def prompt(self, length: int) -> list[int]:
        """One token more than can be loaded."""
        return [self._rng.randrange(100, VOCABULARY) for _ in range(length + 1)]

    def store(self, prompt: list[int]) -> float:
        """Compute a prompt, wait until it is stored; seconds of the first."""
        engine, written = self._engine, {"result": "hit"}
        before = engine.metric("anbar_tier_stores_total", **written)
        answer = engine.complete(prompt, 1)
        engine.wait_metric("anbar_tier_stores_total", before + len(prompt) // BLOCK, **written)
        return answer.seconds

    def ask(self, mode: str, prompt: list[int]) -> tuple[float, int]:
        """Seconds to the first token, and the tokens that were not computed."""
        self._engine.forget(host=mode != "host")
        params = {**ASK[mode], "anbar": {"v": 1, "store": "never", **ASK[mode].get("anbar", {})}}
        answer = self._engine.complete(prompt, 1, kv_transfer_params=params)
        return answer.seconds, answer.cached

    def round(self, measured: Measured) -> None:
        """All modes with a new prompt."""
        prompt = self.prompt(measured.length)
        self.store(prompt)
        modes = ["recompute", "skip", "load", "auto"]
        self._rng.shuffle(modes)
        modes.insert(modes.index("load") + 1, "host")
        for mode in modes:
            seconds, cached = self.ask(mode, prompt)
            if mode in ("recompute", "skip") and cached:
                continue  # one in fifty that do not pay is loaded to see
            assert mode == "auto" or bool(cached) is (mode in ("load", "host")), f"{mode}: {cached} cached"
            measured.seconds.setdefault(mode, []).append(seconds)
            print(f"  {measured.length:5} tokens, {mode}: {seconds:.3f} s, {cached} cached", flush=True)
            if mode == "auto":
                measured.loaded.append(cached > 0)

    def warm_up(self) -> None:
        """What the engine must have seen to know both costs."""
        for length in WARM:
            prompt = self.prompt(length)
            self.store(prompt)
            self.ask("load", prompt)

    def slow_down(self, link: SlowLink) -> None:
        """So that loading and computing are even at `BREAK_EVEN_TOKENS`."""
        long, short = (min(self.store(self.prompt(length)) for _ in range(3)) for length in (1024, 256))
        s_per_token = (long - short) / (1024 - 256)
        link.bytes_per_s = KV_BYTES_PER_TOKEN / (s_per_token / 2)
        link.delay_s = BREAK_EVEN_TOKENS * s_per_token / 2


def run(name: str, options: argparse.Namespace) -> list[Measured]:
    """Measure one store."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        link: SlowLink | None = None
        if name == "files":
            store = StoreConfig(path=directory / "store", id=name, timeout_s=60.0)
        elif name == "s3":
            store = _s3(stack, directory)
        else:
            server = stack.enter_context(running_valkey(directory / "valkey"))
            link = stack.enter_context(SlowLink(server.port)) if name == "slow" else None
            nodes = (f"127.0.0.1:{link.port if link is not None else server.port}",)
            valkey = ValkeyStoreConfig(nodes=nodes)
            store = StoreConfig(kind=StoreKind.VALKEY, valkey=valkey, id=name, timeout_s=60.0)
        cache = CacheConfig(mode=CacheMode.SHARED, host_bytes=512 * MIB, store=store)
        config = EngineConfig(f"anbar-bench-{os.getpid()}-{name}", options.model, cache, 96, 2048)
        engine = Engine(options.python, config, free_port(), directory / "engine.log")
        stack.callback(engine.kill)
        engine.start()
        engine.wait_ready()
        bench = Bench(engine, random.Random(options.seed))
        bench.store(bench.prompt(256))  # the first prompt of all is slow
        if link is not None:
            bench.slow_down(link)
        bench.warm_up()
        lengths = options.lengths or LENGTHS.get(name, USUAL_LENGTHS)
        found = [Measured(length) for length in lengths]
        for _ in range(options.rounds):
            for measured in found:
                bench.round(measured)
        _tell(name, engine, found, link)
        return found


def _s3(stack: ExitStack, directory: Path) -> StoreConfig:
    server = stack.enter_context(running_s3(directory / "s3"))
    s3 = S3Config(
        bucket=BUCKET, endpoint=server.endpoint, credentials_file=server.credentials(), allow_http=True
    )
    return StoreConfig(kind=StoreKind.S3, s3=s3, id="s3", timeout_s=60.0)


def _tell(name: str, engine: Engine, found: Sequence[Measured], link: SlowLink | None) -> None:
    """Progress, and what the engine believes."""
    names = ("load_latency_seconds", "load_bytes_per_second", "prefill_seconds_per_token")
    beliefs = {one: engine.metric(f"anbar_tier_{one}") for one in names}
    truth = "" if link is None else f"; the link: {link.delay_s:.3f} s, {link.bytes_per_s:.3g} B/s"
    print(f"{name}: {beliefs}{truth}", flush=True)
    for one in found:
        medians = {mode: round(one.median(mode), 3) for mode in one.seconds}
        print(f"  {one.length:5} tokens: {medians}, auto loaded {one.loaded}", flush=True)


def break_even(found: Sequence[Measured]) -> float | None:
    """The length at which loading becomes the sooner side; 0: at all, None: at none that was measured."""
    gains = [(one.length, one.median("skip") - one.median("load")) for one in found]
    if all(gain > 0 for _, gain in gains):
        return 0.0
    last = max(index for index, (_, gain) in enumerate(gains) if gain <= 0)
    if last + 1 == len(gains):
        return None
    (left, low), (right, high) = gains[last : last + 2]
    return left + (right - left) * -low / (high - low)


def record(report: Report, name: str, found: Sequence[Measured], noise: float) -> None:
    """One store's rows."""
    for one in found:
        for mode, seconds in one.seconds.items():
            report.series.append(Series(f"{name}, {one.length} tokens, {mode}", seconds))
        report.ratios[f"{name}, {one.length} tokens: recompute / load"] = one.median(
            "recompute"
        ) / one.median("load")
        report.figures[f"{name}, {one.length} tokens: share that auto loaded"] = statistics.mean(one.loaded)
    rights = [right for one in found for right in one.right(noise)]
    report.figures[f"{name}: share of right decisions"] = statistics.mean(rights)
    even = break_even(found)
    if even is not None:
        report.figures[f"{name}: break-even, tokens"] = round(even)


def _add_last(report: Report, measured_anew: Sequence[str]) -> None:
    """What the last run found of stores that are not measured now."""
    last = json.loads((RESULTS / f"{report.name}.json").read_text())

    def is_kept(name: str) -> bool:
        return name.split(",", maxsplit=1)[0].split(":", maxsplit=1)[0] in set(STORES) - set(measured_anew)

    report.series += [Series(**one) for one in last["series"] if is_kept(one["name"])]
    report.ratios |= {name: value for name, value in last["ratios"].items() if is_kept(name)}
    report.figures |= {name: value for name, value in last["figures"].items() if is_kept(name)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens, multiples of 32; default: by store")
    parser.add_argument("--noise", type=float, default=0.1, help="share within which both sides are equal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--add", action="store_true", help="to the result of the last run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # engines, servers and directories go, too
    options.python, _ = interpreter.choose(os.environ)
    found = interpreter.inspect(options.python, "benchmark")
    options.model = model.ensure_default(found, model.models_dir(os.environ), print)
    setup: dict[str, object] = {
        "rounds": options.rounds,
        "noise": options.noise,
        "model": "SmolLM2-135M, float32",
        "block": BLOCK,
        "load_average_before": os.getloadavg()[0],
    }
    report = Report("tier-ttft", "make bench NAME=tier-ttft", setup)
    if options.add:
        _add_last(report, options.stores)
    for name in options.stores:
        record(report, name, run(name, options), options.noise)
    shares = [value for name, value in report.figures.items() if name.endswith("right decisions")]
    report.figures["share of right decisions, all stores"] = statistics.mean(shares)
    report.show()
    print(report.write())


if __name__ == "__main__":
    main()
