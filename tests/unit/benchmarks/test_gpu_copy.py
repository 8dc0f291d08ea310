"""What can be tested of the GPU's benchmark without a GPU: everything but the copies themselves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu_copy import Measured, fitted, gathered, made
from benchmarks.gpu_copy_device import Case, cases, places
from benchmarks.report import Report
from hypothesis import given
from hypothesis import strategies as st

from anbar.core.cost import CopyCost

REPO = Path(__file__).parents[3]
TOTAL = 16 * 1024 * 1024


@pytest.mark.parametrize("case", list(cases(("torch",), TOTAL)), ids=str)
def test_pieces_cover_both_sides_once(case: Case) -> None:
    """Every byte is copied, from one place to one place."""
    pieces = list(places(case))
    for side in (0, 1):
        starts = sorted((piece[side], piece[2]) for piece in pieces)
        ends = [start + size for start, size in starts]
        assert [start for start, _ in starts] == [0, *ends[:-1]]
        assert ends[-1] == case.total_bytes
    assert len(pieces) == case.total_bytes // case.chunk_bytes * case.num_pieces


costs = st.builds(
    CopyCost,
    latency_s=st.floats(1e-6, 1e-3),
    s_per_copy=st.floats(1e-7, 1e-5),
    s_per_byte=st.floats(1e-11, 1e-9),
)


def timed(cost: CopyCost) -> list[Measured]:
    """What a device with such costs would show."""
    found = []
    for case in cases(("torch",), TOTAL):
        num_copies = case.total_bytes // case.chunk_bytes * case.num_pieces
        found.append(Measured(case, [cost.seconds(case.total_bytes, num_copies)] * 3))
    return found


@given(cost=costs)
def test_costs_are_found_again(cost: CopyCost) -> None:
    """Of a device that keeps exactly to the model."""
    found = fitted([one for one in timed(cost) if one.case.to_device])
    assert found.latency_s == pytest.approx(cost.latency_s, rel=1e-3)
    assert found.s_per_copy == pytest.approx(cost.s_per_copy, rel=1e-3)
    assert found.s_per_byte == pytest.approx(cost.s_per_byte, rel=1e-3)


def test_a_report_of_samples() -> None:
    """Lines as the device's half prints them make series, GB/s and costs of both directions."""
    cost = CopyCost(1e-5, 3.4e-6, 1 / 51e9)
    samples = [{**one.case._asdict(), "seconds": seconds} for one in timed(cost) for seconds in one.seconds]
    report = made(Report("gpu-copy", "", {}), gathered(json.loads(json.dumps(samples))))
    assert report.figures["load, torch: bytes_per_s"] == pytest.approx(51e9, rel=1e-3)
    assert report.figures["store, torch: s_per_copy"] == pytest.approx(3.4e-6, rel=1e-3)
    assert report.figures["load, torch: 2 × 8 MiB, GB/s"] == pytest.approx(50, rel=0.05)
    assert {len(series.seconds) for series in report.series} == {3}


def test_without_a_gpu_it_says_so() -> None:
    """An interpreter without torch: one line that names the fix, no stack trace."""
    environ = os.environ | {"ANBAR_ENGINE_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_copy"],
        cwd=REPO,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "has no torch" in line or "no CUDA device" in line
    assert "ANBAR_ENGINE_PYTHON" in line
