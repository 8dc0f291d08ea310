"""emulator-fidelity: how far the engine model is from the engine it was calibrated on.

A real engine is calibrated; then a trace that calibration has not seen (shared system prompts, arrivals at
random, several requests at once, answers of many lengths) is played to it several times, with new tokens each
time, and once to the engine model in virtual time at the calibrated cost. Compared are TTFT and
throughput; allowed is 15 %, or twice what the real engine differs from itself.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
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
from anbar.core.cost_file import CostFile
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

    ttft_mean_s: float
    ttft_p90_s: float
    tokens_per_s: float
    """Of prompts and answers, from the first arrival to the last token."""


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


def outcome(timelines: Sequence[Timeline]) -> Outcome:
    """The figures that are compared."""
    ttft = sorted(timeline.ttft_s for timeline in timelines)
    start_s = min(timeline.sent_s for timeline in timelines)
    end_s = max(timeline.token_s[-1] for timeline in timelines)
    tokens = sum(timeline.num_prompt_tokens + len(timeline.token_s) for timeline in timelines)
    return Outcome(statistics.mean(ttft), ttft[round(0.9 * (len(ttft) - 1))], tokens / (end_s - start_s))


def emulate(trace: Sequence[Shape], content: CostFile) -> Outcome:
    """The trace on the engine model, in virtual time."""
    kind = content.engine
    shape = EngineShape(
        block_size=kind.block_size,
        num_blocks=NUM_BLOCKS,
        max_num_batched_tokens=kind.max_num_batched_tokens,
        max_num_seqs=128,
        max_model_len=MAX_MODEL_LEN,
        kv_bytes_per_token=kind.kv_bytes_per_token,
    )
    chunks = HOST_BYTES // (kind.kv_bytes_per_token * kind.block_size)
    engine = VirtualEngine(shape, content.cost, Tiers(HostShape(chunks)))
    return outcome(engine.play(fill(trace, range(1000, 1100), random.Random(SEED))))


async def play_real(url: str, trace: Sequence[Shape], runs: int) -> list[Outcome]:
    """The trace on the real engine, once to warm it up and then `runs` times."""
    found = []
    async with aclosing(EngineClient(url)) as client:
        await client.facts()
        token_ids = sorted(set(await client.tokenize(TEXT)))
        for number in range(runs):
            timelines = await client.run(fill(trace, token_ids, random.Random(1000 + number)))
            found.append(outcome(timelines))
            print(f"run {number + 1} of {runs}: {found[-1]}", flush=True)
    return found


def compare(name: str, real: Sequence[float], emulated: float) -> tuple[str, bool]:
    """A line on one figure, and whether the model is close enough."""
    middle = statistics.median(real)
    spread = (max(real) - min(real)) / middle
    error = emulated / middle - 1.0
    allowed = max(ALLOWED, 2 * spread)
    text = (
        f"{name}: real {middle:.3f} ({min(real):.3f} to {max(real):.3f}), model {emulated:.3f}: "
        f"{error:+.1%}, allowed {allowed:.0%}"
    )
    return text, abs(error) <= allowed


def measure(url: str, quick: bool, count: int, runs: int, out: Path) -> tuple[Report, bool]:
    """Calibrate, play, compare."""
    given = Given(device="cpu", dtype="float32")

    def say(stage: str, _: float) -> None:
        print(stage, flush=True)

    calibration = asyncio.run(calibrate_url(url, None, given, QUICK if quick else FULL, say))
    write_cost_file(out, calibration.content)
    trace = make_trace(random.Random(SEED), count)
    real = asyncio.run(play_real(url, trace, runs))
    return _report(calibration, trace, real)


def _report(calibration: Calibration, trace: Sequence[Shape], real: Sequence[Outcome]) -> tuple[Report, bool]:
    found = emulate(trace, calibration.content)
    lines = [
        compare("mean TTFT, s", [run.ttft_mean_s for run in real], found.ttft_mean_s),
        compare("90th percentile of TTFT, s", [run.ttft_p90_s for run in real], found.ttft_p90_s),
        compare("throughput, tokens/s", [run.tokens_per_s for run in real], found.tokens_per_s),
    ]
    report = Report(
        name="emulator-fidelity",
        command="make bench NAME=emulator-fidelity",
        setup={
            "model": "smollm2-135m-instruct",
            "vllm": calibration.content.engine.vllm,
            "dtype": "float32",
            "requests": len(trace),
            "prompt_tokens": sum(SYSTEM_TOKENS + shape.num_own for shape in trace),
            "answer_tokens": sum(shape.num_answer for shape in trace),
            "calibration_residuals": {
                residual.what: residual.median_error for residual in calibration.content.measured.residuals
            },
        },
        series=[
            Series("mean TTFT, real", [run.ttft_mean_s for run in real]),
            Series("mean TTFT, model", [found.ttft_mean_s] * len(real)),
            Series("p90 TTFT, real", [run.ttft_p90_s for run in real]),
            Series("p90 TTFT, model", [found.ttft_p90_s] * len(real)),
        ],
        notes=[text for text, _ in lines],
    )
    report.ratio("mean TTFT, model / real", report.series[1], report.series[0])
    report.ratio("p90 TTFT, model / real", report.series[3], report.series[2])
    report.ratios["throughput, model / real"] = found.tokens_per_s / statistics.median(
        run.tokens_per_s for run in real
    )
    return report, all(good for _, good in lines)


def main() -> None:
    """Start an engine, measure, print, write the result; exit status 1 when the model is too far off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="calibrate quickly")
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cost", type=Path, default=None, help="keep the cost file here")
    options = parser.parse_args()
    python, _ = interpreter.choose(os.environ)
    found = interpreter.inspect(python, "benchmark")
    directory = model.ensure_default(found, model.models_dir(os.environ), print)
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch:
        name = f"anbar-bench-{os.getpid()}"
        config = EngineConfig(name, directory, native(), num_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN)
        engine = Engine(python, config, free_port(), Path(scratch) / "engine.log")
        out = options.cost or Path(scratch) / "cost.json"
        with ExitStack() as stack:
            engine.start()
            stack.callback(engine.terminate)
            engine.wait_ready()
            report, good = measure(engine.url, options.quick, options.requests, options.runs, out)
    report.show()
    print(f"written: {report.write().relative_to(Path.cwd())}")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
