"""From measurements to an engine's cost: least squares on what the cost is linear in."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from anbar.apps.calibrate.work import Kind, Sample, Work
from anbar.core.cost import TokenCurve
from anbar.core.cost_file import Residual

Array = NDArray[np.float64]

_MAX_ROUNDS_PER_COLUMN = 30
_REWEIGHTINGS = 8
_ERROR_FLOOR = 0.01
"""Below this share errors count alike: no clock of a busy machine is finer."""
_DISTURBED = 1.5
"""A measurement that took so many times longer than the shortest of its case had to share the machine."""
_KNOT_RATIO = 1.5
"""Neighbouring bends of the curve are at least this far apart."""
_MAX_KNOT = 512
"""Past so many tokens a step's time grows in a straight line: the processor is busy with arithmetic."""


@dataclass(frozen=True, slots=True)
class Compute:
    """What the measurements of computing say; attention of decodes by token, not by byte."""

    tokens: TokenCurve
    prefill_s_per_token2: float
    decode_s_per_token: float
    front_s: float

    def seconds(self, work: Work) -> float:
        """What `work` should take."""
        return (
            sum(repeats * self.tokens.seconds(tokens) for tokens, repeats in work.steps)
            + self.prefill_s_per_token2 * work.num_pairs
            + self.decode_s_per_token * work.num_read
            + self.front_s * work.num_requests
        )


def undisturbed(samples: Sequence[Sample]) -> list[Sample]:
    """Those that are worth fitting. Whatever else runs on the machine only ever makes things slower, so the
    shortest measurement of a case judges the others."""
    shortest: dict[str, float] = {}
    for sample in samples:
        shortest[sample.name] = min(sample.seconds, shortest.get(sample.name, sample.seconds))
    return [sample for sample in samples if sample.seconds <= _DISTURBED * shortest[sample.name]]


def fit(samples: Sequence[Sample]) -> Compute:
    """The costs that come closest to `samples` in relative error, outliers counting less than squared."""
    knots = choose_knots(samples)
    seconds = np.array([sample.seconds for sample in samples])
    rows = np.array([_row(sample.work, knots) for sample in samples]) / seconds[:, None]
    weights = np.ones(len(samples))
    x = np.zeros(rows.shape[1])
    for _ in range(_REWEIGHTINGS):
        x = nnls(rows * weights[:, None], weights)
        errors = np.maximum(np.abs(rows @ x - 1.0), _ERROR_FLOOR)
        weights = np.sqrt(_ERROR_FLOOR / errors)
    return _compute(knots, x)


def nnls(matrix: Array, target: Array) -> Array:
    """The x >= 0 that minimises |matrix x - target|: no cost is below nothing. By Lawson and Hanson's active
    set method (Solving Least Squares Problems, 1974, chapter 23). Columns may differ in scale by orders of
    magnitude."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    a = matrix / scale
    num_columns = a.shape[1]
    x = np.zeros(num_columns)
    free = np.zeros(num_columns, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(a.T @ target).max(initial=0.0)))
    for _ in range(_MAX_ROUNDS_PER_COLUMN * num_columns):
        gradient = a.T @ (target - a @ x)
        gradient[free] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= tolerance:
            break
        free[best] = True
        x = _descend(a, target, x, free)
    result: Array = x / scale
    return result


def _descend(a: Array, target: Array, x: Array, free: NDArray[np.bool_]) -> Array:
    """The best x over the `free` columns, which lose those that reach zero on the way."""
    while True:
        best = np.zeros_like(x)
        best[free] = np.linalg.lstsq(a[:, free], target, rcond=None)[0]
        falling = free & (best <= 0)
        if not falling.any():
            return best
        gaps = np.maximum(x[falling] - best[falling], 1e-300)
        x = x + (best - x) * min(1.0, float((x[falling] / gaps).min()))
        free &= ~(falling & (x <= 1e-15))
        x[~free] = 0.0
        if not free.any():
            return x


def choose_knots(samples: Iterable[Sample]) -> list[int]:
    """Where the curve may bend: at numbers of tokens that were measured, not too close to each other."""
    sizes = sorted({tokens for sample in samples for tokens, _ in sample.work.steps})
    knots = sizes[:1]
    for size in sizes[:-1]:  # past the last bend there must be something to tell the slope
        if knots[-1] * _KNOT_RATIO <= size <= _MAX_KNOT:
            knots.append(size)
    return knots


def _row(work: Work, knots: Sequence[int]) -> list[float]:
    """Factors of: seconds at the first knot, slope of each segment, attention of prompts and of decodes,
    front end."""
    row = [0.0] * (1 + len(knots))
    for tokens, repeats in work.steps:
        row[0] += repeats
        for index, (left, right) in enumerate(pairwise([*knots, np.inf])):
            row[1 + index] += repeats * min(max(0.0, tokens - left), right - left)
    return [*row, work.num_pairs, work.num_read, work.num_requests]


def _compute(knots: Sequence[int], x: Array) -> Compute:
    first, *slopes = (float(value) for value in x[: 1 + len(knots)])
    points = [(knots[0], first)]
    for (left, right), slope in zip(pairwise([*knots, 2 * knots[-1]]), slopes, strict=True):
        points.append((right, points[-1][1] + slope * (right - left)))
    pairs, read, front = (float(value) for value in x[1 + len(knots) :])
    return Compute(TokenCurve(tuple(points)), pairs, read, front)


def residuals(
    samples: Sequence[Sample], compute: Compute, measured: Sequence[Sample]
) -> tuple[Residual, ...]:
    """How far off `compute` is from the `samples` it was fitted to, by kind of measurement, beside the spread
    of all that was `measured`, disturbed or not."""
    found = []
    for kind in Kind:
        of_kind = [sample for sample in samples if sample.kind is kind]
        if of_kind:
            errors = [abs(compute.seconds(sample.work) / sample.seconds - 1.0) for sample in of_kind]
            spread = _spread([sample for sample in measured if sample.kind is kind])
            found.append(Residual(str(kind), len(errors), statistics.median(errors), max(errors), spread))
    return tuple(found)


def _spread(samples: Sequence[Sample]) -> float:
    cases: dict[str, list[float]] = {}
    for sample in samples:
        cases.setdefault(sample.name, []).append(sample.seconds)
    ranges = [
        (max(values) - min(values)) / statistics.median(values)
        for values in cases.values()
        if len(values) > 1
    ]
    return statistics.median(ranges or [0.0])
