"""The prompts that one engine still has to compute, as far as whoever sent them can tell.

vLLM computes prompts first come, first served, so what lies before a new one is the work of those that were
sent and have not got their first token, less what the engine has done of the first of them since it began.
It began with that one when it was sent, or when the one before got its first token.

The first token of an answer that is not streamed is not seen. Such a prompt counts as computed when its time
is over, or when one that was sent later is answered.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from anbar.core.cost import PrefillWork


class QueuedPrompt(msgspec.Struct, frozen=True, eq=False):
    """One prompt on its way; equal to itself only."""

    work: PrefillWork
    """What the engine is predicted to compute of it."""
    seconds: float
    """How long that is predicted to take."""
    shows_first_token: bool
    """Whether its first token is seen, since the answer is streamed."""
    loads: bool = False
    """Whether some of it comes from a tier below the device. Others are computed meanwhile."""


class PrefillQueue:
    """In the order in which they were sent. Times are of one clock and do not go back."""

    __slots__ = ("_began_s", "_prompts", "num_loading", "pairs", "tokens")

    def __init__(self) -> None:
        self._prompts: OrderedDict[QueuedPrompt, None] = OrderedDict()
        self._began_s = 0.0
        """When the engine began with the first of them."""
        self.tokens = 0
        self.pairs = 0
        self.num_loading = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[QueuedPrompt]:
        return iter(self._prompts)

    @property
    def work(self) -> PrefillWork:
        """Of all of them, whatever is done of the first."""
        return PrefillWork(self.tokens, self.pairs)

    def done_s(self, now_s: float) -> float:
        """Seconds of work that are done on the first of them: no more than it is predicted to take."""
        first = next(iter(self._prompts), None)
        return min(now_s - self._began_s, first.seconds) if first is not None else 0.0

    def add(self, prompt: QueuedPrompt, now_s: float) -> None:
        """It is sent now."""
        if not self._prompts:
            self._began_s = now_s
        self._prompts[prompt] = None
        self.tokens += prompt.work.tokens
        self.pairs += prompt.work.pairs
        self.num_loading += prompt.loads

    def answered(self, prompt: QueuedPrompt, now_s: float) -> bool:
        """Its first token is here: it and those before it that show none are computed. Whether it came in
        order: some engines have their own."""
        if prompt not in self._prompts:
            return False
        is_first = True
        over = [prompt]
        for other in self._prompts:
            if other is prompt:
                break
            if other.shows_first_token:
                is_first = False
            else:
                over.append(other)
        for each in over:
            self._remove(each)
        if is_first:
            self._began_s = now_s
        return is_first

    def discard(self, prompt: QueuedPrompt, now_s: float) -> None:
        """It is given up, if it is still here."""
        if prompt not in self._prompts:
            return
        if next(iter(self._prompts)) is prompt:
            self._began_s = now_s
        self._remove(prompt)

    def pass_time(self, now_s: float) -> None:
        """Take out what shows no first token and must be computed by now."""
        while self._prompts:
            first = next(iter(self._prompts))
            if first.shows_first_token or self._began_s + first.seconds > now_s:
                return
            self._began_s += first.seconds
            self._remove(first)

    def _remove(self, prompt: QueuedPrompt) -> None:
        del self._prompts[prompt]
        self.tokens -= prompt.work.tokens
        self.pairs -= prompt.work.pairs
        self.num_loading -= prompt.loads
