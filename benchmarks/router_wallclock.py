"""router-wallclock: routers before a fleet of emulated engines, on the clock, and the same in virtual time.

A window of the trace of `router-quality`, in open loop, once for each router: ours and those of others that
are installed (`python -m benchmarks.peers install`). Each meets a fresh fleet, of engines that compute
nothing but take as long as the engine model says. Hit rates are the engines' own counts. The processor time
of every process is recorded: where one takes more than 60 % of a core, the run says how busy this machine is
and not how good the router, and is void.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import psutil
from rich.console import Console
from rich.table import Table
from tests.ports import free_port, free_ports
from tokenizers import Tokenizer

from anbar.route import make_policy
from benchmarks import peers
from benchmarks.bare_engine import MODEL
from benchmarks.fleet_sim import BLOCK, CONTEXT, Ask, FleetSim, pooled_hit_rate, trace, working_set
from benchmarks.overhead_stage import START_TIMEOUT_S, Stage, Target, answering, call
from benchmarks.peer_policies import PEER_POLICIES
from benchmarks.report import Report, Series
from benchmarks.router_quality import MIN_BLOCKS, NUM_ENGINES, SLO_ITL_S, SLO_TTFT_S, SPEED
from benchmarks.wallclock_clients import Prompts, Timing, drive

FIRST, COUNT = 1000, 500
"""The window of the trace."""
LEVEL = 1.5
"""Working set over the fleet's cache."""
SLOW = 1.0
"""Wall seconds for one of the engine model."""
SLOWER = {"litellm simple-shuffle": 2.0}
"""So many times slower again: it takes 0.11 s of processor time for each of these prompts."""
MAX_CPU = 0.6
CPU_WINDOW_S = 10
NUM_STARTS = 2
"""How often a router is started that does not come up."""
NUM_PROCESSES = 2
"""That the engines share."""
CHOSEN = (
    "vllm-router cache_aware",
    "sglang-router cache_aware",
    "smg cache_aware",
    "production-stack prefixaware",
    "litellm simple-shuffle",
)
"""Each peer in the policy that looks at prefixes, if it has one."""
FORMULAS = {
    "vllm-router cache_aware": "cache_aware (vllm-router, sglang-router)",
    "sglang-router cache_aware": "cache_aware (vllm-router, sglang-router)",
    "smg cache_aware": "cache_aware (smg)",
    "production-stack prefixaware": "prefixaware (production-stack)",
    "litellm simple-shuffle": "random",
}
OURS = "predicted_ttft"
SIZES = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": CONTEXT,
    "dtype": "bfloat16",
}
"""Of the 8B model whose steps the engines imitate; its tokenizer is the small model's."""


@dataclass(frozen=True)
class Figures:
    """What came of one run."""

    hit_rate: float
    goodput: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float


@dataclass(frozen=True)
class Run:
    """One router on the clock. `cpu`: of each process, the share of a core that it took in its busiest
    `CPU_WINDOW_S` seconds."""

    name: str
    wall: Figures
    virtual: Figures
    slow: float
    cpu: dict[str, float]
    others_cpu: float
    """Of whatever else ran on the machine, in cores, on the average."""
    num_failed: int
    client_late_p99_s: float

    @property
    def is_void(self) -> bool:
        return max(self.cpu.values()) > MAX_CPU


@dataclass(frozen=True)
class Work:
    """What every router is given."""

    asks: Sequence[Ask]
    bodies: Sequence[bytes]
    num_blocks: int
    slow: float


def figures(ttft_s: Sequence[float], itl_s: Sequence[float], span_s: float, hit_rate: float) -> Figures:
    percentiles = statistics.quantiles(ttft_s, n=100)
    good = sum(a <= SLO_TTFT_S and b <= SLO_ITL_S for a, b in zip(ttft_s, itl_s, strict=True))
    return Figures(hit_rate, good / span_s, percentiles[49], percentiles[89], percentiles[98])


def virtual(policy: str, work: Work) -> Figures:
    """The same work for the same policy in virtual time."""
    formulas = {made.name: made for made in PEER_POLICIES}
    rng = Random(0)
    chosen = formulas[policy](rng) if policy in formulas else make_policy(policy, rng)
    result = FleetSim(NUM_ENGINES, work.num_blocks, chosen).run(work.asks)
    return figures(result.ttft_s, result.itl_s, result.span_s, result.hit_rate)


def as_figures(timings: Sequence[Timing], work: Work, hit_rate: float) -> Figures:
    """In seconds of the engine model; what failed is beyond every objective."""
    ttft_s, itl_s = [], []
    for timing, ask in zip(timings, work.asks, strict=True):
        is_ok = timing.status == 200
        ttft_s.append(timing.first_s / work.slow if is_ok else 1e3)
        itl_s.append((timing.end_s - timing.first_s) / work.slow / max(1, ask.num_answer - 1))
    return figures(ttft_s, itl_s, work.asks[-1].at_s - work.asks[0].at_s, hit_rate)


