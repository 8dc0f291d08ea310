"""Least squares with coefficients that are not negative: no cost is below nothing."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MAX_ROUNDS_PER_COLUMN = 30


def nnls(matrix: Array, target: Array) -> Array:
    """The x >= 0 that minimises |matrix x - target|, by Lawson and Hanson's active set method (Solving Least
    Squares Problems, 1974, chapter 23). Columns may differ in scale by orders of magnitude."""
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
