"""What engines' prefill costs, learned from what they have computed: a router learns from the requests they
have finished, an engine's plugin from its steps.

Sought are the coefficients of `overhead + a (L - m) + b (L^2 - m^2) + c D`, where D answers run beside the
prompt, by recursive least squares with forgetting and bounds (`anbar.core.least_squares`), in three stages,
each of which begins where the one before ends:

    prior  →  group: all engines that are expected to be alike, long memory  →  engine: short memory

Each stage first finds the *scale*, one number by which things are slower than said so far, and then the
coefficients near what the scale says. (For the group the scale is that of all but the overhead: a
machine that computes a hundred times slower than the prior does not answer HTTP as much slower.) From prompts
of like length `a` and `b` cannot be told apart; then the scale is all that is learned and the shape stays
that of the stage before, so that a prompt ten times as long is not mispredicted by orders of magnitude. The
long memory of the group keeps the shape while for a time all prompts are alike.

Engines behind one router are mostly alike, so what one shows is expected of the others until they show
otherwise. Without that an engine that has finished nothing yet would look as fast as the prior says, and
draw every request away from engines that hold its prefix.
"""

import math
from dataclasses import dataclass

import numpy as np

from anbar.core.cost import NO_WORK, PrefillCost, PrefillWork
from anbar.core.least_squares import FadedSums, Gains, solve

PREFILL_PRIOR = PrefillCost(a_s_per_token=1e-4, b_s_per_token2=2e-9, overhead_s=0.005, s_per_answer=2e-4)
"""Where nothing is known. 10,000 tokens a second: between a laptop's CPU and a large GPU; a few samples
correct it. In a prompt of 50,000 tokens attention takes as long as the rest, as with an 8B model."""


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One finished request, as seen from the router; or one step, as seen from inside the engine."""

    own: PrefillWork
    """What the engine computed of its prompt."""
    seconds: float
    """From sending it to the first token, and what was done of `queued` by then."""
    queued: PrefillWork = NO_WORK
    """What the engine had to compute before, from the first on that it had not answered yet."""
    num_decoding: int = 0
    """Answers that ran when it was sent."""


HALF_LIFE = 32
"""Samples of an engine after which one counts half."""

GROUP_HALF_LIFE = 1024
"""The same for the group's shape."""

FEW_SAMPLES = 8
"""With fewer an engine's own error says little."""

STALE_HALF_LIFE = 128
"""Samples of the other engines after which those of an engine that got no request count half. One that looked
slow once would else never be asked again, and never look otherwise."""

STALE_STEP = 32
"""Other engines' samples between two looks at that."""

MAX_STEP = 4.0
"""A sample counts as at most this many times slower or faster than expected: no request moves the scale of a
well-known engine by more than 7 %, and one that became that much slower is believed after a dozen."""

MAX_FIRST_STEP = 100.0
"""The same for the first sample of all: a prior may be that far off, a laptop's CPU is."""

SCALE_BOUNDS = (1e-4, 1e4)
"""Times the prior: no engine is further from any sensible one."""

MOST_OVERHEAD = 0.3
"""A sample tells the scale when the prior's overhead is at most this share of what the prior expects."""

DOUBLED_BY = 8.0
MOST_FACTOR = 32.0
"""A coefficient is within this factor of what the scale says, and within 2 after `DOUBLED_BY` samples, within
4 after twice as many, …"""

OVERHEAD_ROOM = 8.0
"""Times the prior's overhead: what one may be at once. It is known least, and never many milliseconds."""

PRIOR_SAMPLES = 0.001
"""Samples that the prior's scale is worth: the first one all but replaces it."""

GROUP_SAMPLES = 2.0
"""Samples that the group's scale is worth to a new engine, half as many after its first sample, a third after
its second, …: differences between like engines are noise at first."""

GROUP_RIDGE: Gains = np.array([0.005, 0.2, 0.005, 0.02])
ENGINE_RIDGE: Gains = np.array([0.2, 1.0, 0.5, 0.5])
"""How strongly the coefficients of overhead, tokens, pairs and answers are drawn to what the stage before
says with the scale; (relative error of a sample / that of the coefficient)^2: a fifth over three for what is
known least."""

MOVED = 0.01
"""The group tells its engines of a new estimate when a coefficient has changed by that share."""

_START: Gains = np.ones(4)


def _near(scaled: Gains, num_samples: float) -> tuple[Gains, Gains]:
    """How far the coefficients may be from what the scale says."""
    overhead, linear, quadratic, answers = scaled
    factor = min(MOST_FACTOR, 2 ** (num_samples / DOUBLED_BY))
    high = max(overhead, OVERHEAD_ROOM), linear, max(linear, quadratic), max(linear, answers)
    return np.array([0.0, linear / factor, 0.0, 0.0]), np.array(high) * factor


def _parts(prior: PrefillCost, sample: PrefillSample) -> Gains:
    """The seconds that the prior expects, by coefficient."""
    tokens = sample.own.tokens + sample.queued.tokens
    pairs = sample.own.pairs + sample.queued.pairs
    return np.array(
        [
            prior.overhead_s,
            prior.a_s_per_token * tokens,
            prior.b_s_per_token2 * pairs,
            prior.s_per_answer * sample.num_decoding,
        ]
    )


