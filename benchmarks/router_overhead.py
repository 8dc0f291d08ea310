"""router-overhead: what a router takes per request, in processor time and in waiting, ours beside the others.

Two engines that answer at once (`benchmarks/bare_engine.py`), 32 connections, and every router in turn: in
each round each router gets each kind of work for a moment, so that whatever else the machine does hits all
alike. Processor time is that of the router's process tree, user and system; it is steady where requests per
second are not. Kinds of work:

- *one token*: a JSON answer to a chat of 400 bytes;
- *burst*: a stream of 64 chunks that the engine sends at once;
- *paced*: a stream of 64 chunks 10 ms apart; told per chunk;
- *32 KB*: a JSON answer to a chat of 32 KB.

Ours is measured in three rows, all with metrics, log lines, KV events and the self-check: *no tokens*
(least_loaded), *cached* (predicted_ttft, chats whose parts were seen before), *fresh* (predicted_ttft, text
that nobody has seen; beside it what `tokenizers` takes to encode the same text). The others get the chats of
*cached*.
"""

import argparse
import contextlib
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks import peers
from benchmarks.bare_engine import MODEL
from benchmarks.chats import Chats, contents
from benchmarks.http_load import Sample, load
from benchmarks.overhead_stage import Stage, Target, call, send_all
from benchmarks.report import Report, Series

NUM_CONNECTIONS = 32
NUM_CHUNKS = 64
DRAIN_TIMEOUT_S = 60.0
BUDGETS_S = {"one token": 200e-6, "paced": 45e-6}
"""Processor time of ours without tokens and with cached ones: per answer, and per chunk of a paced stream."""


@dataclass(frozen=True)
class Kind:
    """A kind of work. `chunks` 0: a JSON answer."""

    name: str
    prompt_bytes: int
    chunks: int = 0
    gap_s: float = 0.0


KINDS = (
    Kind("one token", 400),
    Kind("burst", 400, NUM_CHUNKS),
    Kind("paced", 400, NUM_CHUNKS, 0.01),
    Kind("32 KB", 32 * 1024),
)


@dataclass
class Cell:
    """All rounds of one target with one kind of work."""

    samples: list[Sample]

    def cpu_s(self, kind: Kind) -> list[float]:
        """Per answer, per chunk where they are paced."""
        return [one.cpu_s / max(1, one.num_events if kind.gap_s else one.num_answers) for one in self.samples]

    def waited_s(self, kind: Kind, percent: int) -> list[float]:
        """To the end of the answer; to its first byte where the chunks are paced."""
        return [one.percentile(one.first_s if kind.gap_s else one.whole_s, percent) for one in self.samples]


class Rounds:
    """Runs the cells and keeps what came of them."""

    def __init__(self, stage: Stage, window_s: float) -> None:
        self._stage = stage
        self._window_s = window_s
        self._chats = Chats(MODEL)
        self._encode = Tokenizer.from_file(str(stage.model / "tokenizer.json")).encode
        self.cells: dict[tuple[str, str], Cell] = {}
        self.encode_s: dict[str, list[float]] = {}

    def run(self, targets: Sequence[Target], kinds: Sequence[Kind]) -> None:
        for kind in kinds:
            call(self._stage.ports[0], "/bench/work", {"chunks": kind.chunks, "gap_s": kind.gap_s})
            for target in targets:
                sample = self._measure(target, kind)
                self.cells.setdefault((target.name, kind.name), Cell([])).samples.append(sample)
            self.encode_s.setdefault(kind.name, []).append(self._encoding(kind))

    def warm(self, targets: Sequence[Target], kinds: Sequence[Kind]) -> None:
        """Let everybody see once what is sent again and again: both engines, then all routers."""
        for kind in kinds:
            known = self._chats.known(kind.prompt_bytes, kind.chunks > 0)
            for port in self._stage.ports:
                send_all(port, known)
            self._drain()
            for target in targets:
                send_all(target.port, known)

    def _measure(self, target: Target, kind: Kind) -> Sample:
        stream = kind.chunks > 0
        asked = (
            self._chats.fresh(kind.prompt_bytes, stream)
            if target.fresh
            else self._chats.again(kind.prompt_bytes, stream)
        )
        if kind.gap_s:  # an answer takes 64 gaps: let every phase of it be in the window alike
            ramp_s, window_s = max(0.7, self._window_s / 2), max(1.0, self._window_s)
        else:
            ramp_s, window_s = 0.2 * self._window_s, self._window_s
        sample = uvloop.run(
            load(
                target.port,
                asked,
                target.cpu_s,
                num_connections=NUM_CONNECTIONS,
                ramp_s=ramp_s,
                window_s=window_s,
            )
        )
        self._drain()
        return sample

    def _drain(self) -> None:
        end_s = time.monotonic() + DRAIN_TIMEOUT_S
        while json.loads(call(self._stage.ports[0], "/bench/backlog")) and time.monotonic() < end_s:
            time.sleep(0.05)

    def _encoding(self, kind: Kind) -> float:
        texts = [
            contents(request) for request in itertools.islice(self._chats.fresh(kind.prompt_bytes, False), 30)
        ]
        before_s = time.process_time()
        for text in texts:
            self._encode(text)
        return (time.process_time() - before_s) / len(texts)


