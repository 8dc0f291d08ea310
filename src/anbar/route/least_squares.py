"""Least squares for three coefficients that cannot be told apart without help: recursive, with forgetting,
drawn towards a base and held within bounds. Pure arithmetic.

A sample says: seconds measured over seconds that the prior expected are `ratio`, and the prior's own seconds
were made of `shares` (of overhead, linear and quadratic part; they sum to 1). Sought are the `gains` of the
three parts, `ratio = shares · gains`; all gains 1 is the prior. The sums are the recursive form: a sample
is added to faded sums, and nothing of it is kept.
"""

from collections.abc import Sequence

Gains = tuple[float, float, float]
"""Of overhead, linear part, quadratic part."""

_NAILED = 1e12
"""A strength beside which no sample counts."""


class FadedSums:
    """Sums over samples; each new one multiplies what the older ones weigh by `fade`.

    A sample weighs 1 / `ratio`. Half-way between equal weights, where one slow request outweighs many quick
    ones, and 1 / `ratio`^2, where an engine that became slow would take long to be believed.
    """

    __slots__ = ("_fade", "moments", "num", "num_scale", "rhs", "scale_shares")

    def __init__(self, half_life: float) -> None:
        """`half_life`: samples after which one counts half; at least 1."""
        if half_life < 1:
            raise ValueError(f"half_life is {half_life}, must be at least 1")
        self._fade = 0.5 ** (1 / half_life)
        self.num = 0.0
        """Faded number of samples."""
        self.moments = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        """Sum of shares_i * shares_j / ratio, for i <= j."""
        self.rhs: Gains = (0.0, 0.0, 0.0)
        """Sum of shares_i."""
        self.num_scale = 0.0
        """Faded number of samples that tell the scale."""
        self.scale_shares: Gains = (0.0, 0.0, 0.0)
        """Their sum of shares_i / ratio."""

    def add(self, shares: Gains, ratio: float, *, tells_scale: bool) -> None:
        """Take in a sample; `ratio` is positive."""
        fade, weight = self._fade, 1 / ratio
        s0, s1, s2 = shares
        w0, w1, w2 = s0 * weight, s1 * weight, s2 * weight
        m00, m01, m02, m11, m12, m22 = (value * fade for value in self.moments)
        self.moments = (
            m00 + s0 * w0, m01 + s0 * w1, m02 + s0 * w2, m11 + s1 * w1, m12 + s1 * w2, m22 + s2 * w2
        )  # fmt: skip
        r0, r1, r2 = self.rhs
        self.rhs = r0 * fade + s0, r1 * fade + s1, r2 * fade + s2
        self.num = self.num * fade + 1
        if tells_scale:
            u0, u1, u2 = self.scale_shares
            self.scale_shares = u0 * fade + w0, u1 * fade + w1, u2 * fade + w2
            self.num_scale = self.num_scale * fade + 1

    def scale_of_work(self, num_assumed: float) -> float:
        """By how much linear and quadratic part are slower than the prior says, together with `num_assumed`
        samples that say 1; of the samples that tell the scale."""
        overhead, linear, quadratic = self.scale_shares
        # The overhead may not explain everything: what is left would be no time at all.
        measured = max(self.num_scale - overhead, 0.05 * self.num_scale)
        return (measured + num_assumed) / (linear + quadratic + num_assumed)

    def scale_of_all(self, base: Gains, num_assumed: float) -> float:
        """By how much all gains of `base` must be multiplied to agree with the samples, together with
        `num_assumed` samples that say 1."""
        m00, m01, m02, m11, m12, m22 = self.moments
        # Shares sum to 1, so the rows of moments sum to what `scale_shares` is, of all samples.
        expected = base[0] * (m00 + m01 + m02) + base[1] * (m01 + m11 + m12) + base[2] * (m02 + m12 + m22)
        return (self.num + num_assumed) / (expected + num_assumed)


def solve(sums: FadedSums, base: Gains, ridge: Gains, low: Gains, high: Gains) -> Gains:
    """The gains that come closest to the samples and, each as strongly as `ridge` says, to `base`, and lie
    between `low` and `high`. Strengths are positive: there is always one answer."""
    drawn, strength = list(base), list(ridge)
    nailed: set[int] = set()
    while len(nailed) < 3:
        gains = _unbounded(sums, drawn, strength)
        for at in nailed:
            gains = _replaced(gains, at, drawn[at])  # to the last bit
        outside = [i for i in range(3) if not low[i] <= gains[i] <= high[i]]
        if not outside:
            return gains
        # The one that is furthest outside is nailed to its bound, and the others are fitted anew around it.
        worst = max(outside, key=lambda i: max(low[i] - gains[i], gains[i] - high[i]) / (high[i] or 1.0))
        drawn[worst] = min(max(gains[worst], low[worst]), high[worst])
        strength[worst] = _NAILED
        nailed.add(worst)
    return drawn[0], drawn[1], drawn[2]


def _replaced(values: Gains, at: int, value: float) -> Gains:
    changed = list(values)
    changed[at] = value
    return changed[0], changed[1], changed[2]


def _unbounded(sums: FadedSums, base: Sequence[float], ridge: Sequence[float]) -> Gains:
    """The minimum, by Cholesky's factors L D L'."""
    m00, m01, m02, m11, m12, m22 = sums.moments
    d0 = m00 + ridge[0]
    l10, l20 = m01 / d0, m02 / d0
    d1 = m11 + ridge[1] - l10 * m01
    below = m12 - l10 * m02
    l21 = below / d1
    d2 = m22 + ridge[2] - l20 * m02 - l21 * below
    r0, r1, r2 = (sums.rhs[i] + ridge[i] * base[i] for i in range(3))
    r1 -= l10 * r0
    r2 -= l20 * r0 + l21 * r1
    g2 = r2 / d2
    g1 = r1 / d1 - l21 * g2
    return r0 / d0 - l10 * g1 - l20 * g2, g1, g2
