"""What was asked, as far as a planner needs it, and what of it came again."""

from collections.abc import Sequence
from dataclasses import dataclass

from anbar.plan.miss_ratio import MissRatioCurve, ReuseHistogram

EXACT_USES = 3_000_000
"""Uses of blocks up to which all are followed; of more a share, so that as many are."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    at_s: float
    num_prompt: int
    """Tokens."""
    num_answer: int
    """Tokens; 0: not known."""
    blocks: tuple[int, ...]
    """Names of the blocks of the prompt, in a hash chain; the last one may not be full."""
    scope: str = ""
    """Who may share blocks; "": not known."""
    first_token_s: float | None = None
    """As it was measured; None: it was not."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival."""

    requests: Sequence[Asked]
    block_size: int
    """Tokens."""
    outside_prefix: float | None = None
    """Share of the text that came again behind another beginning; None: not known."""

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at_s - self.requests[0].at_s

    @property
    def num_prompt(self) -> int:
        """Tokens of all prompts."""
        return sum(asked.num_prompt for asked in self.requests)

    @property
    def num_answer(self) -> int:
        """Tokens of all answers."""
        return sum(asked.num_answer for asked in self.requests)

    @property
    def has_blocks(self) -> bool:
        """Whether anything is known of what prompts have in common."""
        return any(asked.blocks for asked in self.requests)


@dataclass(frozen=True, slots=True)
class Reuse:
    """What came again."""

    curve: MissRatioCurve
    """Share of all prompt tokens that one prefix cache of so many blocks for everybody would have held."""
    num_blocks: float
    """Different blocks: the working set."""
    is_exact: bool

    @classmethod
    def of(cls, workload: Workload) -> "Reuse":
        """Of full blocks alone, and never of a prompt's last token: what engines can reuse."""
        size = workload.block_size
        usable = [asked.blocks[: (asked.num_prompt - 1) // size] for asked in workload.requests]
        num_uses = sum(map(len, usable))
        histogram = ReuseHistogram(min(1.0, EXACT_USES / max(1, num_uses)))
        for blocks in usable:
            histogram.prompt(blocks, [size] * len(blocks))
        tokens = histogram.by_tokens()
        curve = MissRatioCurve(tokens.capacities, tokens.hits, workload.num_prompt)
        return cls(curve, histogram.num_blocks, num_uses <= EXACT_USES)
