"""sim-real: one small scenario three ways: `anbar simulate`, an emulated engine, real vLLM.

A real engine (SmolLM2 on the CPU, offload to host RAM) is calibrated; before and after that a trace is played
to it of which calibration knows nothing: conversations of two turns behind system prompts, on so few blocks
that requests are preempted. The same trace goes, at the calibrated cost, through `anbar simulate` in virtual
time and to an emulated engine over HTTP. Each run has new tokens, so that nothing is left of the one before.

Compared with the median of the real runs; allowed is 15 %, or twice what the real engine differs from itself
(the distance of the quartiles of its runs), and of counts one. A machine on which a time differs by more than
15 % tells nothing, and the benchmark fails. `--no-real` plays the first two alone, at the cost that
`emulator-fidelity` recorded: then the emulated engine is held to the simulation.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

from tests.engine.engine import BLOCK, Engine, EngineConfig, native
from tests.ports import free_port

from anbar.apps import interpreter, model
from anbar.apps.calibrate.campaign import FULL, QUICK
from anbar.apps.calibrate.client import EngineClient
from anbar.apps.calibrate.files import write_cost_file
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.live import calibrate_url
from anbar.apps.calibrate.prompts import TEXT
from anbar.apps.calibrate.target import Ask, Timeline
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.simulate.report import run_scenario
from anbar.apps.simulate.result import Result
from anbar.apps.simulate.scenario_file import read_scenario
from anbar.config.models import DEFAULT_MODEL
from anbar.core.cost_file import CostFile
from anbar.sim.engine.shape import EngineShape, HostShape
from benchmarks.report import Report
from benchmarks.validation.emulated import recorded_cost

SEED = 6
NUM_CONVERSATIONS = 10
SYSTEMS, SYSTEM_TOKENS = 2, 128
OWN, FURTHER, ANSWER = (96, 256), (64, 160), (48, 96)
"""Tokens: of a first question, of what a second turn adds, of answers."""
MEAN_GAP_S, PAUSE_S = 0.7, 12.0
"""Between conversations; from a first turn to the second one."""
NUM_BLOCKS, MAX_MODEL_LEN = 60, 1024
"""The device holds 1,888 tokens, where the requests that come together want some 3,000."""
HOST_BYTES = 768 << 20
MAX_NUM_SEQS = 128
ALLOWED = MOST_SPREAD = 0.15
SLOW = 25
"""Per cent of the requests: mean of their times to first token."""


@dataclass(frozen=True)
class Turn:
    """One request, without its tokens."""

    conversation: int
    system: int
    num_own: int
    num_further: int
    """Tokens behind the first turn's prompt; 0: it is the first turn."""
    num_answer: int
    at_s: float


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    hit_rate: float
    """Of prompt tokens, what was found in HBM or host RAM."""
    computed: float
    """Prompt tokens that were not; without what was computed again."""
    preemptions: float
    ttft_s: float
    """Mean."""
    ttft_slow_s: float
    """Mean of the slowest quarter."""
    tokens_per_s: float
    """Of prompts and answers, from the first arrival to the last token."""


@dataclass(frozen=True)
class Figure:
    """One number of an outcome."""

    name: str
    of: Callable[[Outcome], float]
    slack: float = 0.0
    """Allowed in any case, in its own unit."""
    is_time: bool = False


FIGURES = (
    Figure("hit rate", lambda run: run.hit_rate),
    Figure("prompt tokens computed", lambda run: run.computed),
    Figure("preemptions", lambda run: run.preemptions, slack=1.0),
    Figure("mean TTFT, s", lambda run: run.ttft_s, is_time=True),
    Figure("TTFT of the slowest quarter, s", lambda run: run.ttft_slow_s, is_time=True),
    Figure("throughput, tokens/s", lambda run: run.tokens_per_s, is_time=True),
)


def make_turns(rng: random.Random) -> list[Turn]:
    """Two turns of each conversation, in the order in which they come."""
    turns, at_s = [], 0.0
    for number in range(NUM_CONVERSATIONS):
        first = Turn(number, rng.randrange(SYSTEMS), rng.randint(*OWN), 0, rng.randint(*ANSWER), at_s)
        further, answer = rng.randint(*FURTHER), rng.randint(*ANSWER)
        turns += [first, Turn(number, first.system, first.num_own, further, answer, at_s + PAUSE_S)]
        at_s += rng.expovariate(1 / MEAN_GAP_S)
    return sorted(turns, key=lambda turn: turn.at_s)


