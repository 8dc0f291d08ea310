"""Least squares for coefficients that cannot be told apart without help: recursive, with forgetting, drawn
towards a base and held within bounds. Pure arithmetic.

A sample says: seconds measured over seconds that the prior expected are `ratio`, and the prior's own seconds
were made of `shares`, one for each coefficient; they sum to 1. Sought are the `gains` of the coefficients,
`ratio = shares · gains`; all gains 1 is the prior. The sums are the recursive form: a sample is added to
faded sums, and nothing of it is kept.
"""

import numpy as np
import numpy.typing as npt

Gains = npt.NDArray[np.float64]
"""A number for each coefficient."""


class FadedSums:
    """Sums over samples; each new one multiplies what the older ones weigh by `fade`.

    A sample weighs 1 / `ratio`. Half-way between equal weights, where one slow request outweighs many quick
    ones, and 1 / `ratio`^2, where an engine that became slow would take long to be believed.
    """

    __slots__ = ("_fade", "moments", "num", "num_scale", "rhs", "scale_shares")

    def __init__(self, half_life: float, size: int) -> None:
        """`half_life`: samples after which one counts half; at least 1. `size`: number of coefficients."""
        if half_life < 1:
            raise ValueError(f"half_life is {half_life}, must be at least 1")
        self._fade = 0.5 ** (1 / half_life)
        self.num = 0.0
        """Faded number of samples."""
        self.moments: Gains = np.zeros((size, size))
        """Sum of shares_i * shares_j / ratio."""
        self.rhs: Gains = np.zeros(size)
        """Sum of shares_i."""
        self.num_scale = 0.0
        """Faded number of samples that tell the scale."""
        self.scale_shares: Gains = np.zeros(size)
        """Their sum of shares_i / ratio."""

    def add(self, shares: Gains, ratio: float, *, tells_scale: bool) -> None:
        """Take in a sample; `ratio` is positive."""
        weighed = shares / ratio
        self.moments *= self._fade
        self.moments += weighed[:, None] * shares
        self.rhs *= self._fade
        self.rhs += shares
        self.num = self.num * self._fade + 1
        if tells_scale:
            self.scale_shares *= self._fade
            self.scale_shares += weighed
            self.num_scale = self.num_scale * self._fade + 1

    def fade(self, half_lives: float) -> None:
        """Let all samples weigh less, as if so many half-lives had passed."""
        share = 0.5**half_lives
        self.moments *= share
        self.rhs *= share
        self.num *= share
        self.num_scale *= share
        self.scale_shares *= share

    def scale_beside_first(self, num_assumed: float) -> float:
        """By how much all but the first coefficient are larger than the prior says, together with
        `num_assumed` samples that say 1; of the samples that tell the scale."""
        # The first may not explain everything: what is left would be nothing at all.
        measured = max(self.num_scale - self.scale_shares[0], 0.05 * self.num_scale)
        return float((measured + num_assumed) / (self.scale_shares[1:].sum() + num_assumed))

    def scale(self, base: Gains, num_assumed: float) -> float:
        """By how much all gains of `base` must be multiplied to agree with the samples, together with
        `num_assumed` samples that say 1."""
        # Shares sum to 1, so a row of moments sums to what `scale_shares` is, of all samples.
        expected = float(base @ self.moments.sum(axis=1))
        return (self.num + num_assumed) / (expected + num_assumed)


def solve(sums: FadedSums, base: Gains, ridge: Gains, low: Gains, high: Gains) -> Gains:
    """The gains that come closest to the samples and, each as strongly as `ridge` says, to `base`, and lie
    between `low` and `high`. Strengths are positive: there is always one answer."""
    matrix = sums.moments + np.diag(ridge)
    wanted = sums.rhs + ridge * base
    gains, free = base.copy(), np.ones(len(base), dtype=bool)
    while free.any():
        # Those that are nailed to a bound are known, and the others are fitted around them.
        left = wanted - matrix[:, ~free] @ gains[~free]
        gains[free] = np.linalg.solve(matrix[free][:, free], left[free])
        outside = np.maximum(low - gains, gains - high)
        worst = int((outside / high).argmax())
        if outside[worst] <= 0:
            break
        gains[worst] = min(max(gains[worst], low[worst]), high[worst])
        free[worst] = False
    return gains
