"""What is asked of a simulated fleet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from anbar.apps.simulate.ask import Ask


class Load(Protocol):
    """Requests that come anyhow, and those that come because others were answered."""

    @property
    def asks(self) -> Sequence[Ask]:
        """Those that come anyhow, by time."""
        ...

    @property
    def soonest_s(self) -> float:
        """How long after an answer the next request of the same client comes at the soonest; infinite: none
        does."""
        ...

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        ...

    def after(self, ask: Ask, now_s: float) -> Ask | None:
        """The request that follows on the answer to `ask`, which ended now."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Requests that wait for no answer."""

    asks: Sequence[Ask]
    soonest_s: float = math.inf

    @property
    def longest(self) -> int:
        return max(ask.num_prompt + ask.num_answer for ask in self.asks)

    def after(self, ask: Ask, now_s: float) -> Ask | None:
        """None does."""
        return None