def fill(turns: Sequence[Turn], token_ids: Sequence[int], rng: random.Random) -> list[Ask]:
    """The turns with tokens; a second one begins with the whole prompt of the first."""
    systems = [rng.choices(token_ids, k=SYSTEM_TOKENS) for _ in range(SYSTEMS)]
    firsts: dict[int, list[int]] = {}
    asks = []
    for turn in turns:
        if turn.conversation not in firsts:
            firsts[turn.conversation] = systems[turn.system] + rng.choices(token_ids, k=turn.num_own)
        prompt = firsts[turn.conversation] + rng.choices(token_ids, k=turn.num_further)
        asks.append(Ask(tuple(prompt), turn.num_answer, turn.at_s))
    return asks


def as_trace(asks: Sequence[Ask]) -> str:
    """The requests as a block log, which `anbar simulate` reads."""
    names: dict[tuple[int, ...], int] = {}
    lines = []
    for ask in asks:
        ends = range(BLOCK, len(ask.prompt) + 1, BLOCK)
        row = {
            "timestamp": round(1000 * ask.delay_s),
            "input_length": len(ask.prompt),
            "output_length": ask.num_tokens,
            "hash_ids": [names.setdefault(ask.prompt[:end], len(names)) for end in ends],
            "block_size": BLOCK,
        }
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def simulated(turns: Sequence[Turn], content: CostFile, model_config: Path) -> Outcome:
    """The trace through `anbar simulate`, whose files are written for it."""
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch:
        directory = Path(scratch)
        (directory / "trace.jsonl").write_text(
            as_trace(fill(turns, range(1000, 40_000), random.Random(SEED)))
        )
        write_cost_file(directory / "cost.json", content)
        fleet = {
            "model": str(model_config),
            "dtype": "float32",
            "kv_dtype": "float32",
            "kv_tokens": (NUM_BLOCKS - 1) * BLOCK,
            "block_size": BLOCK,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": content.engine.max_num_batched_tokens,
            "cost_file": "cost.json",
        }
        scenario = {
            "workload": {"trace": {"path": "trace.jsonl"}},
            "fleet": fleet,
            "cache": {"modes": ["native"], "host_bytes": HOST_BYTES, "chunk_tokens": BLOCK},
        }
        path = directory / "scenario.yaml"
        path.write_text(json.dumps(scenario))  # JSON is YAML
        return outcome_of(run_scenario(read_scenario(str(path))).runs[0].result)


def outcome_of(result: Result) -> Outcome:
    """Of a simulation."""
    tokens = result.tokens
    return Outcome(
        result.hit_rate,
        tokens.prompt - tokens.device - tokens.host,
        result.num_preemptions,
        result.ttft_s.mean,
        statistics.fmean(result.ttft_cdf_s[-SLOW:]),
        (tokens.prompt + tokens.answers) / result.span_s,
    )


async def play_at(url: str, turns: Sequence[Turn], seed: int) -> Outcome:
    """The trace on the engine behind `url`."""
    rng = random.Random(seed)
    async with aclosing(EngineClient(url)) as client:
        token_ids = sorted(set(await client.tokenize(TEXT)))
        await client.run([Ask(tuple(token_ids[:8]), 2)])  # what happens only once is not measured
        before = await asyncio.to_thread(num_preemptions, url)
        timelines = await client.run(fill(turns, token_ids, rng))
        return outcome_at(timelines, await asyncio.to_thread(num_preemptions, url) - before)


