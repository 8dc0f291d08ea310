"""tier-transfer: bytes from host RAM to each kind of store and back, beside what could be had without it.

    make bench NAME=tier-transfer
    python -m benchmarks.tier_transfer [--only files valkey s3] [--sizes KIB ...] [--rounds N] [--disk DIR]

Ours: the calls of a shared tier, 32 MiB each on its threads, to a `Store` and back, which also verifies
(xxh3-128), asks before it stores, and keeps a deadline. Beside it, in the same rounds and in random order:
`pwrite` and `pread` of the same files, SET and GET on bare sockets, the S3 client's own requests. Memory and
loopback TCP are measured too: they bound all of it. A ratio is the median over rounds of ours to the bare
loop's, of the same round; beside it is that of the fastest rounds, which others on the machine disturbed
least.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.integration.valkey.servers import server as valkey_server
from tests.s3_server import running_s3

from benchmarks.report import Report, Series
from benchmarks.transfer import files, memory, s3, valkey
from benchmarks.transfer.loop import MIB, Loop, Pair, Rows

KINDS = ("files", "valkey", "s3")
SIZES_KIB = (64, 256, 1024, 4096)
"""KV of one chunk: 64 KiB is a small model's block, 4 MiB two blocks of 16 tokens of an 8B model."""
TOTAL_MIB = {"memory": 64, "files": 64, "valkey": 64, "s3": 16}
"""Bytes moved by one loop: two of an engine's calls or more where the server is quick."""
SEED = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES_KIB, metavar="KIB")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clients", action="store_true", help="other clients of Valkey for Python, too")
    parser.add_argument("--disk", type=Path, default=Path.cwd(), help="a directory on a disk")
    args = parser.parse_args()
    setup = {"sizes_kib": list(args.sizes), "moved_mib": TOTAL_MIB, "rounds": args.rounds}
    report = Report("tier-transfer", " ".join(["make bench NAME=tier-transfer", *sys.argv[1:]]), setup)
    for size_kib in args.sizes:
        compare(report, size_kib, args)
    report.notes.append("files on a disk are in the page cache: nothing is synced, by either")
    report.show()
    print(report.write())


def compare(report: Report, size_kib: int, args: argparse.Namespace) -> None:
    """One size of values, all kinds."""
    size = f"{size_kib:,} KiB"
    rng = random.Random(SEED)
    with ExitStack() as stack:
        rows = _rows(size_kib, "memory")
        loops = {"memcpy": memory.memcpy(rows), **memory.sockets(rows.total_bytes, stack)}
        _record(report, size, rows, _measure(loops, args.rounds, rng))
    for kind in args.only:
        with ExitStack() as stack:
            rows = _rows(size_kib, kind)
            pairs, others = MAKERS[kind](rows, args, stack)
            loops = {name: loop for pair in pairs for name, loop in _named(pair)} | others
            taken = _measure(loops, args.rounds, rng)
            _record(report, size, rows, taken)
            for pair in pairs:
                ours, bare = (Series(name, taken[name]) for name, _ in _named(pair))
                report.ratio(f"{pair.name}, {size}", bare, ours)
                quick = min(bare.seconds) / min(ours.seconds)
                report.figures[f"{pair.name}, {size}, fastest rounds"] = round(quick, 2)


def _named(pair: Pair) -> Iterator[tuple[str, Loop]]:
    ours, _, bare = pair.name.partition(" of ")
    kind = pair.name.partition(":")[0]
    yield ours, pair.ours
    yield f"{kind}: bare {bare}", pair.bare


def _measure(loops: dict[str, Loop], rounds: int, rng: random.Random) -> dict[str, list[float]]:
    """Seconds of each loop, one a round, in an order that is new each time. The first round is not counted:
    it makes what is read later, and connections."""
    taken: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for number in range(rounds + 1):
        for name in names:
            loops[name].prepare()
            started_s = time.perf_counter()
            said = loops[name].run()
            seconds = said if isinstance(said, float) else time.perf_counter() - started_s
            if number:
                taken[name].append(seconds)
        rng.shuffle(names)
    return taken


def _record(report: Report, size: str, rows: Rows, taken: dict[str, list[float]]) -> None:
    for name, seconds in taken.items():
        series = Series(f"{name}, {size}", seconds)
        report.series.append(series)
        report.figures[f"{series.name}, GB/s"] = round(rows.total_bytes / series.median / 1e9, 3)


def _rows(size_kib: int, kind: str) -> Rows:
    return Rows(size_kib * 1024, max(1, TOTAL_MIB[kind] * MIB // (size_kib * 1024)))


Loops = tuple[list[Pair], dict[str, Loop]]
"""Pairs to compare, and others beside them."""

Maker = Callable[[Rows, argparse.Namespace, ExitStack], Loops]


def _files(rows: Rows, args: argparse.Namespace, stack: ExitStack) -> Loops:
    pairs: list[Pair] = []
    for name, parent in (("tmpfs", Path("/dev/shm")), ("disk", args.disk)):
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=".anbar-transfer-", dir=parent))
        pairs += files.pairs(rows, Path(directory), name, stack)
    return pairs, {}


def _valkey(rows: Rows, args: argparse.Namespace, stack: ExitStack) -> Loops:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = stack.enter_context(valkey_server(folder / "server"))
    others = dict(valkey.others(rows, server, stack, clients=args.clients))
    return list(valkey.pairs(rows, server, stack)), others


def _s3(rows: Rows, args: argparse.Namespace, stack: ExitStack) -> Loops:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return list(s3.pairs(rows, stack.enter_context(running_s3(folder)), stack)), {}


MAKERS: dict[str, Maker] = {"files": _files, "valkey": _valkey, "s3": _s3}

if __name__ == "__main__":
    main()