class Fleet:
    """The emulated engines of one run."""

    def __init__(self, stage: Stage, model: Path, work: Work) -> None:
        per_process = NUM_ENGINES // NUM_PROCESSES
        self.ports: list[int] = []
        self.processes: list[psutil.Process] = []
        for _ in range(NUM_PROCESSES):
            ports, events = free_ports(per_process), free_ports(2 * per_process)
            config = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{events[0]}",
                "replay_endpoint": f"tcp://*:{events[per_process]}",
            }
            flags = {
                "--model": model,
                "--served-model-name": MODEL,
                "--port": ports[0],
                "--count": per_process,
                "--block-size": BLOCK,
                "--num-gpu-blocks-override": work.num_blocks + 1,
                "--speed": 1 / work.slow,
                "--kv-events-config": json.dumps(config),
            }
            argv = [sys.executable, "-m", "anbar.cli.main", "emulate", "--enable-prompt-tokens-details"]
            argv += [str(part) for pair in flags.items() for part in pair]
            self.processes.append(stage.run(argv))
            self.ports += ports
        for port in self.ports:
            answering(Target("engine", port), START_TIMEOUT_S)

    def hits(self) -> tuple[float, float]:
        """Prompt tokens that were in a cache, and all that were looked up, so far."""
        found = {"vllm:prefix_cache_hits_total": 0.0, "vllm:prefix_cache_queries_total": 0.0}
        for port in self.ports:
            for line in call(port, "/metrics").decode().splitlines():
                name = line.partition("{")[0]
                if name in found:
                    found[name] += float(line.rpartition(" ")[2])
        hits, queries = found.values()
        return hits, queries


def cpu_s(processes: Sequence[psutil.Process]) -> dict[int, float]:
    """Processor time so far of processes and all below them."""
    found = {}
    for process in processes:
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[one.pid] = sum(one.cpu_times()[:2])
    return found


@dataclass(frozen=True)
class CpuSample:
    """Processor time of each process so far."""

    at_s: float
    cpu_s: dict[int, float]


async def watched(
    driving: Coroutine[None, None, list[Timing]], processes: Iterable[psutil.Process]
) -> tuple[list[Timing], list[CpuSample]]:
    """What comes of `driving`, and a sample for every second of it."""
    task, samples, parts = asyncio.ensure_future(driving), [], [*processes]
    while not task.done():
        samples.append(CpuSample(time.perf_counter(), cpu_s(parts)))
        await asyncio.wait([task], timeout=1.0)
    return task.result(), [*samples, CpuSample(time.perf_counter(), cpu_s(parts))]


def busiest(samples: Sequence[CpuSample]) -> dict[int, float]:
    """Of each process, its share of a core in its busiest window."""
    most: dict[int, float] = {}
    for a, b in zip(samples, samples[CPU_WINDOW_S:] or samples[-1:], strict=False):
        for pid, after in b.cpu_s.items():
            share = (after - a.cpu_s.get(pid, after)) / (b.at_s - a.at_s)
            most[pid] = round(max(share, most.get(pid, 0.0)), 3)
    return most


def busy_s() -> float:
    """Processor time of the whole machine so far."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def measure(name: str, work: Work, model: Path, start: Callable[[Stage], tuple[int, psutil.Process]]) -> Run:
    """One router before a fresh fleet."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        stage = Stage(Path(scratch), stack)
        fleet = Fleet(stage, model, work)
        stage.engines = [f"http://127.0.0.1:{port}" for port in fleet.ports]
        port, router = start(stage)
        answering(Target(name, port), START_TIMEOUT_S)
        parts = {"router": router, "client": psutil.Process()}
        parts |= {f"engines {number}": process for number, process in enumerate(fleet.processes)}
        hits, queries = fleet.hits()
        all_began = busy_s()
        timings, samples = asyncio.run(
            watched(drive(port, work.asks, work.bodies, work.slow), parts.values())
        )
        all_s = busy_s() - all_began
        more_hits, more_queries = fleet.hits()
    took_s = samples[-1].at_s - samples[0].at_s
    own_s = sum(end - samples[0].cpu_s.get(pid, 0.0) for pid, end in samples[-1].cpu_s.items())
    names = {process.pid: part for part, process in parts.items()}
    return Run(
        name,
        as_figures(timings, work, (more_hits - hits) / max(1.0, more_queries - queries)),
        virtual(FORMULAS.get(name, OURS), work),
        slow=work.slow,
        cpu={names.get(pid, f"child {pid}"): share for pid, share in busiest(samples).items()},
        others_cpu=round((all_s - own_s) / took_s, 3),
        num_failed=sum(timing.status != 200 for timing in timings),
        client_late_p99_s=statistics.quantiles([timing.late_s for timing in timings], n=100)[98],
    )


