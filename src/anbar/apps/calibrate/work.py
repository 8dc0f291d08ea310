"""What an engine had to do in a measured time: the numbers that its cost is linear in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Work:
    """Steps and what was attended to in them (the same quantities as in `anbar.sim.engine.pace`)."""

    steps: tuple[tuple[int, int], ...]
    """(Tokens in the step, number of such steps)."""
    num_pairs: int = 0
    """Sum of L^2 - m^2 over pieces of prompts, tokens m..L."""
    num_read: int = 0
    """Context tokens whose KV decodes have read."""
    num_requests: int = 0
    """Requests whose way in and out is part of the time."""


class Kind(StrEnum):
    """Kinds of measurements, as the report names them."""

    PROMPT = "prompts, nothing cached"
    EXTENSION = "prompts with a cached prefix"
    DECODE = "decodes"
    MIXED = "a prompt beside decodes"
    LOAD = "prefixes from host memory"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. Those of one kind and `case` had equal work."""

    kind: Kind
    case: str
    round: int
    work: Work
    seconds: float

    @property
    def name(self) -> str:
        """Of kind and case."""
        return f"{self.kind}: {self.case}"


def prompt_work(num_tokens: int, num_cached: int, budget: int) -> Work:
    """A prompt alone, up to its first token: in pieces of at most `budget` tokens. The last token is computed
    even when all are cached."""
    num_cached = min(num_cached, num_tokens - 1)
    pieces = tuple((piece, 1) for piece in _pieces(num_tokens - num_cached, budget))
    if pieces == ((1, 1),):
        return Work(pieces, num_read=num_tokens, num_requests=1)
    return Work(pieces, num_pairs=num_tokens**2 - num_cached**2, num_requests=1)


def _pieces(num_tokens: int, budget: int) -> Iterator[int]:
    while num_tokens > 0:
        yield min(num_tokens, budget)
        num_tokens -= budget


def decode_work(contexts: Sequence[int], num_steps: int) -> Work:
    """`num_steps` steps of decodes whose contexts, the new token included, are `contexts` in the first."""
    batch = len(contexts)
    growth = batch * (num_steps * (num_steps - 1) // 2)
    return Work(((batch, num_steps),), num_read=num_steps * sum(contexts) + growth)


def mixed_work(contexts: Sequence[int], num_tokens: int) -> Work:
    """One step of decodes and a whole prompt."""
    return Work(((len(contexts) + num_tokens, 1),), num_tokens**2, sum(contexts))
