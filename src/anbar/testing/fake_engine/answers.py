"""Deterministic answers: the same prompt gets the same tokens from every fake, whichever model serves it.

An answer is a run of English, Persian and Hindi words drawn by a generator that is seeded with the prompt,
the request's seed and the choice's index; it ends by itself after a few words, or goes on for `ignore_eos`.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anbar.testing.fake_engine.tokenizer import Detokenizer, FakeTokenizer

_WORDS = (
    *(
        "the",
        "store",
        "keeps",
        "water",
        "and",
        "grain",
        "for",
        "a",
        "long",
        "winter",
        "road",
        "north",
        "then",
    ),
    *("انبار", "آب", "کتاب", "زمستان", "می‌روم", "خانه"),
    *("अंबार", "पानी", "किताब", "सर्दी", "क्षेत्र", "घर"),
)
_MIN_WORDS, _MAX_WORDS = 6, 14


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token: the text it completes, and on the last one why the answer ended."""

    id: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What ends an answer."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


def _seeded(prompt: Sequence[int], seed: int | None, choice: int) -> random.Random:
    digest = hashlib.sha256(repr((tuple(prompt), seed, choice)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def token_ids(
    tokenizer: FakeTokenizer, prompt: Sequence[int], seed: int | None, choice: int
) -> Iterator[int]:
    """Words of the answer as tokens, without end: `num_words` of them come before the first end of turn."""
    rng = _seeded(prompt, seed, choice)
    num_words = rng.randint(_MIN_WORDS, _MAX_WORDS)
    while True:
        for _ in range(num_words):
            yield from tokenizer.encode(" " + rng.choice(_WORDS), special=False)
        yield tokenizer.end_of_turn


def fixed_ids(tokenizer: FakeTokenizer, text: str) -> Iterator[int]:
    """A given text, then the end of turn."""
    while True:
        yield from tokenizer.encode(text, special=False)
        yield tokenizer.end_of_turn


class Answer:
    """The tokens of one choice; text is held back as vLLM does: open characters, possible stop strings."""

    def __init__(self, tokenizer: FakeTokenizer, ids: Iterator[int], rules: AnswerRules) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._end = tokenizer.end_of_turn
        self._ids = ids
        self._rules = rules
        self._hold = max((len(stop) - 1 for stop in rules.stop), default=0)
        self._text = ""
        self._shown = 0
        self.num_tokens = 0
        self.finished = False

    def next(self) -> Token:
        """The next token; the last one has a finish reason."""
        token = next(self._ids)
        while token == self._end and (self._rules.ignore_eos or self.num_tokens < self._rules.min_tokens):
            token = next(self._ids)
        self.num_tokens += 1
        if token == self._end:
            return self._finish(token, "stop")
        self._text += self._detokenizer.push(token)
        for stop in self._rules.stop:
            found = self._text.find(stop)
            if found >= 0 and self.num_tokens >= self._rules.min_tokens:
                self._text = self._text[:found]
                return self._finish(token, "stop", stop)
        if self.num_tokens >= self._rules.max_tokens:
            self._text += self._detokenizer.flush()
            return self._finish(token, "length")
        return Token(token, self._show(len(self._text) - self._hold))

    def _finish(self, token: int, reason: str, stop: str | None = None) -> Token:
        self.finished = True
        return Token(token, self._show(len(self._text)), reason, stop)

    def _show(self, until: int) -> str:
        shown, self._shown = self._shown, max(self._shown, until)
        return self._text[shown : self._shown]
