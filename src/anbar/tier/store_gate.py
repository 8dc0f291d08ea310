"""Which of the chunks that were computed go to the shared store.

All of them, on first touch: a prefix that was computed once survives its engine. Only while the way to the
store or its capacity is under measured pressure (`tier.pressure`) is there a choice, and then those come
first that will most likely be asked for again: keys that were offered before (they were computed twice, since
host RAM had lost them), and the beginning of prompts, where system prompts are. A request may say `always` or
`never`.
"""

from collections.abc import Sequence

from anbar.tier.kept_out import KeptOut, Place
from anbar.tier.pressure import Pressure, Reason
from anbar.tier.reuse import ReuseSketch
from anbar.tier.store import Scope
from anbar.tier.tally import Series, Tally

SHALLOW_TOKENS = 1024
"""Of a prompt's first so many tokens everything is stored, whatever presses: more than most system prompts
have."""


class StoreGate:
    """Owned by the scheduler's thread."""

    def __init__(self, pressure: Pressure, sketch: ReuseSketch, tally: Tally) -> None:
        self.pressure = pressure
        self._sketch = sketch
        self._tally = tally
        self.kept_out = KeptOut()
        """To be asked about what is missing later."""
        self._engaged: Reason | None = None

    @property
    def is_engaged(self) -> bool:
        """Whether keys that nobody is known to use again are kept out."""
        return self._look() is not None

    def admit(
        self, scope: Scope, keys: Sequence[bytes], ends: Sequence[int | None], *, always: bool
    ) -> Sequence[int]:
        """The indices of the keys to store. `ends`: of the prompt's tokens, how many each key and those
        before it stand for, None: not known. Counts a sighting of each key."""
        seen = self._sketch.see_all(keys, scope.encode())
        reason = self._look()
        if reason is None or always:
            self.kept_out.forget(scope, keys)
            return range(len(keys))
        kept = []
        for index, end in enumerate(ends):
            if seen[index] or (end is not None and end <= SHALLOW_TOKENS):
                kept.append(index)
            else:
                self.kept_out.note(scope, keys[index], Place(reason, end or 0))
        self.kept_out.forget(scope, [keys[index] for index in kept])
        self._tally.add(Series.FILTERED, reason.value, len(keys) - len(kept))
        return kept

    def _look(self) -> Reason | None:
        reason = self.pressure.reason()
        if reason is not None and self._engaged is None:
            self._tally.add(Series.FILTER_ENGAGED, reason.value)
        self._engaged = reason
        return reason
