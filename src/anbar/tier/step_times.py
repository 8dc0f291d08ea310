"""What computing prompts takes in the engine that the tier is part of, learned from its steps.

The engine says what each step will compute when it is scheduled, and when the step has ended. A step's own
time runs from its schedule, or from the end of the step before if that was later (an engine may schedule one
step ahead). The coefficients are found by the learner that the router uses for whole requests.
"""

from collections import deque

from anbar.core.clock import Clock
from anbar.core.cost import PrefillCost, PrefillWork
from anbar.core.prefill_learner import PREFILL_PRIOR, PrefillGroup, PrefillSample

FEWEST_TOKENS = 128
"""Of a step that teaches. A smaller one's time is mostly overhead, which says little about tokens."""

FEWEST_SAMPLES = 3
"""Steps with which something is known. The first of all compiles, or warms up."""

EVERY_S, EAGER = 0.25, 64
"""After so many samples at most one in so many seconds: learning costs the scheduler time."""

SMOOTHING = 0.1
"""Weight of the last step in what is usual."""

MOST_AHEAD = 4
"""Steps that may be scheduled and not ended; more means that ends are not told, and nothing is learned."""


class StepTimes:
    """Owned by the scheduler's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._learner = PrefillGroup(PREFILL_PRIOR).join()
        self._ahead: deque[tuple[float, PrefillWork, int]] = deque()
        self._ended_s = clock.now_s()
        self._taught_s = -EVERY_S
        self.usual_s: float | None = None
        """Seconds of a usual step, smoothed over the last ones; None: none has ended."""
        self.computing_s = 0.0
        """Seconds that prompts took of all steps that have ended."""

    @property
    def cost(self) -> PrefillCost | None:
        """The present estimate; None: not known."""
        return self._learner.cost if self._learner.num_samples >= FEWEST_SAMPLES else None

    def scheduled(self, work: PrefillWork, num_decoding: int) -> None:
        """A step will compute `work` of prompts, beside so many answers; call once for each step."""
        if len(self._ahead) == MOST_AHEAD or not (work.tokens or num_decoding):
            self._ahead.clear()
        if work.tokens or num_decoding:
            self._ahead.append((self._clock.now_s(), work, num_decoding))

    def ended(self) -> None:
        """The oldest scheduled step has ended."""
        now_s = self._clock.now_s()
        began_s, self._ended_s = self._ended_s, now_s
        if not self._ahead:
            return
        scheduled_s, work, num_decoding = self._ahead.popleft()
        seconds = now_s - max(scheduled_s, began_s)
        if seconds <= 0:
            return
        usual_s = seconds if self.usual_s is None else self.usual_s
        self.usual_s = usual_s + SMOOTHING * (seconds - usual_s)
        if not work.tokens:
            return
        known = self.cost
        self.computing_s += seconds if known is None else min(seconds, known.work_seconds(work))
        is_due = self._learner.num_samples < EAGER or now_s - self._taught_s >= EVERY_S
        if work.tokens >= FEWEST_TOKENS and is_due:
            self._taught_s = now_s
            self._learner.observe(PrefillSample(work, seconds, num_decoding=num_decoding))
