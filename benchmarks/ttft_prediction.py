"""ttft-prediction: how well the router predicts times to first token, learning from request to request.

Requests are played to an engine; what the router's own accounting (`EngineLoad`) and learning (`EngineCosts`)
make of them is compared with what happened, request by request, each predicted before it is known. Beside it
two simpler learners get the same: one that scales a straight line by one number, and one that scales the
prior's shape.

Engines: the engine model in virtual time at the cost of a large GPU and of two CPU cores (those of
emulator-fidelity, measured), steps 5 % noisy; with `--real` also vLLM on this machine's CPU.
"""

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.engine.engine import Engine, EngineConfig, native
from tests.ports import free_port
from tests.unit.calibrate.virtual_engine import VirtualEngine

from anbar.apps import interpreter, model
from anbar.apps.calibrate.client import EngineClient
from anbar.apps.calibrate.prompts import TEXT
from anbar.apps.calibrate.target import Ask, Timeline
from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.router.load import EngineLoad, Plan, Share
from anbar.core.clock import ManualClock
from anbar.core.cost import CopyCost, EngineCost, PrefillCost, PrefillWork, TokenCurve
from anbar.core.cost_file import CostFile, EngineType, Measured
from anbar.core.cost_prior import prefill_prior
from anbar.core.fleet import Prediction, PrefixMatch
from anbar.core.prefill_learner import PREFILL_PRIOR
from anbar.route import CostGroup
from anbar.sim.engine.shape import EngineShape
from benchmarks.report import RESULTS, Report

SEED = 11
WARM = 20
"""Requests of a scenario that are learned from before errors count."""


@dataclass(frozen=True)
class Machine:
    """An engine in virtual time."""

    name: str
    cost: EngineCost
    kind: EngineType
    longest: int
    """Tokens of the longest prompt that is asked of it."""

    def prior(self) -> PrefillCost:
        """What its cost file would say."""
        return prefill_prior(CostFile(self.kind, Measured("", "", 0.0), self.cost))


class OneNumber:
    """Seconds measured over seconds that a prior expected, old samples fading: what one number can do. The
    tokens queued before count at the linear rate."""

    def __init__(self, prior: PrefillCost) -> None:
        self._prior = prior
        self._expected_s = self._measured_s = 200 * prior.a_s_per_token

    def predict(self, own: PrefillWork, queued: PrefillWork) -> float:
        work_s = self._prior.work_seconds(own) + self._prior.a_s_per_token * queued.tokens
        return self._prior.overhead_s + work_s * self._measured_s / self._expected_s

    def observe(self, own: PrefillWork, queued: PrefillWork, ttft_s: float) -> None:
        if own.tokens < 32:
            return
        now_s = self.predict(own, queued) - self._prior.overhead_s
        expected_s = self._prior.work_seconds(own) + self._prior.a_s_per_token * queued.tokens
        measured_s = min(max(ttft_s - self._prior.overhead_s, now_s / 8), now_s * 8)
        fade = 0.5 ** (1 / 32)
        self._expected_s = self._expected_s * fade + expected_s
        self._measured_s = self._measured_s * fade + measured_s


class What(IntEnum):
    """In the order in which things of the same moment happened."""

    SENT = 0
    ANSWERED = 1
    OVER = 2


@dataclass
class Run:
    """One request on its way."""

    timeline: Timeline
    share: Share
    own: PrefillWork
    queued: PrefillWork
    predicted_s: dict[str, float]


