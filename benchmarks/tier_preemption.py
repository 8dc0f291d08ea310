"""tier-preemption: what KV that leaves the device is worth where running requests are preempted.

Conversations of three turns with long answers, on one and two engines in virtual time at the cost of an 8B
model on an H100 (estimated), with so little HBM that requests are preempted. Each turn goes to the next
engine, as with a router that knows nothing. *none*: KV that leaves the device is computed again; *native*:
host RAM of each engine; *shared*: a store in another machine's memory behind it, over a link of `--gbit`.
Same conversations in all.

*prefill* are tokens that were computed and are no answer's: of prompts, and again of what a preempted request
had. *goodput* are answers a second with a first token within `--ttft` and a mean time between tokens within
`--itl` seconds. `--real` runs the three on real vLLM, small: one engine, long answers, few blocks.
"""

import argparse
import heapq
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.core.cost import TierCost
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.pace import StepCost
from anbar.sim.engine.request import BlockKey, EngineRequest
from anbar.sim.engine.shape import EngineShape, HostShape
from anbar.sim.engine.shared import SharedTier
from anbar.sim.engine.step import Step
from anbar.sim.engine.store import SharedCost
from benchmarks.preempted_vllm import real
from benchmarks.report import Report

BLOCK, CHUNK_BLOCKS = 16, 4
HBM_TOKENS, HOST_TOKENS, STORE_TOKENS = 40_000, 250_000, 4_000_000
SYSTEM, QUESTION, ANSWER, TURNS = 1024, (400, 2400), (300, 1200), 3
THINK_S = 5.0
CALLS = 2
"""That an engine has under way on the store; together they fill the link."""
MODES = ("none", "native", "shared")


class Conversation:
    """Lengths of its turns, and the keys of its blocks, of which the first are everybody's."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.number = number
        self.turns = [(rng.randint(*QUESTION), rng.randint(*ANSWER)) for _ in range(TURNS)]
        self._keys: list[BlockKey] = []

    def prompt(self, turn: int) -> int:
        """Tokens of a turn's prompt."""
        before = sum(question + answer for question, answer in self.turns[:turn])
        return SYSTEM + before + self.turns[turn][0]

    def first(self, num_blocks: int) -> Sequence[BlockKey]:
        """As `BlockKeys`."""
        shared = SYSTEM // BLOCK
        while len(self._keys) < num_blocks:
            index = len(self._keys)
            self._keys.append((-1 if index < shared else self.number, index))
        return self._keys[:num_blocks]


@dataclass
class Turn:
    """One request on its way."""

    conversation: Conversation
    number: int
    asked_s: float
    first_s: float = math.inf


@dataclass
class Outcome:
    """What became of a load."""

    num_prefill: int = 0
    num_preemptions: int = 0
    device: int = 0
    host: int = 0
    shared: int = 0
    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    span_s: float = 0.0

    def goodput(self, ttft_s: float, itl_s: float) -> float:
        """Good answers per second."""
        good = sum(a <= ttft_s and b <= itl_s for a, b in zip(self.ttft_s, self.itl_s, strict=True))
        return good / self.span_s


class Load:
    """Conversations that begin as a Poisson process, on engines on one clock. `run` once."""

    def __init__(self, mode: str, num_engines: int, options: argparse.Namespace, seed: int) -> None:
        rng = random.Random(seed)
        self._outcome = Outcome()
        self._engines = _engines(mode, num_engines, options.gbit)
        self._arrivals: list[tuple[float, int, Conversation, int]] = []
        at_s = 0.0
        for number in range(options.conversations * num_engines):
            at_s += rng.expovariate(options.rate * num_engines)
            self._arrivals.append((at_s, number, Conversation(number, rng), 0))
        self._ends: list[tuple[float, int]] = []
        self._busy: set[int] = set()
        self._turns: dict[RequestId, Turn] = {}
        self._next = 0

    def run(self) -> Outcome:
        """To the end of the last answer."""
        heapq.heapify(self._arrivals)
        now_s = 0.0
        while self._arrivals or self._ends:
            arrives_s = self._arrivals[0][0] if self._arrivals else math.inf
            if self._ends and self._ends[0][0] <= arrives_s:
                now_s, index = heapq.heappop(self._ends)
                self._finish(index, now_s)
                self._start(index, now_s)
            else:
                now_s, _, conversation, number = heapq.heappop(self._arrivals)
                self._ask(Turn(conversation, number, now_s))
        self._outcome.span_s = now_s
        for engine in self._engines:
            counters = engine.counters
            self._outcome.num_preemptions += counters.num_preemptions
            self._outcome.device += counters.num_prompt_device_hit
            self._outcome.shared += counters.num_shared_hits
            self._outcome.host += counters.num_external_hits - counters.num_shared_hits
        return self._outcome

    def _ask(self, turn: Turn) -> None:
        conversation = turn.conversation
        name = RequestId(f"{conversation.number}.{turn.number}")
        index, self._next = self._next, (self._next + 1) % len(self._engines)
        answer = conversation.turns[turn.number][1]
        self._turns[name] = turn
        self._engines[index].add(EngineRequest(name, conversation.prompt(turn.number), answer, conversation))
        if index not in self._busy:
            self._start(index, turn.asked_s)

    def _start(self, index: int, now_s: float) -> None:
        next_s = self._arrivals[0][0] if self._arrivals else math.inf
        running = self._engines[index].start_step(now_s, next_s)
        if running is None:
            self._busy.discard(index)
            return
        self._busy.add(index)
        self._outcome.num_prefill += _prefill(running.step)
        heapq.heappush(self._ends, (running.ends_s, index))

    def _finish(self, index: int, now_s: float) -> None:
        for output in self._engines[index].finish_step().outputs:
            turn = self._turns[output.request.id]
            turn.first_s = min(turn.first_s, now_s)
            if not output.finished:
                continue
            conversation, number = turn.conversation, turn.number
            self._outcome.ttft_s.append(turn.first_s - turn.asked_s)
            self._outcome.itl_s.append((now_s - turn.first_s) / (output.request.num_generated - 1))
            if number + 1 < TURNS:
                again = (now_s + THINK_S, conversation.number, conversation, number + 1)
                heapq.heappush(self._arrivals, again)


