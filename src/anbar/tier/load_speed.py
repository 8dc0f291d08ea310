"""How long loads from this store take, learned from the loads that were made.

Sought are latency and bandwidth of `seconds = latency + (bytes queued before + own bytes) / bandwidth`, by
least squares with forgetting and bounds (`anbar.core.least_squares`). From loads of one size the two cannot
be told apart; then the scale of the prior's shape is what is learned. A load counts as at most `MAX_STEP`
times slower or faster than expected, so that no single one that hung or hit a cache decides anything.

What was learned fades with time, too, because a store that looks too slow is asked for little and would never
look otherwise: after a quarter of an hour without loads nothing is known, and what is not known is tried.
"""

import math

import numpy as np

from anbar.core.clock import Clock
from anbar.core.cost import TierCost
from anbar.core.least_squares import FadedSums, Gains, solve

PRIOR = TierCost(latency_s=0.002, bytes_per_s=1e9)
"""Between a local disk and an object store; the first load all but replaces it."""

HALF_LIFE = 5
"""Loads after which one counts half. Slow ones weigh little (`FadedSums`), so a longer memory would believe
for too long that a store is as fast as it was: with this one ten times slower is known after two dozen."""

HALF_LIFE_S = 600.0
"""Seconds after which what was learned counts half."""

EVERY_S, EAGER = 0.1, 64
"""After so many loads at most one in so many seconds teaches: the scheduler's thread learns."""

FEWEST = 2.5
"""Faded loads with which something is known: three, so that none decides by itself."""

MAX_STEP = 4.0
MAX_FIRST_STEP = 1e4
"""The same for the first load: the prior may be far off."""

PRIOR_SAMPLES = 0.01
"""Loads that the prior's scale is worth."""

RIDGE: Gains = np.array([0.01, 0.01])
"""How strongly latency and bandwidth are drawn to the prior's shape; (relative error of a sample / that of
the coefficient)^2: a tenth over one."""

MOST_FACTOR = 100.0
"""A coefficient is within this factor of what the scale says; the latency may be nothing."""


class LoadSpeed:
    """Owned by one thread."""

    def __init__(self, clock: Clock, prior: TierCost = PRIOR) -> None:
        """`prior`: latency and bandwidth above 0."""
        self._clock = clock
        self._prior = prior
        self._sums = FadedSums(HALF_LIFE, 2)
        self._faded_at_s = clock.now_s()
        self._cost: TierCost | None = prior
        self._num_taught = 0
        self._taught_s = clock.now_s()

    @property
    def is_known(self) -> bool:
        """Whether there were loads, not too long ago."""
        self._fade()
        return self._sums.num >= FEWEST

    @property
    def cost(self) -> TierCost:
        """The present estimate; the prior where nothing is known."""
        self._fade()
        if self._cost is None:
            self._cost = self._estimate()
        return self._cost

    def observe(self, num_bytes: int, seconds: float) -> None:
        """A load: its own bytes and those that were queued before it. What no clock can have measured is
        ignored."""
        if num_bytes <= 0 or not math.isfinite(seconds) or seconds <= 0:
            return
        now_s = self._clock.now_s()
        if self._num_taught >= EAGER and now_s - self._taught_s < EVERY_S:
            return
        self._num_taught, self._taught_s = self._num_taught + 1, now_s
        expected = self.cost.seconds(num_bytes)
        step = MAX_STEP if self.is_known else MAX_FIRST_STEP
        measured = min(max(seconds, expected / step), expected * step)
        parts = np.array([self._prior.latency_s, num_bytes / self._prior.bytes_per_s])
        of_prior = float(parts.sum())
        self._sums.add(parts / of_prior, measured / of_prior, tells_scale=True)
        self._cost = None

    def _fade(self) -> None:
        """In steps of a second: looks in between cost nothing."""
        passed_s = self._clock.now_s() - self._faded_at_s
        if passed_s >= 1.0:
            self._faded_at_s += passed_s
            self._sums.fade(passed_s / HALF_LIFE_S)
            self._cost = None

    def _estimate(self) -> TierCost:
        scale = self._sums.scale(np.ones(2), PRIOR_SAMPLES)
        near = np.full(2, scale)
        low = np.array([0.0, scale / MOST_FACTOR])
        latency, per_byte = solve(self._sums, near, RIDGE / scale, low, near * MOST_FACTOR).tolist()
        return TierCost(self._prior.latency_s * latency, self._prior.bytes_per_s / per_byte)