class Observer:
    """The router's view of one engine, with all learners side by side; keeps the errors of each."""

    def __init__(self, prior: PrefillCost) -> None:
        self._clock = ManualClock()
        self._load = EngineLoad()
        line = PrefillCost(PREFILL_PRIOR.a_s_per_token, 0.0, PREFILL_PRIOR.overhead_s)
        self._scaled = {
            "one number: a line": OneNumber(line),
            "one number: the prior's shape": OneNumber(PREFILL_PRIOR),
        }
        self._learned = {
            "four coefficients": CostGroup(PREFILL_PRIOR).join(),
            "four, with the cost file": CostGroup(prior).join(),
        }
        self.errors: dict[str, list[float]] = {name: [] for name in (*self._scaled, *self._learned)}
        """ln(measured / predicted), by learner, in the order in which first tokens came."""

    def watch(self, timelines: Sequence[Timeline]) -> None:
        """Go through all that happened in the order in which it happened."""
        runs: dict[int, Run] = {}
        start_s = min(timeline.sent_s for timeline in timelines) - self._clock.now_s()
        for at_s, what, number in self._events(timelines):
            self._clock.advance(max(0.0, at_s - start_s - self._clock.now_s()))
            if what is What.SENT:
                runs[number] = self._sent(timelines[number])
            elif what is What.ANSWERED:
                self._answered(runs[number])
            else:
                self._over(runs.pop(number))

    @staticmethod
    def _events(timelines: Sequence[Timeline]) -> Iterator[tuple[float, "What", int]]:
        events = []
        for number, timeline in enumerate(timelines):
            events.append((timeline.sent_s, What.SENT, number))
            events.append((timeline.token_s[0], What.ANSWERED, number))
            events.append((timeline.token_s[-1], What.OVER, number))
        return iter(sorted(events))

    def _sent(self, timeline: Timeline) -> Run:
        own = PrefillWork.of(timeline.num_prompt_tokens, timeline.num_cached)
        queue, now_s = self._load.queue, self._clock.now_s()
        queued, done_s = queue.work, queue.done_s(now_s)
        predicted = {name: learner.predict(own, queued) for name, learner in self._scaled.items()}
        for name, costs in self._learned.items():
            prefill = costs.prefill
            wait_s = max(0.0, prefill.work_seconds(queued) - done_s)
            beside_s = prefill.s_per_answer * self._load.num_decoding
            predicted[name] = wait_s + beside_s + prefill.overhead_s + prefill.work_seconds(own)
        prefill = next(iter(self._learned.values())).prefill
        prefill_s = prefill.overhead_s + prefill.work_seconds(own)
        cached = timeline.num_cached
        prediction = Prediction(PrefixMatch(cached, cached, cached), prefill_s=prefill_s)
        share = self._load.hold(Plan(timeline.num_prompt_tokens, prediction), self._clock)
        return Run(timeline, share.__enter__(), own, queued, predicted)

    def _answered(self, run: Run) -> None:
        run.share.first_byte()
        for name, predicted_s in run.predicted_s.items():
            self.errors[name].append(math.log(run.timeline.ttft_s / predicted_s))

    def _over(self, run: Run) -> None:
        run.share.__exit__(None, None, None)
        for learner in self._scaled.values():
            learner.observe(run.own, run.queued, run.timeline.ttft_s)
        finished = run.share.finished(run.timeline.num_cached)
        for costs in self._learned.values():
            costs.observe(finished)


Lengths = Callable[[random.Random], int]


def mixed(longest: int) -> Lengths:
    """Log-normal: half below a twentieth of the longest."""
    return lambda rng: min(longest, max(16, round(rng.lognormvariate(math.log(longest / 20), 1.2))))