def _engines(mode: str, count: int, gbit: float) -> list[Engine]:
    shape = EngineShape(
        block_size=BLOCK,
        num_blocks=HBM_TOKENS // BLOCK + 1,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=16_384,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    )
    chunk = CHUNK_BLOCKS * BLOCK
    host = HostShape(HOST_TOKENS // chunk, CHUNK_BLOCKS) if mode != "none" else None
    store: SharedTier | None = None
    if mode == "shared":
        per_call = TierCost(0.001, gbit * 1e9 / 8 / CALLS)
        whole = SharedCost(0.0005, per_call, per_call, threads=CALLS, deadline_s=5.0)
        store = SharedTier(STORE_TOKENS // chunk, whole)
    return [Engine(shape, StepCost(H100_8B), Tiers(host, store)) for _ in range(count)]


def _prefill(step: Step) -> int:
    """Tokens of a step that are not an answer's next one."""
    return sum(piece.num_new for piece in step.pieces if piece.num_new > 1 or not piece.request.num_generated)


def virtual(options: argparse.Namespace, report: Report) -> None:
    """One and two engines in virtual time, each mode with the same conversations."""
    for engines in (1, 2):
        found = {mode: _outcomes(mode, engines, options) for mode in MODES}
        for mode, outcomes in found.items():
            _record(report, f"{_called(engines)}, {mode}", outcomes, options)
        for name, of in (("prefill", lambda out: out.num_prefill), ("goodput", _goodput(options))):
            for mode in MODES[1:]:
                pairs = zip(map(of, found[mode]), map(of, found["none"]), strict=True)
                report.ratios[f"{_called(engines)}: {name}, {mode} / none"] = statistics.median(
                    a / b for a, b in pairs
                )


def _called(engines: int) -> str:
    return "1 engine" if engines == 1 else f"{engines} engines"


def _goodput(options: argparse.Namespace) -> Callable[[Outcome], float]:
    return lambda out: out.goodput(options.ttft, options.itl)


def _outcomes(mode: str, engines: int, options: argparse.Namespace) -> list[Outcome]:
    return [Load(mode, engines, options, seed).run() for seed in range(options.seeds)]


def _record(report: Report, name: str, outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    def median(of: Callable[[Outcome], float]) -> float:
        return statistics.median(map(of, outcomes))

    figures = {
        "prefill, tokens": median(lambda out: out.num_prefill),
        "preemptions": median(lambda out: out.num_preemptions),
        "prompt tokens from the device": median(lambda out: out.device),
        "prompt tokens from host RAM": median(lambda out: out.host),
        "prompt tokens from the store": median(lambda out: out.shared),
        "goodput, answers/s": round(median(_goodput(options)), 3),
        "first token, median s": round(median(lambda out: statistics.median(out.ttft_s)), 3),
        "first token, 95th percentile s": round(median(lambda out: _percentile(out.ttft_s, 0.95)), 3),
    }
    report.figures |= {f"{name}: {what}": value for what, value in figures.items()}


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=80, help="for each engine")
    parser.add_argument("--rate", type=float, default=0.36, help="conversations a second, for each engine")
    parser.add_argument("--gbit", type=float, default=100.0, help="of the link to the store")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--ttft", type=float, default=2.0, help="seconds to the first token that are good")
    parser.add_argument("--itl", type=float, default=0.05, help="mean seconds between tokens that are good")
    parser.add_argument("--real", action="store_true", help="real vLLM instead")
    options = parser.parse_args()
    setup: dict[str, object] = {
        "cost": "8B on an H100, estimated",
        "hbm_tokens": HBM_TOKENS,
        "host_tokens": HOST_TOKENS,
        "store_tokens": STORE_TOKENS,
        **{
            name: getattr(options, name) for name in ("conversations", "rate", "gbit", "seeds", "ttft", "itl")
        },
    }
    if options.real:
        report = Report("tier-preemption-real", "python -m benchmarks.tier_preemption --real", {})
        real(report)
    else:
        report = Report("tier-preemption", "make bench NAME=tier-preemption", setup)
        virtual(options, report)
    report.show()
    print(report.write())


if __name__ == "__main__":
    main()
