"""How deep each prompt of a workload would have been found, in caches of any size, from one reading of it.

Where a `MissRatioCurve` knows the sum, this knows each request: what is saved depends on where in a prompt
the hit ends, and a time to first token is of one request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anbar.plan.stack_distance import StackDistances
from anbar.plan.workload import Workload

Tokens = npt.NDArray[np.int64]
"""One number for each request, in the order of their arrival."""

MAX_USES = 400_000
"""Uses of blocks that are followed; of more, only each k-th block of a prompt is looked at. Its name stands
for all before it, so what is lost is less than k blocks of each hit."""

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Depths:
    """Stack distances of all prompts' blocks, one prompt after the other."""

    distances: Tokens
    starts: Tokens
    """Where each prompt's begin; one more for the end."""
    step_tokens: int
    """Tokens that one distance stands for."""

    @classmethod
    def of(cls, workload: Workload, num_caches: int = 1) -> "Depths":
        """Of one cache for everybody, or of several between which requests go round."""
        size = workload.block_size
        num_usable = [min(len(a.blocks), (a.num_prompt - 1) // size) for a in workload.requests]
        step = max(1, -(-sum(num_usable) // MAX_USES))
        stacks = [StackDistances() for _ in range(num_caches)]
        found: list[int] = []
        starts = [0]
        for place, (asked, num) in enumerate(zip(workload.requests, num_usable, strict=True)):
            _read(stacks[place % num_caches], asked.blocks[step - 1 : num : step], found)
            starts.append(len(found))
        return cls(np.array(found, np.int64), np.array(starts, np.int64), size * step)

    def stretched(self, factor: float) -> "Depths":
        """As if everything came again after `factor` times as much else."""
        again = self.distances != _NEVER
        longer = np.where(again, np.ceil(np.where(again, self.distances, 0) * factor), _NEVER)
        return Depths(longer.astype(np.int64), self.starts, self.step_tokens)

    def found(self, capacity_tokens: float) -> Tokens:
        """Tokens of each prompt that an LRU of so many tokens would have held."""
        held = self.distances <= min(capacity_tokens / self.step_tokens, _NEVER - 1)
        before = np.concatenate(([0], np.cumsum(held)))
        # Predecessors are never further away: what is held of a prompt is its beginning.
        tokens: Tokens = (before[self.starts[1:]] - before[self.starts[:-1]]) * self.step_tokens
        return tokens

    def capacities(self, num: int) -> Sequence[float]:
        """So many capacities in tokens, at which as many hits are gained from one to the next: where anything
        changes."""
        again = np.sort(self.distances[self.distances != _NEVER])
        if not len(again):
            return ()
        places = np.unique(np.linspace(0, len(again) - 1, num).astype(int))
        return [float(tokens) for tokens in np.unique(again[places]) * self.step_tokens]


def _read(stack: StackDistances, blocks: Sequence[int], found: list[int]) -> None:
    """A prompt is looked up whole, then used; its end first, as engines free it."""
    for block in blocks:
        distance = stack.distance(block)
        found.append(_NEVER if distance is None else distance)
    for block in reversed(blocks):
        stack.use(block)