def like(length: int) -> Lengths:
    return lambda rng: rng.randint(length * 19 // 20, length * 21 // 20)


def alone(lengths: Lengths, count: int, rng: random.Random) -> list[list[Ask]]:
    """One request after the other."""
    return [[Ask(fresh(rng, lengths(rng)), 2)] for _ in range(count)]


def busy(lengths: Lengths, count: int, rng: random.Random, gap_s: float) -> list[list[Ask]]:
    """Arrivals at random, answers of 8 to 128 tokens."""
    at_s = accumulate(rng.expovariate(1 / gap_s) for _ in range(count))
    return [[Ask(fresh(rng, lengths(rng)), rng.randint(8, 128), at) for at in at_s]]


def chats(longest: int, rng: random.Random, gap_s: float) -> list[list[Ask]]:
    """Conversations side by side whose turns find what came before on the device."""
    turns = []
    for _ in range(12):
        own = [fresh(rng, max(16, longest // 160)) for _ in range(20)]
        turns.append([sum(own[: n + 1], ()) for n in range(20)])
    order = [(turn, chat) for turn in range(20) for chat in range(12)]
    return [[Ask(turns[chat][turn], 4, at * gap_s) for at, (turn, chat) in enumerate(order)]]


def fresh(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Tokens that nothing has cached."""
    return (rng.getrandbits(40), *range(num_tokens - 1))


def gpu() -> Machine:
    kind = EngineType("8B", "H100", "bfloat16", "", 256, KV_BYTES_PER_TOKEN, 8192)
    return Machine("8B on an H100", H100_8B, kind, 32_000)


def cpu() -> Machine:
    """As emulator-fidelity measured it."""
    setup = json.loads((RESULTS / "emulator-fidelity.json").read_text())["setup"]
    data = setup["calibrated_cost"]
    cost = EngineCost(
        **{
            **data,
            "tokens": TokenCurve(tuple((tokens, seconds) for tokens, seconds in data["tokens"]["points"])),
            "load": CopyCost(**data["load"]),
            "store": CopyCost(**data["store"]),
        }
    )
    kind = EngineType(setup["model"], "cpu", setup["dtype"], setup["vllm"], 16, 46_080, 2048)
    return Machine("135M on two CPU cores", cost, kind, 2000)


def engine(machine: Machine, cost: EngineCost, seed: int) -> VirtualEngine:
    kind = machine.kind
    shape = EngineShape(
        block_size=kind.block_size,
        num_blocks=2_000_000 // kind.block_size,
        max_num_batched_tokens=kind.max_num_batched_tokens,
        max_model_len=2 * machine.longest,
        kv_bytes_per_token=kind.kv_bytes_per_token,
    )
    return VirtualEngine(shape, cost, noise=0.05, seed=seed)


def scenarios(machine: Machine) -> Iterator[tuple[str, Observer, int]]:
    """Name, what was observed, and how many requests do not count."""
    prior, longest = machine.prior(), machine.longest
    mean_s = statistics.mean(prior.seconds(mixed(longest)(random.Random(n))) for n in range(500))

    def played(parts: Sequence[tuple[EngineCost, list[list[Ask]]]]) -> Observer:
        observer = Observer(prior)
        for number, (cost, batches) in enumerate(parts):
            target = engine(machine, cost, SEED + number)
            for asks in batches:
                observer.watch(target.play(asks))
        return observer

    def rng() -> random.Random:
        return random.Random(SEED)

    cost = machine.cost
    yield "lengths mixed, one at a time", played([(cost, alone(mixed(longest), 300, rng()))]), WARM
    for load in (0.5, 0.8):
        asks = busy(mixed(longest), 300, rng(), mean_s / load)
        yield f"lengths mixed, {load:.0%} of time busy with prompts", played([(cost, asks)]), WARM
    yield "conversations, 8 of 9 tokens cached", played([(cost, chats(longest, rng(), mean_s))]), WARM
    short, long = alone(like(longest // 16), 200, rng()), alone(like(longest * 10 // 16), 1, rng())
    yield "200 prompts alike, then one ten times as long", played([(cost, short + long)]), 200
    slow = scaled(cost, 3.0)
    half = alone(mixed(longest), 150, rng())
    yield "three times slower since 100 requests", played([(cost, half), (slow, half)]), 250


def scaled(cost: EngineCost, factor: float) -> EngineCost:
    """Steps that take `factor` times as long."""
    points = tuple((tokens, seconds * factor) for tokens, seconds in cost.tokens.points)
    return replace(cost, tokens=TokenCurve(points), prefill_s_per_token2=cost.prefill_s_per_token2 * factor)


def real(options: argparse.Namespace) -> Observer:
    """vLLM on this machine's CPU."""
    python, _ = interpreter.choose(os.environ)
    directory = model.ensure_default(
        interpreter.inspect(python, "benchmark"), model.models_dir(os.environ), print
    )
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch, ExitStack() as stack:
        config = EngineConfig(
            f"anbar-bench-{os.getpid()}", directory, native(), num_blocks=400, max_model_len=2048
        )
        target = Engine(python, config, free_port(), Path(scratch) / "engine.log")
        target.start()
        stack.callback(target.terminate)
        target.wait_ready()
        return asyncio.run(play_real(target.url, options.requests))


async def play_real(url: str, count: int) -> Observer:
    """What was observed of `count` requests one at a time, then as they arrive, half as many as the
    engine could answer one after the other."""
    rng, observer = random.Random(SEED), Observer(cpu().prior())
    async with aclosing(EngineClient(url)) as client:
        token_ids = sorted(set(await client.tokenize(TEXT)))
        await client.run([Ask(tuple(token_ids[:8]), 2)])  # what happens only once is not measured

        def filled(asks: Sequence[Ask]) -> list[Ask]:
            return [replace(ask, prompt=tuple(rng.choices(token_ids, k=len(ask.prompt)))) for ask in asks]

        waited_s = []
        for asks in alone(mixed(1600), count, rng):
            timelines = await client.run(filled(asks))
            waited_s.append(timelines[0].ttft_s)
            observer.watch(timelines)
        gap_s = 2 * statistics.mean(waited_s)
        observer.watch(await client.run(filled(busy(mixed(1600), count, rng, gap_s)[0])))
    return observer


def row(errors: Sequence[float]) -> tuple[float, float]:
    """Median and 90th percentile of how far predictions are off, as a factor minus 1."""
    off = sorted(math.expm1(abs(error)) for error in errors)
    return statistics.median(off), off[min(len(off) - 1, len(off) * 9 // 10)]


def main() -> None:
    """Play, print, write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="vLLM on this machine's CPU too")
    parser.add_argument("--requests", type=int, default=40, help="to vLLM, one at a time and then at once")
    options = parser.parse_args()
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for machine in (gpu(), cpu()):
        for name, observer, num_warm in scenarios(machine):
            found = {learner: row(errors[num_warm:]) for learner, errors in observer.errors.items()}
            rows[f"{machine.name}: {name}"] = found
    if options.real:
        observer = real(options)
        parts = {
            "one at a time": slice(WARM, options.requests),
            "as they arrive": slice(options.requests, None),
        }
        for name, part in parts.items():
            found = {learner: row(errors[part]) for learner, errors in observer.errors.items()}
            rows[f"135M on two CPU cores, vLLM itself: lengths mixed, {name}"] = found
    command = (
        "python -m benchmarks.ttft_prediction --real" if options.real else "make bench NAME=ttft-prediction"
    )
    report = Report(
        "ttft-prediction", command, {"errors": rows, "load_average_at_the_end": os.getloadavg()[0]}
    )
    table = Table(title=f"{command}\nhow far off, median / 90th percentile")
    learners = list(next(iter(rows.values())))
    for column in ("scenario", *learners):
        table.add_column(column)
    for name, found in rows.items():
        table.add_row(name, *(f"{median:.0%} / {most:.0%}" for median, most in found.values()))
        before, after = found[learners[0]], found["four coefficients"]
        report.ratios[f"{name}: median error, one number / four"] = before[0] / after[0]
    Console(width=200).print(table)
    print(f"written: {report.write().relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