def outcome_at(timelines: Sequence[Timeline], preemptions: float) -> Outcome:
    """Of answers of an engine."""
    prompt = sum(timeline.num_prompt_tokens for timeline in timelines)
    cached = sum(timeline.num_cached for timeline in timelines)
    answers = sum(len(timeline.token_s) for timeline in timelines)
    start_s = min(timeline.sent_s for timeline in timelines)
    span_s = max(timeline.token_s[-1] for timeline in timelines) - start_s
    ttft_s = sorted(timeline.ttft_s for timeline in timelines)
    slow = ttft_s[-max(1, len(ttft_s) * SLOW // 100) :]
    means = statistics.fmean(ttft_s), statistics.fmean(slow)
    return Outcome(cached / prompt, prompt - cached, preemptions, *means, (prompt + answers) / span_s)


def num_preemptions(url: str) -> float:
    """Since the engine's start."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        page = response.read().decode()
    return sum(map(float, re.findall(r"^vllm:num_preemptions_total(?:\{.*\})? (\S+)$", page, re.MULTILINE)))


async def emulated(turns: Sequence[Turn], content: CostFile, directory: Path) -> Outcome:
    """The trace on an emulated engine."""
    kind = content.engine
    shape = EngineShape(
        block_size=BLOCK,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=kind.max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        kv_bytes_per_token=kind.kv_bytes_per_token,
    )
    host = HostShape(HOST_BYTES // (kind.kv_bytes_per_token * BLOCK))
    settings = EngineSettings(
        directory, port=0, shape=shape, host_tier=host, cost=content.cost, prompt_tokens_details=True
    )
    async with EmulatedEngine(settings) as engine:
        return await play_at(engine.url, turns, SEED)


@dataclass(frozen=True)
class Comparison:
    """One figure of one way beside what it is held to."""

    text: str
    ratio: float
    is_close: bool


def compare(name: str, base: str, runs: Sequence[Outcome], found: Outcome) -> Iterator[Comparison]:
    """Each figure of `found` beside the `runs` of the `base`."""
    for figure in FIGURES:
        values = [figure.of(run) for run in runs]
        middle = statistics.median(values)
        low, high = min(values), max(values)
        if len(values) > 2:
            low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        allowed = max(ALLOWED * middle, 2 * (high - low), figure.slack)
        off = figure.of(found) - middle
        restless = figure.is_time and high - low > MOST_SPREAD * middle
        verdict = "close enough" if abs(off) <= allowed else "TOO FAR"
        if restless:
            verdict = "the machine is TOO RESTLESS to tell"
        text = (
            f"{figure.name}: {base} {middle:.4g} ({low:.4g} to {high:.4g}), {name} {figure.of(found):.4g}, "
            f"allowed +-{allowed:.2g}: {verdict}"
        )
        ratio = figure.of(found) / middle if middle else 1.0
        yield Comparison(text, ratio, abs(off) <= allowed and not restless)


def play_real(url: str, turns: Sequence[Turn], options: argparse.Namespace) -> tuple[list[Outcome], CostFile]:
    """The real runs, calibration amid them: a machine that gets slower or faster meanwhile is compared with
    itself."""
    runs: list[Outcome] = []

    def play(until: int) -> None:
        while len(runs) < until:
            runs.append(asyncio.run(play_at(url, turns, 1000 + len(runs))))
            print(f"real, run {len(runs)} of {options.runs}: {runs[-1]}", flush=True)

    play(options.runs // 2)
    given = Given(device="cpu", dtype="float32")
    campaign = QUICK if options.quick else FULL
    calibration = asyncio.run(calibrate_url(url, None, given, campaign, lambda stage, _: print(stage)))
    play(options.runs)
    return runs, calibration.content


def measure(turns: Sequence[Turn], options: argparse.Namespace) -> tuple[Report, bool]:
    """All ways; the report, and whether they agree."""
    python, _ = interpreter.choose(os.environ)
    found = interpreter.inspect(python, "benchmark")
    directory = model.ensure_default(found, model.models_dir(os.environ), print)
    runs, content = [], recorded_cost()
    if options.real:
        with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch, ExitStack() as stack:
            name = f"anbar-bench-{os.getpid()}"
            config = EngineConfig(name, directory, native(), NUM_BLOCKS, MAX_MODEL_LEN)
            engine = Engine(python, config, free_port(), Path(scratch) / "engine.log")
            engine.start()
            stack.callback(engine.terminate)
            engine.wait_ready()
            runs, content = play_real(engine.url, turns, options)
    model_config = directory / "config.json"
    ways = {"simulated": simulated(turns, content, model_config)}
    print(f"simulated: {ways['simulated']}", flush=True)
    ways["emulated"] = asyncio.run(emulated(turns, content, directory))
    print(f"emulated: {ways['emulated']}", flush=True)
    return report_on(turns, runs, ways)


def report_on(
    turns: Sequence[Turn], runs: Sequence[Outcome], ways: dict[str, Outcome]
) -> tuple[Report, bool]:
    """Held to the real runs, or without any to the simulation."""
    report = Report(
        "sim-real",
        "make bench NAME=sim-real",
        {"model": DEFAULT_MODEL, "requests": len(turns), "real_runs": len(runs)},
    )
    for figure in FIGURES:
        values = {f"real, run {number}": run for number, run in enumerate(runs, 1)} | ways
        report.figures |= {f"{way}: {figure.name}": figure.of(run) for way, run in values.items()}
    base = "real" if runs else "simulated"
    good = True
    for name in ways if runs else ("emulated",):
        for figure, one in zip(
            FIGURES, compare(name, base, runs or [ways["simulated"]], ways[name]), strict=True
        ):
            report.ratios[f"{figure.name.partition(',')[0]}, {name} / {base}"] = one.ratio
            report.notes.append(one.text)
            good = good and one.is_close
    return report, good


def main() -> None:
    """Play, compare, print; write the result if there were real runs. Exit status 1 when something is too far
    off, or the machine too restless to tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="calibrate quickly")
    parser.add_argument("--runs", type=int, default=5, help="on the real engine, at least 3")
    parser.add_argument("--no-real", dest="real", action="store_false", help="without a real engine")
    options = parser.parse_args()
    if options.runs < 3:
        parser.error("--runs is at least 3")
    report, good = measure(make_turns(random.Random(SEED)), options)
    report.show()
    if options.real:
        print(f"written: {report.write().relative_to(Path.cwd())}")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
