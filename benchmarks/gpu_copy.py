"""gpu-copy: pinned host memory to a CUDA device and back, by size of chunk.

    ANBAR_ENGINE_PYTHON=/path/to/python-with-torch make bench NAME=gpu-copy
    python -m benchmarks.gpu_copy [--rounds N] [--total-mib N]

Chunks of 64 KiB to 16 MiB, whole or in 32 pieces (as the layers of a model scatter a chunk), on one stream
and on four, one alone and many together; with torch's copies, and with the batched copy of vLLM's offloading.
Out come GB/s, and what the planner and the emulator take: latency and bandwidth of a tier
(`core.cost.TierCost`) and the cost of one contiguous copy (`core.cost.CopyCost`). It takes about a minute.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anbar.apps import interpreter
from anbar.core.cost import CopyCost
from anbar.core.errors import AnbarError
from benchmarks.gpu_copy_device import NO_CUDA, Case
from benchmarks.report import Report, Series

LIMIT_S = 500.0


@dataclass(frozen=True)
class Measured:
    """A case and its seconds, one a round."""

    case: Case
    seconds: list[float]

    @property
    def median_s(self) -> float:
        return Series("", self.seconds).median

    @property
    def num_copies(self) -> int:
        return self.case.total_bytes // self.case.chunk_bytes * self.case.num_pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--total-mib", type=int, default=256)
    args = parser.parse_args()
    try:
        python, origin = interpreter.choose(os.environ)
    except AnbarError as error:
        sys.exit(f"gpu-copy: {error}")
    device = Path(__file__).with_name("gpu_copy_device.py")
    options = ["--rounds", str(args.rounds), "--total-mib", str(args.total_mib)]
    done = subprocess.run(
        [python, device, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode == NO_CUDA:
        why = done.stderr.strip().splitlines()[-1]
        sys.exit(
            f"gpu-copy: {why}; nothing was measured. Name an interpreter with torch for CUDA by "
            f"{interpreter.PYTHON_VARIABLE} (this one is from {origin})."
        )
    if done.returncode:
        sys.exit(f"gpu-copy: {done.stderr[-2000:]}")
    about, *samples = map(json.loads, done.stdout.splitlines())
    command = " ".join(["make bench NAME=gpu-copy", *sys.argv[1:]])
    report = made(Report("gpu-copy", command, about), gathered(samples))
    report.show()
    print(report.write())


def gathered(samples: Iterable[dict[str, Any]]) -> list[Measured]:
    """Samples by case, in the order in which cases first came."""
    seconds: dict[Case, list[float]] = defaultdict(list)
    for sample in samples:
        seconds[Case(**{name: sample[name] for name in Case._fields})].append(sample["seconds"])
    return [Measured(case, found) for case, found in seconds.items()]


def made(report: Report, measured: Sequence[Measured]) -> Report:
    """The report of what was measured, with costs for each direction and method."""
    for one in measured:
        name = title(one.case)
        report.series.append(Series(name, one.seconds))
        report.figures[f"{name}, GB/s"] = round(one.case.total_bytes / one.median_s / 1e9, 2)
    for to_device in (True, False):
        for method in dict.fromkeys(one.case.method for one in measured):
            of = [m for m in measured if (m.case.to_device, m.case.method) == (to_device, method)]
            cost = fitted([m for m in of if m.case.num_streams == 1])
            name = f"{direction(to_device)}, {method}"
            report.figures[f"{name}: latency_s"] = cost.latency_s
            report.figures[f"{name}: s_per_copy"] = cost.s_per_copy
            report.figures[f"{name}: bytes_per_s"] = 1 / cost.s_per_byte if cost.s_per_byte else 0.0
    return report


def fitted(measured: Sequence[Measured]) -> CopyCost:
    """`latency + s_per_copy * copies + s_per_byte * bytes`, nearest in relative error, none of them negative:
    one that would be is left out."""
    names = ["latency_s", "s_per_copy", "s_per_byte"]
    rows = np.array([[1.0, m.num_copies, m.case.total_bytes] for m in measured])
    seconds = np.array([m.median_s for m in measured])
    weighed = rows / seconds[:, None]
    kept = list(range(len(names)))
    while True:
        scale = np.linalg.norm(weighed[:, kept], axis=0)
        found = np.linalg.lstsq(weighed[:, kept] / scale, np.ones(len(measured)), rcond=None)[0] / scale
        if (found >= 0).all():
            return CopyCost(**{names[index]: float(value) for index, value in zip(kept, found, strict=True)})
        del kept[int(np.argmin(found * scale))]


def title(case: Case) -> str:
    """A case in words."""
    size = case.chunk_bytes // 1024
    chunk = f"{size // 1024} MiB" if size >= 1024 else f"{size} KiB"
    number = case.total_bytes // case.chunk_bytes
    pieces = f" in {case.num_pieces}" if case.num_pieces > 1 else ""
    streams = f", {case.num_streams} streams" if case.num_streams > 1 else ""
    return f"{direction(case.to_device)}, {case.method}: {number} × {chunk}{pieces}{streams}"


def direction(to_device: bool) -> str:
    """Host to device or back."""
    return "load" if to_device else "store"


if __name__ == "__main__":
    main()
