"""What one engine's prefill costs, learned from the requests it has finished."""

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

    BOUNDS = (1e-4, 1e4)
    """The scale never leaves these: no engine is further from any sensible prior."""

    def __init__(self, prior: PrefillCost, *, half_life: int = 32, prior_samples: float = 2.0) -> None:
        """`half_life`: samples after which one counts half. `prior_samples`: how many 1,000-token prompts of
        evidence the prior is worth, so that it is soon outvoted."""
        if half_life < 1:
            raise ValueError(f"half_life is {half_life}, must be at least 1")
        if prior.a_s_per_token <= 0:
            raise ValueError(f"the prior's a_s_per_token is {prior.a_s_per_token}, must be positive")
        self._prior = prior
        self._fade = 0.5 ** (1 / half_life)
        self._expected_s = prior_samples * 1000 * prior.a_s_per_token
        self._measured_s = self._expected_s
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
        measured_s = min(max(measured_s, now_s / self.MAX_STEP), now_s * self.MAX_STEP)
        self._expected_s = self._expected_s * self._fade + expected_s
        self._measured_s = self._measured_s * self._fade + measured_s
        self.num_samples += 1

    def _scale(self) -> float:
        low, high = self.BOUNDS
        return min(max(self._measured_s / self._expected_s, low), high)