class PrefillGroup:
    """Engines that are expected to be alike. `gains` are its estimate, over the prior's coefficients; a new
    object only when they have changed by more than noise, so that a look at an engine costs a comparison."""

    def __init__(self, prior: PrefillCost) -> None:
        others = prior.b_s_per_token2, prior.overhead_s, prior.s_per_answer
        if prior.a_s_per_token <= 0 or min(others) < 0:
            raise ValueError(f"the prior is {prior}: a must be positive, the others not negative")
        self.prior = prior
        self.num_samples = 0
        self.error = 0.0
        """Faded mean of |measured / predicted - 1| of all engines, each predicted before it was known."""
        self.gains = _START
        self._num_solved = 0
        self._long = FadedSums(GROUP_HALF_LIFE, len(_START))
        self._recent = FadedSums(HALF_LIFE, len(_START))

    def join(self) -> "PrefillLearner":
        """A learner for one more engine."""
        return PrefillLearner(self)

    def observe(self, shares: Gains, ratio: float, *, tells_scale: bool) -> None:
        """A sample of one of the engines."""
        self.num_samples += 1
        for sums in (self._long, self._recent):
            sums.add(shares, ratio, tells_scale=tells_scale)
        if self.num_samples - self._num_solved < min(8, self.num_samples // 8):
            return  # of hundreds of samples one more changes nothing
        self._num_solved = self.num_samples
        low, high = SCALE_BOUNDS
        scale = min(max(self._long.scale_beside_first(PRIOR_SAMPLES), low), high)
        scaled = np.array([1.0, scale, scale, scale])
        # Samples weigh less the slower the engine is, and so must what draws the other way.
        shape = solve(self._long, scaled, GROUP_RIDGE / scale, *_near(scaled, self._long.num))
        gains = shape * self._recent.scale(shape, PRIOR_SAMPLES)
        if (np.abs(gains - self.gains) > MOVED * self.gains).any():
            self.gains = gains


class PrefillLearner:
    """One engine's. Made by `PrefillGroup.join`."""

    def __init__(self, group: PrefillGroup) -> None:
        self._group = group
        self._sums = FadedSums(HALF_LIFE, len(_START))
        self._from: Gains | None = None
        self._gains = _START
        self._cost = group.prior
        self._group_seen = group.num_samples
        """The group's samples when this engine's own were last counted for what they are worth."""
        self.num_samples = 0
        self.error = 0.0
        """Faded mean of |measured / predicted - 1|, predicted before the sample was known."""
        self.doubt = 0.0
        """By which share the estimate may be off: the error of one sample, of the group's while there are few
        of its own, over the root of their number."""

    @property
    def cost(self) -> PrefillCost:
        """The present estimate."""
        group = self._group
        if group.num_samples - self._group_seen >= STALE_STEP:
            self._sums.fade((group.num_samples - self._group_seen) / STALE_HALF_LIFE)
            self._group_seen = group.num_samples
            self._from = None
        if self._from is not group.gains:
            self._estimate()
        return self._cost

    def forget(self) -> None:
        """Another engine has taken this one's place, a restarted one for instance: expect it to be like the
        others again."""
        self._sums = FadedSums(HALF_LIFE, len(_START))
        self._from = None
        self.num_samples = 0

    def observe(self, sample: PrefillSample) -> None:
        """Learn from one request. What no clock can have measured is ignored."""
        if sample.own.tokens < 1 or not (math.isfinite(sample.seconds) and sample.seconds > 0):
            return
        parts = _parts(self._group.prior, sample)
        expected_s = float(parts.sum())
        shares = parts / expected_s
        _ = self.cost  # brings `_gains` up to date
        predicted = float(shares @ self._gains)
        step = MAX_STEP if self._group.num_samples else MAX_FIRST_STEP
        measured = min(max(sample.seconds / expected_s, predicted / step), predicted * step)
        error = abs(measured / predicted - 1)
        self.error += (error - self.error) / min(self.num_samples + 1, HALF_LIFE)
        self._group.error += (error - self._group.error) / min(self._group.num_samples + 1, HALF_LIFE)
        self.num_samples += 1
        tells_scale = bool(shares[0] <= MOST_OVERHEAD)
        self._sums.add(shares, measured, tells_scale=tells_scale)
        self._group.observe(shares, measured, tells_scale=tells_scale)
        self._group_seen = self._group.num_samples
        if self.num_samples <= HALF_LIFE or self.num_samples % 4 == 0:
            self._from = None  # of dozens of samples one more changes little

    def _estimate(self) -> None:
        gains = self._from = self._group.gains
        error = self.error if self.num_samples >= FEW_SAMPLES else self._group.error
        self.doubt = error / math.sqrt(1 + self._sums.num)
        scaled = gains * self._sums.scale(gains, GROUP_SAMPLES / (1 + self._sums.num))
        if self.num_samples:
            scaled = solve(self._sums, scaled, ENGINE_RIDGE / scaled[1], *_near(scaled, self._sums.num))
        self._gains = scaled
        prior = self._group.prior
        overhead, linear, quadratic, answers = scaled.tolist()
        self._cost = PrefillCost(
            a_s_per_token=prior.a_s_per_token * linear,
            b_s_per_token2=prior.b_s_per_token2 * quadratic,
            overhead_s=prior.overhead_s * overhead,
            s_per_answer=prior.s_per_answer * answers,
        )
