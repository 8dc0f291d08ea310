"""emulator-fidelity: how far the engine model is from the engine it was calibrated on.

A real engine is calibrated; before and after that a trace of which calibration knows nothing (shared system
prompts, arrivals at random, several requests at once, answers of many lengths) is played to it several times,
with new tokens each time, and at the calibrated cost to the engine model in virtual time and to an emulated
engine over HTTP. Each run plays the trace twice: as its requests arrive, for TTFT, and all at once, for
throughput: at the pace of arrivals that would be the pace of arrivals.

Compared with the median of the real runs; allowed is 15 %, or twice what the real engine differs from itself
(the distance of the quartiles of its runs). A machine on which that is more than 15 % tells nothing, and the
benchmark fails.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from tests.engine.engine import MIB, Engine, EngineConfig, native
from tests.ports import free_port
from tests.unit.calibrate.virtual_engine import VirtualEngine

from anbar.apps import interpreter, model
from anbar.apps.calibrate.campaign import FULL, QUICK
from anbar.apps.calibrate.client import EngineClient
from anbar.apps.calibrate.files import write_cost_file
from anbar.apps.calibrate.given import Given
from anbar.apps.calibrate.live import calibrate_url
from anbar.apps.calibrate.prompts import TEXT
from anbar.apps.calibrate.run import Calibration
from anbar.apps.calibrate.target import Ask, Timeline
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.core.cost_file import CostFile, EngineType
from anbar.sim.engine.engine import Tiers
from anbar.sim.engine.shape import EngineShape, HostShape
from benchmarks.report import Report, Series

SEED = 20
NUM_SYSTEM_PROMPTS = 3
SYSTEM_TOKENS = 256
MEAN_GAP_S = 2.4
NUM_BLOCKS = 400
MAX_MODEL_LEN = 2048
HOST_BYTES = 768 * MIB
ALLOWED = 0.15
MOST_SPREAD = 0.15
"""Between the quartiles of the real runs, as a share of their median: an engine that differs more from itself
is on a machine that does something else too."""


@dataclass(frozen=True)
class Shape:
    """One request of the trace, without its tokens."""

    system: int
    num_own: int
    num_answer: int
    at_s: float


@dataclass(frozen=True)
class Outcome:
    """What a run of the trace came to."""

    ttft_s: tuple[float, ...]
    """Of each request, in the order of the trace."""
    tokens_per_s: float
    """Of prompts and answers, from the first arrival to the last token, all requests sent at once."""

    @property
    def ttft_mean_s(self) -> float:
        return statistics.mean(self.ttft_s)

    @property
    def ttft_slow_s(self) -> float:
        """Mean of the slowest quarter. Which request waits behind which is chance: 3 % of noise in the steps
        moves the 90th percentile of so few by 6 % (one standard deviation, in virtual time), this by 3 %."""
        return statistics.mean(sorted(self.ttft_s)[-max(1, len(self.ttft_s) // 4) :])

    def __str__(self) -> str:
        ttft = f"TTFT {self.ttft_mean_s:.3f} s, of the slowest quarter {self.ttft_slow_s:.3f} s"
        return f"{ttft}; {self.tokens_per_s:.0f} tokens/s"


Run = Callable[[Sequence[Ask]], Awaitable[list[Timeline]]]


def make_trace(rng: random.Random, count: int) -> list[Shape]:
    """Requests with exponential gaps, log-normal prompts behind a system prompt, and answers of 4 to 48."""
    at_s, shapes = 0.0, []
    for _ in range(count):
        own = min(900, max(8, round(rng.lognormvariate(5.0, 0.8))))
        shapes.append(Shape(rng.randrange(NUM_SYSTEM_PROMPTS), own, rng.randint(4, 48), at_s))
        at_s += rng.expovariate(1 / MEAN_GAP_S)
    return shapes


def fill(trace: Sequence[Shape], token_ids: Sequence[int], rng: random.Random) -> list[Ask]:
    """The trace with new tokens."""
    systems = [rng.choices(token_ids, k=SYSTEM_TOKENS) for _ in range(NUM_SYSTEM_PROMPTS)]
    return [
        Ask(
            tuple(systems[shape.system] + rng.choices(token_ids, k=shape.num_own)),
            shape.num_answer,
            shape.at_s,
        )
        for shape in trace
    ]


async def play(trace: Sequence[Shape], token_ids: Sequence[int], seed: int, run: Run) -> Outcome:
    """The trace as it arrives, then all at once, each with tokens of its own."""
    rng = random.Random(seed)
    paced = await run(fill(trace, token_ids, rng))
    burst = await run(fill([replace(shape, at_s=0.0) for shape in trace], token_ids, rng))
    start_s = min(timeline.sent_s for timeline in burst)
    end_s = max(timeline.token_s[-1] for timeline in burst)
    tokens = sum(timeline.num_prompt_tokens + len(timeline.token_s) for timeline in burst)
    return Outcome(tuple(timeline.ttft_s for timeline in paced), tokens / (end_s - start_s))


def sizes(kind: EngineType) -> tuple[EngineShape, HostShape]:
    """What the real engine was started with."""
    shape = EngineShape(
        block_size=kind.block_size,
        num_blocks=NUM_BLOCKS,
        max_num_batched_tokens=kind.max_num_batched_tokens,
        max_num_seqs=128,
        max_model_len=MAX_MODEL_LEN,
        kv_bytes_per_token=kind.kv_bytes_per_token,
    )
    return shape, HostShape(HOST_BYTES // (kind.kv_bytes_per_token * kind.block_size))


async def play_model(trace: Sequence[Shape], content: CostFile) -> Outcome:
    """The trace on the engine model, in virtual time."""
    shape, host = sizes(content.engine)
    return await play(trace, range(1000, 1100), SEED, VirtualEngine(shape, content.cost, Tiers(host)).run)


async def play_emulated(trace: Sequence[Shape], content: CostFile, directory: Path) -> Outcome:
    """The trace on an emulated engine, over HTTP and in real time."""
    shape, host = sizes(content.engine)
    settings = EngineSettings(
        directory, port=0, shape=shape, host_tier=host, cost=content.cost, prompt_tokens_details=True
    )
    async with EmulatedEngine(settings) as engine:
        return await play_at(engine.url, trace, SEED)


async def play_at(url: str, trace: Sequence[Shape], seed: int) -> Outcome:
    """The trace on the engine behind `url`."""
    async with aclosing(EngineClient(url)) as client:
        token_ids = sorted(set(await client.tokenize(TEXT)))
        await client.run([Ask(tuple(token_ids[:8]), 2)])  # what happens only once is not measured
        return await play(trace, token_ids, seed, client.run)


FIGURES: tuple[tuple[str, Callable[[Outcome], float]], ...] = (
    ("mean TTFT, s", lambda run: run.ttft_mean_s),
    ("TTFT of the slowest quarter, s", lambda run: run.ttft_slow_s),
    ("throughput, tokens/s", lambda run: run.tokens_per_s),
)


class Verdict(Enum):
    """What a comparison came to."""

    CLOSE = "close enough"
    FAR = "TOO FAR"
    RESTLESS = "the machine is TOO RESTLESS to tell"


@dataclass(frozen=True)
class Comparison:
    """One figure of the model or the emulator beside the real one."""

    figure: str
    text: str
    ratio: float
    verdict: Verdict


def compare(name: str, real: Sequence[Outcome], found: Outcome) -> Iterator[Comparison]:
    """For each figure, what was `found` beside what the runs of the `real` engine say."""
    for figure, of in FIGURES:
        low, middle, high = statistics.quantiles([of(run) for run in real], n=4, method="inclusive")
        spread = (high - low) / middle
        allowed = max(ALLOWED, 2 * spread)
        ratio = of(found) / middle
        verdict = Verdict.CLOSE if abs(ratio - 1) <= allowed else Verdict.FAR
        if spread > MOST_SPREAD:
            verdict = Verdict.RESTLESS
        text = (
            f"{figure}: real {middle:.3f} (quartiles {low:.3f} and {high:.3f}: {spread:.0%} apart), "
            f"{name} {of(found):.3f}: {ratio - 1:+.1%}, allowed {allowed:.0%}: {verdict.value}"
        )
        yield Comparison(figure, text, ratio, verdict)


@dataclass(frozen=True)
class Runs:
    """Everything that was played."""

    calibration: Calibration
    trace: Sequence[Shape]
    real: Sequence[Outcome]
    model: Outcome
    emulator: Outcome


def measure(url: str, options: argparse.Namespace, directory: Path) -> Runs:
    """Calibrate and play; `directory` is the model's. Calibration lies amid the real runs: a machine that
    gets slower or faster meanwhile is compared with itself."""
    given = Given(device="cpu", dtype="float32")
    trace = make_trace(random.Random(SEED), options.requests)
    real: list[Outcome] = []

    def say(stage: str, _: float) -> None:
        print(stage, flush=True)

    def play_real(runs: int) -> None:
        for _ in range(runs):
            real.append(asyncio.run(play_at(url, trace, 1000 + len(real))))
            say(f"real, run {len(real)} of {options.runs}: {real[-1]}", 0.0)

    play_real(options.runs // 2)
    calibration = asyncio.run(calibrate_url(url, None, given, QUICK if options.quick else FULL, say))
    content = calibration.content
    if options.cost is not None:
        write_cost_file(options.cost, content)
    play_real(options.runs - len(real))
    modelled = asyncio.run(play_model(trace, content))
    say(f"model: {modelled}", 1.0)
    emulated = asyncio.run(play_emulated(trace, content, directory))
    say(f"emulator: {emulated}", 1.0)
    return Runs(calibration, trace, real, modelled, emulated)


def by_case(calibration: Calibration) -> dict[str, list[float]]:
    """Where the fit is off: the seconds of each round."""
    found: dict[str, list[float]] = {}
    for sample in calibration.samples:
        found.setdefault(sample.name, []).append(round(sample.seconds, 4))
    return found


def by_request(runs: Runs) -> Iterator[dict[str, float]]:
    """Where the model is off: the requests of the trace, with their TTFT, real (median) and modelled."""
    for number, shape in enumerate(runs.trace):
        yield {
            "at_s": round(shape.at_s, 2),
            "own_tokens": shape.num_own,
            "real_s": round(statistics.median(run.ttft_s[number] for run in runs.real), 3),
            "model_s": round(runs.model.ttft_s[number], 3),
            "emulator_s": round(runs.emulator.ttft_s[number], 3),
        }


def report_on(runs: Runs) -> tuple[Report, bool]:
    """The report, and whether everything was close enough."""
    content, trace, real = runs.calibration.content, runs.trace, runs.real
    report = Report(
        name="emulator-fidelity",
        command="make bench NAME=emulator-fidelity",
        setup={
            "model": "smollm2-135m-instruct",
            "vllm": content.engine.vllm,
            "dtype": "float32",
            "requests": len(trace),
            "prompt_tokens": sum(SYSTEM_TOKENS + shape.num_own for shape in trace),
            "answer_tokens": sum(shape.num_answer for shape in trace),
            "calibration_residuals": {
                residual.what: [residual.median_error, residual.worst_error, residual.spread]
                for residual in content.measured.residuals
            },
            "calibration_samples": by_case(runs.calibration),
            "calibrated_cost": asdict(content.cost),
            "tokens_per_s": [run.tokens_per_s for run in real],
            "ttft_by_request": list(by_request(runs)),
            "load_average_at_the_end": round(os.getloadavg()[0], 1),
        },
        series=[
            Series("mean TTFT, real", [run.ttft_mean_s for run in real]),
            Series("TTFT of the slowest quarter, real", [run.ttft_slow_s for run in real]),
            Series("mean TTFT, model", [runs.model.ttft_mean_s]),
            Series("TTFT of the slowest quarter, model", [runs.model.ttft_slow_s]),
            Series("mean TTFT, emulator", [runs.emulator.ttft_mean_s]),
            Series("TTFT of the slowest quarter, emulator", [runs.emulator.ttft_slow_s]),
        ],
        notes=list(runs.calibration.notes),
    )
    good = True
    for name, found in (("model", runs.model), ("emulator", runs.emulator)):
        for one in compare(name, real, found):
            report.notes.append(one.text)
            report.ratios[f"{one.figure.partition(',')[0]}, {name} / real"] = one.ratio
            good = good and one.verdict is Verdict.CLOSE
    return report, good


def main() -> None:
    """Start an engine, measure, print, write the result; exit status 1 when the model is too far off, or the
    machine too restless to tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="calibrate quickly")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5, help="at least 3")
    parser.add_argument("--cost", type=Path, default=None, help="keep the cost file here")
    options = parser.parse_args()
    if options.runs < 3 or options.requests < 2:
        parser.error("--runs is at least 3, --requests at least 2")
    python, _ = interpreter.choose(os.environ)
    found = interpreter.inspect(python, "benchmark")
    directory = model.ensure_default(found, model.models_dir(os.environ), print)
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch:
        name = f"anbar-bench-{os.getpid()}"
        config = EngineConfig(name, directory, native(), num_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN)
        engine = Engine(python, config, free_port(), Path(scratch) / "engine.log")
        with ExitStack() as stack:
            engine.start()
            stack.callback(engine.terminate)
            engine.wait_ready()
            runs = measure(engine.url, options, directory)
    for row in by_request(runs):
        print(row)
    report, good = report_on(runs)
    report.show()
    print(f"written: {report.write().relative_to(Path.cwd())}")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
