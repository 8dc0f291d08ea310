"""tier-overhead: what the tiers cost where they cannot help.

Two parts, together or by themselves (`--part`):

- *engine*: real vLLM without a cache and with the shared one, over a directory in memory that evicts. Both
  get the same prompts, which nobody has seen, one after the other, pair for pair in turn; tokens/s and CPU
  seconds as ratios. Twice (`--models`): with one layer of a large model (`random_model.py`), which
  makes as much KV for what it computes as large ones do, and with the small model, which makes twelve times
  as much. A quarter of an hour on two cores.
- *plugin*: no model. vLLM's scheduler with the plugin over a store that does nothing, with the plugin over a
  directory, with vLLM's own `fs` tier over one, and with LMCache's connector where it is installed
  (`make install-lmcache`), at 10,000 chunks a second. Three minutes.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from anbar.apps import interpreter, model
from benchmarks.report import RESULTS, Report, Series
from benchmarks.tier_pairs import (
    ANSWER_TOKENS,
    MIB,
    PROMPT_TOKENS,
    REQUESTS,
    STREAMS,
    Bounds,
    Compared,
    Half,
    interval,
    run_pairs,
)
from benchmarks.tier_plugin import plugin_report, show

ROOT = Path(__file__).resolve().parents[1]


NAMES = {
    "slice": "one layer of Llama-3.1-8B's shape, random weights, float32",
    "small": "smollm2-135m-instruct, float32",
}
BOUNDS = {"slice": Bounds(96 * MIB, 64 * MIB), "small": Bounds()}


def add_model(report: Report, model: str, halves: dict[str, list[Half]], counted: dict[str, float]) -> None:
    """Everything against `off`."""
    report.setup[model] = {
        "model": NAMES[model],
        "bounds": asdict(BOUNDS[model]),
        "counted": counted,
        "cpu_s": {name: [half.cpu_s for half in runs] for name, runs in halves.items()},
    }
    for name, runs in halves.items():
        report.series.append(Series(f"{model}, {name}", [half.seconds for half in runs]))
    off = halves["off"]
    for name, runs in halves.items():
        if name == "off":
            continue
        pairs = list(zip(runs, off, strict=True))
        speed = [a.tokens / a.seconds / (b.tokens / b.seconds) for a, b in pairs]
        cpu = [a.cpu_s / a.tokens / (b.cpu_s / b.tokens) for a, b in pairs]
        for what, ratios in ((f"tokens/s, {name} / off", speed), (f"CPU s/token, {name} / off", cpu)):
            one = interval(ratios)
            report.ratios[f"{model}: {what}"] = one.median
            figures = {f"{model}: {what}: {part}": round(value, 4) for part, value in asdict(one).items()}
            report.figures |= figures


def run_engines(options: argparse.Namespace, python: interpreter.Interpreter) -> None:
    small = model.ensure_default(python, model.models_dir(os.environ), print)
    setup = {
        "vllm": str(python.vllm),
        "half": f"{REQUESTS} prompts of {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens, {STREAMS} at a time",
        "store": "files in memory",
    }
    report = Report(name="tier-overhead", command=options.command, setup=setup)
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="anbar-over-", dir="/dev/shm") as directory:
            path = small
            if name == "slice":
                path = Path(directory) / "model"
                script = ROOT / "tests/engine/random_model.py"
                subprocess.run([python.path, script, small, path, name], check=True)
            compared = Compared(path, BOUNDS[name], options.engines, options.pairs)
            halves, counted = run_pairs(python.path, compared, Path(directory), partial(print, flush=True))
        add_model(report, name, halves, counted)
    report.show()
    print(f"written: {report.write(RESULTS)}")


def run_plugin(options: argparse.Namespace, python: interpreter.Interpreter) -> None:
    path = model.ensure_default(python, model.models_dir(os.environ), print)
    lmcache = ROOT / ".venv-lmcache/bin/python"
    report = plugin_report(python.path, lmcache if lmcache.exists() else None, path, options.rounds)
    report.command = options.command
    show(report.figures)
    print(f"written: {report.write(RESULTS)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("all", "engine", "plugin"), default="all")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--engines", nargs="+", default=["off", "shared"], help="of off, native, shared")
    parser.add_argument("--models", nargs="+", default=list(NAMES), help="of slice, small")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    options.command = "make bench NAME=tier-overhead"
    python = interpreter.inspect(*interpreter.choose(os.environ))
    if options.part in ("all", "plugin"):
        run_plugin(options, python)
    if options.part in ("all", "engine"):
        run_engines(options, python)


if __name__ == "__main__":
    main()
