"""How long a step of the engine may wait for the store to say what it holds.

A request whose keys are not answered in the step it came in is left out of that step, and everything else
that is computed in it, which may be a long prompt, is computed without it: the engine computes less at once,
and the request begins a step later. So a small part of a step is well spent on an answer that comes within
it, and on no other.
"""

from collections import deque

from anbar.tier.step_times import StepTimes

SHARE = 0.02
"""Of a usual step, for all of its requests together."""

MOST_S = 0.002
"""However long steps are: scheduling is not held up longer by a store."""

NUM_CALLS = 8
"""The last lookups. The quickest of them tells what the store takes; others may have waited for a processor,
or for the interpreter, while a step was computed."""


class Patience:
    """Owned by the scheduler's thread."""

    def __init__(self, steps: StepTimes) -> None:
        self._steps = steps
        self._calls_s: deque[float] = deque(maxlen=NUM_CALLS)
        self._spent_s = 0.0

    def answered(self, seconds: float) -> None:
        """A lookup was answered after so long."""
        self._calls_s.append(seconds)

    def left_s(self) -> float:
        """Seconds that this step may still wait; 0 where no answer can be expected within them."""
        usual_s = self._steps.usual_s
        if usual_s is None or not self._calls_s:
            return 0.0
        left_s = min(MOST_S, SHARE * usual_s) - self._spent_s
        return left_s if left_s > min(self._calls_s) else 0.0

    def spent(self, seconds: float) -> None:
        """The step waited for so long."""
        self._spent_s += seconds

    def step_ended(self) -> None:
        """All of the step is scheduled."""
        self._spent_s = 0.0
