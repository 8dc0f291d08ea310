"""What a sweep of the store in a directory costs: seconds for one look, by the number of files.

python benchmarks/sweep_cost.py [files ...]
"""

import sys
import tempfile
import time
from pathlib import Path

from anbar.adapters.store.layout import Layout
from anbar.adapters.store.store_clock import StoreClock
from anbar.adapters.store.sweep import Bounds, Sweeper

KEY_BYTES = 36
DUTY = 20
"""The sweep pauses so many times as long as it has computed."""


def fill(layout: Layout, num_files: int) -> None:
    """Empty files in the places of entries: a sweep opens none."""
    for number in range(num_files):
        path = layout.entry(number.to_bytes(KEY_BYTES, "big"), "")
        if number < 16 * 256:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def measure(num_files: int, root: Path) -> None:
    """One round over the directory, after one that warms it up."""
    layout = Layout(root, b"benchmark")
    fill(layout, num_files)
    sweeper = Sweeper(layout, Bounds(), StoreClock(root))
    for _ in range(2):
        began_s, num_looks, num_parts = time.perf_counter(), 0, 0
        cpu_s = time.process_time()
        while num_parts < 256:
            num_parts += sweeper.sweep()
            num_looks += 1
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    print(
        f"{num_files:9,} files: {num_looks:4} looks of {1000 * seconds / num_looks:6.1f} ms"
        f" ({1000 * cpu_s / num_looks:.1f} ms of CPU), {1e6 * cpu_s / num_files:.1f} us a file,"
        f" a round takes {max(30.0, seconds + max(seconds, DUTY * cpu_s)):.0f} s"
    )


def main() -> None:
    for num_files in map(int, sys.argv[1:] or ["1000", "20000", "200000"]):
        with tempfile.TemporaryDirectory() as root:
            measure(num_files, Path(root))


if __name__ == "__main__":
    main()
