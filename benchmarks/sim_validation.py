"""sim-validation: how far what the planner works out is from what others published.

The engine model is fitted to vLLM's curves and to profiles, and to nothing else; then it predicts a published
table of 16 H100s. Miss-ratio curves are compared with figures computed elsewhere, with another simulator and
with the paper. One small scenario is played to the model and to an emulated engine. Writes the results, and
`docs/concepts/validation.md` with its plots.
"""

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.validation import curves, emulated, hit_rates, oracles, page, published, table, user_cases

ALLOWED = 0.10
READ_OFF = 3e8
"""Bytes a second by which the plots of bandwidth are read off."""
ALLOWED_GAIN = 0.05
ALLOWED_HIT_RATE = 0.001
ALLOWED_SAMPLED = 0.01
ALLOWED_EMULATED = 0.15
RATES = (0.1, 0.03, 0.01)
"""Shares of the blocks that are followed."""


def curve_part(report: Report) -> None:
    """vLLM's curves."""
    fitted = curves.fitted()
    report.setup["fitted"] = asdict(fitted)
    found = {
        "ttft_computed": curves.compute_curve(fitted.llama),
        "ttft_loaded": curves.load_curve(fitted.llama),
        "throughput_by_hits": curves.hit_curve(fitted.llama),
    }
    found["to_device"], found["to_host"] = curves.transfer_curve(fitted.llama)
    for name, points in found.items():
        report.setup[name] = [asdict(point) for point in points]
        report.figures[f"{name}: worst error"] = max(abs(point.error) for point in points)
        print(f"{name}: {report.figures[f'{name}: worst error']:.1%} at worst", flush=True)


def table_part(report: Report, rows: Sequence[table.Predicted]) -> None:
    """The table of 16 H100s."""
    for one in rows:
        name = f"16 x H100, {one.row.scenario}, {one.row.config}"
        report.ratios[f"{name}: throughput, model / published"] = 1 + one.error
    report.setup["table"] = [asdict(one) for one in rows]
    report.setup["table_gains"] = [asdict(gain) | {"agrees": gain.agrees} for gain in table.gains(rows)]


def hit_rate_part(report: Report) -> None:
    """Miss-ratio curves, as they are and sampled."""
    for trace in hit_rates.TRACES:
        rates = hit_rates.against_simulation(trace)
        report.setup[f"hit_rates, {trace}"] = [asdict(rate) for rate in rates]
        report.setup[f"paper, {trace}"] = [asdict(rate) for rate in hit_rates.against_paper(trace)]
        report.setup[f"full blocks alone, {trace}"] = hit_rates.full_blocks_alone(trace)
        report.figures[f"hit rate, {trace}: worst difference"] = worst(rates)
        samples = [hit_rates.sampled(trace, rate) for rate in RATES]
        report.setup[f"sampled, {trace}"] = [asdict(sample) for sample in samples]
        print(f"{trace}: {worst(rates):.5f} at worst", flush=True)


def worst(rates: Sequence[hit_rates.HitRate]) -> float:
    """The largest difference between two hit rates."""
    return max(abs(rate.other - rate.ours) for rate in rates)


def oracle_part(report: Report) -> None:
    """Other people's simulators."""
    simulator = oracles.environment(oracles.KVCACHE_SIMULATOR)
    aisimulate = oracles.environment(oracles.AISIMULATE)
    reasons = {one.package: one.reason for one in (simulator, aisimulate) if one.python is None}
    report.setup["oracles_left_out"] = reasons
    for trace in hit_rates.TRACES if simulator.python is not None else ():
        rates = oracles.kvcache_simulator(simulator, trace)
        report.setup[f"kvcache-simulator, {trace}"] = [asdict(rate) for rate in rates]
        report.figures[f"kvcache-simulator, {trace}: worst difference"] = worst(rates)
    for package, reason in reasons.items():
        report.notes.append(f"{package} left out: {reason}")
    if aisimulate.python is not None:
        report.notes.append(
            f"{aisimulate.package} is there, but nobody has written yet how its rows are asked for"
        )


def emulated_part(report: Report) -> None:
    """The same scenario in the model and on an emulated engine."""
    agreements = list(emulated.compare())
    report.setup["emulated"] = [asdict(one) for one in agreements]
    for one in agreements:
        report.ratios[f"{one.figure}: emulated / model"] = 1 + one.error


