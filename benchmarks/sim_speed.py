"""sim-speed: how much faster than real time a fleet is simulated, on one core.

Eight engines (Llama-3.1-8B on an H100 each, estimated), a public chat trace at its own pace (`data`), each
kind of cache. *Times real time* is virtual seconds, from the first arrival to the end of the last answer,
over seconds of CPU time, reading the trace left out. `--speed`: a faster trace, busier engines.
"""

import argparse
import sys
import time
from pathlib import Path

from anbar.apps.advise.trace import read_trace
from anbar.apps.simulate.run import simulate
from anbar.apps.simulate.setup import CacheSetup, FleetSetup, Mode, Setup, StoreSetup
from anbar.apps.simulate.traces import trace_load
from anbar.plan.catalogue import MODELS
from anbar.plan.deployment import Deployment
from anbar.plan.workload import Workload
from benchmarks.fleet_sim import BLOCK, TRACE
from benchmarks.report import Report

NUM_ENGINES = 8
HOST_BYTES = 200 << 30
WANTED = 50.0


def measured(mode: Mode, workload: Workload, speed: float) -> tuple[float, float]:
    """Virtual seconds, and seconds of CPU time."""
    fleet = FleetSetup(
        Deployment("Llama-3.1-8B", MODELS["Llama-3.1-8B"], "H100"), NUM_ENGINES, block_size=BLOCK
    )
    setup = Setup(fleet, CacheSetup(mode, HOST_BYTES, BLOCK, store=StoreSetup("valkey-100gbe")))
    load = trace_load(workload, BLOCK, speed=speed)
    began_s = time.process_time()
    result = simulate(setup, load)
    return result.span_s, time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--speed", type=float, default=1.0, help="of the trace")
    parser.add_argument("--modes", nargs="*", type=Mode, default=list(Mode))
    options = parser.parse_args()
    read = read_trace(Path(TRACE)).workload
    workload = Workload(read.requests[: options.requests], read.block_size)
    setup: dict[str, object] = {
        "engines": NUM_ENGINES,
        "requests": len(workload.requests),
        "speed": options.speed,
    }
    report = Report("sim-speed", "make bench NAME=sim-speed", setup)
    for mode in options.modes:
        virtual_s, cpu_s = measured(mode, workload, options.speed)
        report.figures |= {f"{mode}: virtual time, s": virtual_s, f"{mode}: CPU time, s": cpu_s}
        report.ratios[f"{mode}: times real time"] = virtual_s / cpu_s
    report.show()
    print(report.write())
    slow = [name for name, ratio in report.ratios.items() if ratio < WANTED]
    if slow:
        sys.exit(f"below {WANTED:g}: {', '.join(slow)}")


if __name__ == "__main__":
    main()
