"""Prompts that no engine has seen, of exact lengths in tokens."""

import random
from collections.abc import Sequence

TEXT = """
harbour lantern copper meadow winter thread marble canvas orchard signal velvet granite ribbon saddle
timber anchor barrel candle desert engine feather garden hammer island jacket kettle ladder magnet
needle oyster pepper quarry rocket silver tunnel umbrella valley walnut yellow zephyr bridge castle
dragon eleven flight golden hollow indigo jungle kernel lemon mirror nectar orange planet quiver river
stone tower under violet water young zinc amber basil cedar delta ember frost glass honey ivory jade
karma linen maple noble ocean
"""
"""Plain words: whatever the tokenizer, their tokens are ordinary ones."""


class Prompts:
    """Random prompts over the tokens of plain words. Two of them never share a block: even eight tokens are
    one of 10^15 choices."""

    def __init__(self, token_ids: Sequence[int], rng: random.Random) -> None:
        """`token_ids`: those of some plain text."""
        self._ids = sorted(set(token_ids))
        self._rng = rng

    def fresh(self, num_tokens: int) -> tuple[int, ...]:
        """A prompt of `num_tokens` that was not used before."""
        return tuple(self._rng.choices(self._ids, k=num_tokens))

    def text(self, num_words: int) -> str:
        """A text of words in a new order."""
        return " ".join(self._rng.choices(TEXT.split(), k=num_words))
