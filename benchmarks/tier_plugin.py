"""What connectors and tiers take of the CPU, by `benchmarks.tier_drive`."""

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.ports import free_ports

from benchmarks.report import Report

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0
NAMES = {
    "native": "host RAM only",
    "nothing": "Anbar, a store that does nothing",
    "files": "Anbar, a directory",
    "fs": "vLLM's fs tier, a directory",
    "lmcache": "LMCache's connector, its server",
}


def plugin_report(python: Path, lmcache: Path | None, model: Path, rounds: int) -> Report:
    """Ours and vLLM's in one process, LMCache's in another beside its server."""
    runs = drive(python, model, ["native", "nothing", "files", "fs"], rounds)
    if lmcache is not None:
        with lmcache_server(lmcache) as port:
            runs |= drive(lmcache, model, ["lmcache"], rounds, port)
    report = Report(
        name="tier-overhead-plugin",
        command="",
        setup={
            "load": "10,000 chunks/s of 32 tokens and 4 KiB, 100 steps/s, 2 prompts of 50 chunks in each",
            "rounds": rounds,
        },
    )
    for kind, measured in runs.items():
        if measured["tier"]:
            report.figures |= tier_figures(kind, measured["tier"])
        report.figures |= connector_figures(kind, measured["connector"])
    return report


def drive(python: Path, model: Path, kinds: list[str], rounds: int, lmcache: int = 0) -> dict[str, Any]:
    """By kind and by what was measured, rounds of `tier_drive.Load`."""
    with tempfile.TemporaryDirectory(prefix="anbar-drive-", dir="/dev/shm") as scratch:
        output = Path(scratch) / "output.json"
        command = [str(python), "-m", "benchmarks.tier_drive", str(model), scratch, str(output)]
        command += ["--kinds", *kinds, "--rounds", str(rounds), "--lmcache", str(lmcache)]
        environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "VLLM_LOGGING_LEVEL": "ERROR"}
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(output.read_text())
        return found


def tier_figures(kind: str, runs: list[Any]) -> dict[str, float]:
    """Medians over rounds."""
    figures: dict[str, float] = {}
    for index, what in enumerate(("unknown", "again")):
        loads = [run[index] for run in runs]
        for part, names in _parts(what).items():
            figures[f"{kind}, {what}: {part}, µs/chunk"] = _median(
                1e6 * sum(load["methods_s"].get(name, 0.0) for name in names) / load["num_chunks"]
                for load in loads
            )
        figures[f"{kind}, {what}: its other threads, µs/chunk"] = _median(
            1e6 * (load["cpu_s"] - load["main_s"]) / load["num_chunks"] for load in loads
        )
        figures[f"{kind}, {what}: of a step of 100 chunks, µs"] = _median(
            statistics.median(load["steps_us"]) for load in loads
        )
        figures[f"{kind}, {what}: chunks not computed, share"] = _median(
            load["num_cached"] / load["num_chunks"] for load in loads
        )
    steps = [us for run in runs for us in run[2]["steps_us"]]
    figures[f"{kind}, answers: of a step, median, µs"] = statistics.median(steps)
    figures[f"{kind}, answers: of a step, 99 of 100, µs"] = statistics.quantiles(steps, n=100)[-1]
    return {name: round(value, 2) for name, value in figures.items()}


def connector_figures(kind: str, runs: list[Any]) -> dict[str, float]:
    """The same of a whole connector: vLLM's own part, tiers and copies of blocks included."""
    figures: dict[str, float] = {}
    for index, what in enumerate(("unknown", "again")):
        loads = [run[index] for run in runs]
        figures[f"connector of {kind}, {what}, µs/chunk"] = _median(
            1e6 * sum(load["methods_s"].values()) / load["num_chunks"] for load in loads
        )
    steps = [us for run in runs for us in run[2]["steps_us"]]
    figures[f"connector of {kind}, answers: of a step, median, µs"] = statistics.median(steps)
    return {name: round(value, 2) for name, value in figures.items()}


def show(figures: dict[str, float]) -> None:
    """One row a kind."""
    tier = Table(title="CPU in a tier's methods, and in its own threads; µs a chunk, µs a step")
    connector = Table(title="CPU in a connector's methods; µs a chunk, µs a step")
    for table, columns in ((tier, _TIER_COLUMNS), (connector, _CONNECTOR_COLUMNS)):
        table.add_column("")
        for column in columns:
            table.add_column(column, justify="right")
        for kind, name in NAMES.items():
            cells = [figures.get(column.format(kind)) for column in columns.values()]
            if any(cell is not None for cell in cells):
                table.add_row(name, *("" if cell is None else f"{cell:.1f}" for cell in cells))
        Console(width=150).print(table)


_TIER_COLUMNS = {
    "lookup": "{}, unknown: looked up, µs/chunk",
    "store": "{}, unknown: stored, µs/chunk",
    "its threads": "{}, unknown: its other threads, µs/chunk",
    "step of 100 chunks": "{}, unknown: of a step of 100 chunks, µs",
    "load": "{}, again: loaded, µs/chunk",
    "load, its threads": "{}, again: its other threads, µs/chunk",
    "step without chunks": "{}, answers: of a step, median, µs",
    "99 of 100": "{}, answers: of a step, 99 of 100, µs",
}
_CONNECTOR_COLUMNS = {
    "unknown": "connector of {}, unknown, µs/chunk",
    "again": "connector of {}, again, µs/chunk",
    "step without chunks": "connector of {}, answers: of a step, median, µs",
}


@contextmanager
def lmcache_server(python: Path) -> Iterator[int]:
    """An LMCache server on loopback; its port."""
    port, page = free_ports(2)
    command = [str(python.with_name("lmcache")), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(page), "--chunk-size", "32"]
    command += ["--l1-size-gb", "1", "--eviction-policy", "LRU", "--disable-observability"]
    command += ["--supported-transfer-mode", "auto"]  # the default is for GPUs only
    environ = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environ, start_new_session=True)
    try:
        deadline_s = time.monotonic() + START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{' '.join(command)}: no server")
            time.sleep(0.2)
        yield port
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _parts(what: str) -> dict[str, tuple[str, ...]]:
    """Methods by what they are for. What has come is taken in `get_finished_jobs`, answers and ends of jobs
    alike: it is a store's where prompts are unknown, a load's where they come again."""
    ends = ("get_finished_jobs", "get_stats", "take_events", "has_pending_work")
    job = (
        {"stored": ("submit_store", "touch", *ends)}
        if what == "unknown"
        else {"loaded": ("submit_load", *ends)}
    )
    return {"looked up": ("on_new_request", "lookup", "on_schedule_end", "on_request_finished"), **job}


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)