def report(rounds: Rounds, targets: Sequence[Target], setup: dict[str, object], notes: list[str]) -> Report:
    made = Report("router-overhead", "make bench NAME=router-overhead", setup, notes=notes)
    for kind in KINDS:
        direct = rounds.cells["no router", kind.name]
        made.series.append(Series(f"tokenizers.encode: {kind.name}: processor s", rounds.encode_s[kind.name]))
        for target in targets:
            cell = rounds.cells[target.name, kind.name]
            name = f"{target.name}: {kind.name}"
            if target.process is not None:
                made.series.append(Series(f"{name}: processor s", cell.cpu_s(kind)))
                for percent in (50, 99):
                    pairs = zip(cell.waited_s(kind, percent), direct.waited_s(kind, percent), strict=True)
                    made.series.append(Series(f"{name}: added p{percent}", [a - b for a, b in pairs]))
            rates = [setup_rate(one, setup) for one in cell.samples]
            made.series.append(Series(f"{name}: s per answer", rates))
            failures = sum(one.num_failures for one in cell.samples)
            if failures:
                made.notes.append(f"{name}: {failures} answers were failures")
    _compare(made)
    return made


def setup_rate(sample: Sample, setup: dict[str, object]) -> float:
    window_s = setup["window_s"]
    assert isinstance(window_s, float)
    return window_s / max(1, sample.num_answers)


def _compare(made: Report) -> None:
    """Ours beside the cheapest router in Rust that knows of caches, and beside the bare proxy."""
    median = {series.name: series.median for series in made.series}
    rust = [peer.name for peer in peers.PEERS if peer.is_rust]
    for kind in KINDS:
        of = f"{kind.name}: processor s"
        cheapest = min((median[f"{name}: {of}"] for name in rust if f"{name}: {of}" in median), default=None)
        for row in ("no tokens", "cached"):
            ours = median[f"anbar, {row}: {of}"]
            if cheapest is not None:
                made.ratios[f"{kind.name}: anbar, {row} / cheapest cache-aware router in Rust"] = (
                    ours / cheapest
                )
            made.ratios[f"{kind.name}: anbar, {row} / bare proxy"] = ours / max(
                1e-9, median[f"bare proxy: {of}"]
            )
            if kind.name in BUDGETS_S:
                made.ratios[f"{kind.name}: anbar, {row} / budget"] = ours / BUDGETS_S[kind.name]


def show(made: Report, targets: Sequence[Target]) -> None:
    median = {series.name: series.median for series in made.series}
    for what, unit, scale in (
        ("processor s", "processor µs per answer (paced: per chunk)", 1e6),
        ("added p50", "added to the median of waiting, ms (paced: to the first byte)", 1e3),
        ("added p99", "added to the 99th percentile, ms", 1e3),
    ):
        table = Table(title=f"{made.name}: {unit}")
        table.add_column("router")
        for kind in KINDS:
            table.add_column(kind.name, justify="right")
        names = [target.name for target in targets] + ["tokenizers.encode"]
        for name in names:
            values = [median.get(f"{name}: {kind.name}: {what}") for kind in KINDS]
            if any(value is not None for value in values):
                table.add_row(name, *("" if v is None else f"{v * scale:,.1f}" for v in values))
        Console().print(table)
    for name, value in made.ratios.items():
        print(f"{name}: {value:.2f}")
    for note in made.notes:
        print(note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=1.5, help="seconds per measurement")
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    num_rounds, window_s = (1, 0.6) if options.quick else (options.rounds, options.window)
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch, contextlib.ExitStack() as stack:
        stage = Stage(Path(scratch), stack)
        targets = stage.targets(with_peers=not options.no_peers)
        rounds = Rounds(stage, window_s)
        rounds.warm(targets, KINDS)
        for _ in range(num_rounds):
            rounds.run(targets, KINDS)
    setup: dict[str, object] = {
        "connections": NUM_CONNECTIONS,
        "chunks": NUM_CHUNKS,
        "window_s": window_s,
        "engines": 2,
        "peers": peers.versions(),
    }
    made = report(rounds, targets, setup, stage.notes)
    show(made, targets)
    if not options.quick and not options.no_peers:
        print(f"written: {made.write()}")


if __name__ == "__main__":
    main()