def starts(names: Sequence[str]) -> dict[str, Callable[[Stage], tuple[int, psutil.Process]]]:
    """How each router is started; ours comes first."""
    found: dict[str, Callable[[Stage], tuple[int, psutil.Process]]] = {
        "anbar": lambda stage: stage.ours(OURS)
    }

    def foreign(peer: peers.Peer) -> Callable[[Stage], tuple[int, psutil.Process]]:
        def start(stage: Stage) -> tuple[int, psutil.Process]:
            port = free_port()
            asked = peers.Start(str(peer.python), port, free_port(), stage.engines, stage.scratch)
            return port, stage.run(peer.start(asked))

        return start

    for peer in peers.PEERS:
        if peer.name in names:
            found[peer.name] = foreign(peer)
    return found


def model_like_8b(small: Path, scratch: Path) -> Path:
    """The small model's tokenizer with a configuration of the 8B model's sizes."""
    model = scratch / "model-8b"
    model.mkdir()
    for path in small.iterdir():
        if path.name != "config.json" and path.suffix != ".safetensors":
            (model / path.name).symlink_to(path)
    config = json.loads((small / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | SIZES))
    return model


def words_of(model: Path) -> list[str]:
    """Short words of which each is one token wherever it stands."""
    vocabulary = Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab()
    found = (token[1:] for token in vocabulary if token[0] == "Ġ")
    return sorted(f" {word}" for word in found if 2 <= len(word) <= 4 and word.isascii() and word.isalpha())


def show(runs: Sequence[Run]) -> None:
    table = Table(title="router-wallclock: on the clock / in virtual time")
    for column in ("router", "hit rate", "goodput /s", "TTFT p50 s", "p90", "p99", "busiest process", "void"):
        table.add_column(column, justify="left" if column == "router" else "right")
    for run in runs:
        pairs = zip(asdict(run.wall).values(), asdict(run.virtual).values(), strict=True)
        busiest = max(run.cpu, key=run.cpu.__getitem__)
        cells = [f"{a:.2f} / {b:.2f}" for a, b in pairs]
        table.add_row(run.name, *cells, f"{busiest} {run.cpu[busiest]:.0%}", "void" if run.is_void else "")
    Console(width=150).print(table)


def report(runs: Sequence[Run], setup: dict[str, object]) -> Report:
    made = Report("router-wallclock", "make bench NAME=router-wallclock", setup)
    ours, others = runs[0], runs[1:]
    for run in others:
        for what in ("hit_rate", "goodput"):
            for clock in ("wall", "virtual"):
                of = getattr(getattr(run, clock), what)
                name = f"{what} of anbar / of {run.name}, {clock}"
                made.ratios[name] = getattr(getattr(ours, clock), what) / of if of else 0.0
    for run in runs:
        made.series.append(Series(f"{run.name}: ttft p50, p90, p99", [*asdict(run.wall).values()][2:]))
        if run.is_void:
            made.notes.append(f"{run.name} is void: {run.cpu}")
    made.setup["runs"] = [asdict(run) | {"void": run.is_void} for run in runs]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--routers", nargs="*", default=CHOSEN, help="beside ours")
    parser.add_argument("--requests", type=int, default=COUNT)
    parser.add_argument("--level", type=float, default=LEVEL)
    parser.add_argument("--slow", type=float, default=SLOW, help="wall seconds for one of the engine model")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    asks = trace(FIRST, options.requests, SPEED)
    num_blocks = max(MIN_BLOCKS, int(working_set(asks) / options.level / NUM_ENGINES))
    runs, notes = [], []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        small = Stage(Path(scratch), stack).model
        model = model_like_8b(small, Path(scratch))
        prompts = Prompts(words_of(small))
        work = Work(asks, [prompts.body(ask) for ask in asks], num_blocks, options.slow)
        for name, start in starts(options.routers).items():
            its_work = replace(work, slow=work.slow * SLOWER.get(name, 1.0))
            for attempt in range(NUM_STARTS):
                try:
                    runs.append(measure(name, its_work, model, start))
                except (TimeoutError, OSError) as error:
                    notes.append(f"{name}, start {attempt + 1}: {error}")
                else:
                    show(runs[-1:])
                    break
    setup: dict[str, object] = {
        "engines": NUM_ENGINES,
        "requests": options.requests,
        "speed": SPEED,
        "slow": options.slow,
        "level": options.level,
        "pooled_hit_rate": pooled_hit_rate(asks, NUM_ENGINES * num_blocks),
        "peers": peers.versions(),
    }
    made = report(runs, setup)
    made.notes += notes
    show(runs)
    for line in [*(f"{name}: {value:.2f}" for name, value in made.ratios.items()), *made.notes]:
        print(line)
    if options.write:
        print(f"written: {made.write()}")


if __name__ == "__main__":
    main()
