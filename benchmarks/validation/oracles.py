"""Other people's simulators, each in an environment of its own that is made when it is missing.

They go to `.bench/oracles/<name>` (ANBAR_BENCH_ORACLES: elsewhere), never into our own environment. What
cannot be installed is left out of the results, with the reason.
"""

import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.validation import hit_rates

KVCACHE_SIMULATOR = "kvcache-simulator==0.1.3"
AISIMULATE = "aisimulate==0.13.0"
_INSTALL_S = 600
_GIB = (64, 512, 2048, 4096)
_MODEL = "llama-3.1-70b"
"""Any will do: it says only how many bytes a block has."""

_ADDRESS = re.compile(r"https?://\S+?(?=[.,]?(?:\s|$))")


@dataclass(frozen=True, slots=True)
class Oracle:
    """An environment; `python` is None when there is none, for `reason`."""

    package: str
    python: Path | None
    reason: str = ""


def environment(package: str) -> Oracle:
    """As it is, or made now."""
    name = package.partition("==")[0]
    named = os.environ.get("ANBAR_BENCH_ORACLES")
    root = Path(named) if named else Path(__file__).parents[2] / ".bench" / "oracles"
    place = root / name
    python, done = place / "bin" / "python", place / "installed"
    if done.exists() and done.read_text() == package:
        return Oracle(package, python)
    failure = _run([sys.executable, "-m", "venv", "--clear", str(place)]) or _run(
        [str(python), "-m", "pip", "install", "--no-input", package]
    )
    if failure:
        return Oracle(package, None, failure)
    done.write_text(package)
    return Oracle(package, python)


def _run(argv: Sequence[str]) -> str:
    """Why it failed; "" when it did not."""
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    return "" if ran.returncode == 0 else why(ran.stdout + ran.stderr)


def why(text: str) -> str:
    """The part of what pip said that tells why, in one line, without addresses: those are the machine's."""
    found = re.search(r"(This is a special placeholder package.*?)(?:\n\s*\n|\Z)", text, re.DOTALL)
    lines = found.group(1) if found else next((x for x in text.splitlines() if "ERROR" in x), text[-300:])
    return _ADDRESS.sub("…", " ".join(lines.split()))


def kvcache_simulator(oracle: Oracle, trace: str) -> list[hit_rates.HitRate]:
    """LRU hit rates by tokens in the later half of a trace, at some sizes, and ours; capacities in blocks."""
    with tempfile.TemporaryDirectory(prefix="anbar-bench-") as scratch:
        path = Path(scratch) / "trace.jsonl"
        path.write_bytes(lzma.decompress(Path(hit_rates.path(trace)).read_bytes()))
        found = _simulated(oracle, path)
    capacities = [point["cacheBlocks"] for point in found["points"]]
    ours = hit_rates.second_half(trace, capacities)
    return [
        hit_rates.HitRate(point["cacheBlocks"], point["results"]["lru"]["hitRate"], own)
        for point, own in zip(found["points"], ours, strict=True)
    ]


def _simulated(oracle: Oracle, path: Path) -> dict[str, Any]:
    assert oracle.python is not None, "there is such an environment"
    budgets = ",".join(map(str, _GIB))
    options = ["--model", _MODEL, "--block-size", str(hit_rates.BLOCK), "--budgets-gib", budgets]
    how = ["--policies", "lru", "--backend", "python", "--no-progress", "--format", "json"]
    argv = [str(oracle.python), "-m", "kvcache_sim", "run", "--trace", str(path), *options, *how]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    content: dict[str, Any] = json.loads(ran.stdout)
    return content
