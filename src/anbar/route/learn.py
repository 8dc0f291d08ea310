"""What engines' prefill costs, learned from the requests they have finished.

Engines behind one router are mostly alike, so what one shows is expected of the others until they show
otherwise. Without that an engine that has finished nothing yet would look as fast as the prior says, and
draw every request away from engines that hold its prefix.
"""

from dataclasses import dataclass

from anbar.core.cost import PrefillCost


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One finished request, as seen from the router."""

    num_tokens: int
    """Prompt tokens, L."""
    num_cached: int
    """Prompt tokens that the engine did not compute, m: its own `cached_tokens`."""
    num_queued: int
    """Prompt tokens that were queued before it when it was sent."""
    ttft_s: float
    """Seconds from sending it to its first token."""
    load_s: float = 0.0
    """Predicted seconds of that for loading from a tier."""


class PrefillLearner:
    """Scales a prior cost to what is measured: the shape (overhead, ratio of `a` to `b`) stays the prior's.

    The scale is a ratio of sums, seconds measured over seconds expected, in which old samples fade; one slow
    request moves it by its share of the work and no more. The queue before a request counts as work, so a
    wait needs no separate guess. One number is learned, on purpose: `a` and `b` cannot be told apart from
    noisy samples of like lengths, and a wrong `b` mispredicts long prompts by orders of magnitude.
    """

    MIN_COMPUTED = 32
    """Tokens; a sample with less to compute measures overheads, not the prefill."""

    MAX_STEP = 8.0
    """A sample counts as at most this many times faster or slower than the present estimate."""

    MAX_FIRST_STEP = 100.0
    """The same for the first sample of all: a prior may be that far off, a laptop's CPU is."""

    BOUNDS = (1e-4, 1e4)
    """The scale never leaves these: no engine is further from any sensible prior."""

    def __init__(
        self,
        prior: PrefillCost,
        *,
        half_life: int = 32,
        prior_samples: float = 2.0,
        group: "PrefillGroup | None" = None,
    ) -> None:
        """`half_life`: samples after which one counts half. `prior_samples`: how many 1,000-token prompts of
        evidence the prior, or what `group` makes of it, is worth at first; it fades like a sample."""
        if half_life < 1:
            raise ValueError(f"half_life is {half_life}, must be at least 1")
        if prior.a_s_per_token <= 0:
            raise ValueError(f"the prior's a_s_per_token is {prior.a_s_per_token}, must be positive")
        self._prior = prior
        self._group = group
        self._fade = 0.5 ** (1 / half_life)
        self._prior_s = prior_samples * 1000 * prior.a_s_per_token
        self.expected_s = 0.0
        """Faded sum of what the prior expected of the samples."""
        self.measured_s = 0.0
        """Faded sum of what they took."""
        self.num_samples = 0

    @property
    def cost(self) -> PrefillCost:
        """The present estimate."""
        scale = self._scale()
        return PrefillCost(
            self._prior.a_s_per_token * scale, self._prior.b_s_per_token2 * scale, self._prior.overhead_s
        )

    def observe(self, sample: PrefillSample) -> None:
        """Learn from one request; samples that say nothing about the prefill are ignored."""
        computed = sample.num_tokens - sample.num_cached
        if computed < self.MIN_COMPUTED:
            return
        alone = PrefillCost(self._prior.a_s_per_token, self._prior.b_s_per_token2)
        expected_s = alone.seconds(sample.num_tokens, sample.num_cached)
        expected_s += self._prior.a_s_per_token * sample.num_queued
        measured_s = sample.ttft_s - sample.load_s - self._prior.overhead_s
        now_s = expected_s * self._scale()
        step = self.MAX_STEP if self._is_informed() else self.MAX_FIRST_STEP
        measured_s = min(max(measured_s, now_s / step), now_s * step)
        before_s = self.expected_s, self.measured_s
        self.expected_s = self.expected_s * self._fade + expected_s
        self.measured_s = self.measured_s * self._fade + measured_s
        self._prior_s *= self._fade
        self.num_samples += 1
        if self._group is not None:
            self._group.moved(self.expected_s - before_s[0], self.measured_s - before_s[1])

    def _is_informed(self) -> bool:
        return self.num_samples > 0 or (self._group is not None and self._group.num_samples > 0)

    def _scale(self) -> float:
        low, high = self.BOUNDS
        base = self._group.scale if self._group is not None else 1.0
        scale = (self.measured_s + self._prior_s * base) / (self.expected_s + self._prior_s)
        return min(max(scale, low), high)


class PrefillGroup:
    """Engines that are expected to be alike. Its sums are kept up to date by its members, so that a look,
    which every request takes at every engine, costs nothing."""

    PRIOR_SAMPLES = 0.1
    """1,000-token prompts that the prior is worth to the group: the first sample all but replaces it."""

    MEMBER_SAMPLES = 8.0
    """What the group's estimate is worth to a member: differences between like engines are noise at first."""

    def __init__(self, prior: PrefillCost) -> None:
        self._prior = prior
        prior_s = self.PRIOR_SAMPLES * 1000 * prior.a_s_per_token
        self._expected_s = self._measured_s = prior_s
        self.num_samples = 0

    def join(self) -> PrefillLearner:
        """A learner for one more engine."""
        return PrefillLearner(self._prior, prior_samples=self.MEMBER_SAMPLES, group=self)

    def moved(self, expected_s: float, measured_s: float) -> None:
        """A member has learned from a sample: by how much its sums have changed."""
        self._expected_s += expected_s
        self._measured_s += measured_s
        self.num_samples += 1

    @property
    def scale(self) -> float:
        """How many times slower than the prior the members are, together."""
        return self._measured_s / self._expected_s