def user_case_part(report: Report) -> None:
    """What people have reported."""
    judged = list(user_cases.judge())
    report.setup["user_cases"] = [asdict(one) for one in judged]
    report.figures["user cases: right"] = sum(one.agrees for one in judged)


def misses(setup: dict[str, Any]) -> Iterator[str]:
    """What is further off than it may be."""
    for name in ("ttft_computed", "ttft_loaded", "throughput_by_hits"):
        for point in setup[name]:
            error = point["model"] / point["published"] - 1
            if abs(error) > ALLOWED:
                yield f"{name} at {point['at']:g}: {error:+.1%}, allowed {ALLOWED:.0%}"
    for name in ("to_device", "to_host"):
        for point in setup[name]:
            error = point["model"] / point["published"] - 1
            if abs(error) > ALLOWED:
                where = f"bandwidth {name.replace('_', ' ')} in pieces of {point['at'] / 1024:g} KiB"
                read = f"the plot is read to {READ_OFF / point['published']:.0%}"
                yield f"{where}: {error:+.1%}, allowed {ALLOWED:.0%}; {read}"
    for row in setup["table"]:
        error = row["tokens_per_s"] / row["row"]["tokens_per_s"] - 1
        if abs(error) > ALLOWED:
            yield f"{page.row_name(row['row'])}: throughput {error:+.1%}, allowed {ALLOWED:.0%}"
    for gain in setup["table_gains"]:
        if abs(gain["model"] - gain["published"]) > ALLOWED_GAIN:
            yield (
                f"{page.row_name(gain)}: gain {gain['model']:+.1%} in place of {gain['published']:+.1%}, "
                "allowed 5 points"
            )
        if not gain["agrees"]:
            yield f"{page.row_name(gain)}: the other verdict"
    yield from _other_misses(setup)


def _other_misses(setup: dict[str, Any]) -> Iterator[str]:
    for trace in hit_rates.TRACES:
        for rate in setup[f"hit_rates, {trace}"] + setup.get(f"kvcache-simulator, {trace}", []):
            if abs(rate["ours"] - rate["other"]) > ALLOWED_HIT_RATE:
                yield f"{trace} at {rate['capacity']:g}: {rate['ours']:.4f} in place of {rate['other']:.4f}"
        one = setup[f"sampled, {trace}"][-1]
        if one["worst"] > ALLOWED_SAMPLED:
            yield (
                f"{trace}, {one['followed']:.1%} of the blocks followed: {100 * one['worst']:.1f} points off "
                f"at worst, {100 * one['mean']:.1f} on average, allowed 1"
            )
    for one in setup["user_cases"]:
        if not one["agrees"]:
            yield f"case {one['name']}: {one['got']} in place of {one['expected']}: {one['reason']}"
    for one in setup["emulated"]:
        if abs(one["emulated"] / one["model"] - 1) > ALLOWED_EMULATED:
            yield f"{one['figure']}: emulated {one['emulated']:.3f}, model {one['model']:.3f}"


def all_parts(report: Report, passes: int) -> None:
    """Every comparison."""
    curve_part(report)
    with ProcessPoolExecutor() as processes:
        asked = list(published.table())
        rows = [processes.submit(table.predict, row, curves.fitted(), passes) for row in asked]
        hit_rate_part(report)
        oracle_part(report)
        user_case_part(report)
        emulated_part(report)
        table_part(report, [row.result() for row in rows])


def main() -> None:
    """Compare, print, write the result and the page. What is off is said; the exit status is 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=table.PASSES, help="of the table's 450 prompts")
    parser.add_argument("--cases", action="store_true", help="judge the user cases alone; keep the rest")
    options = parser.parse_args()
    report = Report("sim-validation", "make bench NAME=sim-validation", {"passes": options.passes})
    if options.cases:
        last = page.result()
        report = Report(**{field.name: last[field.name] for field in fields(Report) if field.name in last})
        report.notes = [note for note in report.notes if not note.startswith("off: ")]
        user_case_part(report)
    else:
        all_parts(report, options.passes)
    report.setup["misses"] = list(misses(report.setup))
    report.notes += [f"off: {miss}" for miss in report.setup["misses"]]
    report.show()
    path = report.write()
    written = page.write(page.DOCS)
    for one in (path, *written):
        print(f"written: {one.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
