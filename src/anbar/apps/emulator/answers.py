"""Deterministic answers: the same prompt gets the same tokens from every engine of the same seed.

An answer is a run of English, Persian and Hindi words drawn by a generator that is seeded with the prompt,
the request's seed and the choice's index; it ends by itself after a few words, or goes on for `ignore_eos`.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from anbar.apps.emulator.text import ModelText

_ENGLISH = "the store keeps water and grain for a long winter road north then"
_PERSIAN = "انبار آب کتاب زمستان می‌روم خانه"
_HINDI = "अंबार पानी किताब सर्दी क्षेत्र घर"
_WORDS = (*_ENGLISH.split(" "), *_PERSIAN.split(" "), *_HINDI.split(" "))
_MIN_WORDS, _MAX_WORDS = 6, 14
_MASK = (1 << 64) - 1


class Finish(Enum):
    """Why an answer ended, as the API names it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token: the text that it completes, and on the last one why the answer ended."""

    id: int
    text: str
    finish: Finish | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What ends an answer."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Show the stop string (`include_stop_str_in_output`)."""
    stop_tokens: frozenset[int] = frozenset()
    """`stop_token_ids`."""


class Writer:
    """Draws the tokens of answers. One per engine."""

    def __init__(self, text: ModelText, seed: int) -> None:
        self._words = [text.words(" " + word) for word in _WORDS]
        self._seed = seed
        self._text = text

    def draw(self, prompt: Sequence[int], seed: int | None, choice: int) -> Iterator[int]:
        """Tokens without end: a few words, the end of turn, and again."""
        digest = hashlib.sha256(array("I", prompt))
        digest.update(f"{self._seed}/{seed}/{choice}".encode())
        state = int.from_bytes(digest.digest()[:8], "big")
        words, num_words = self._words, _MIN_WORDS + state % (_MAX_WORDS - _MIN_WORDS + 1)
        while True:
            for _ in range(num_words):
                # A linear congruential generator (Knuth's MMIX): one of Python's takes longer to be seeded
                # than a short answer to be drawn.
                state = (state * 6364136223846793005 + 1442695040888963407) & _MASK
                yield from words[(state >> 32) * len(words) >> 32]
            yield self._text.end_of_turn

    def fixed(self, text: str) -> Iterator[int]:
        """A given text and the end of turn, and again."""
        while True:
            yield from self._text.words(text)
            yield self._text.end_of_turn


class Answer:
    """The tokens of one choice. `length` is known from the start, the tokens are drawn as they are asked for;
    with stop strings, which must be looked for in the text, all of them at once."""

    def __init__(
        self, text: ModelText, prompt: Sequence[int], tokens: Iterator[int], rules: AnswerRules
    ) -> None:
        self._rules = rules
        self._ends = rules.stop_tokens if rules.ignore_eos else rules.stop_tokens | {text.end_of_turn}
        """Tokens that end it; while they may not, they are not drawn."""
        self._source = self._allowed(tokens)
        self._stream = text.stream(prompt)
        self._end = text.end_of_turn
        self._shown: list[Token] = []
        self.ids: list[int] = []
        """Tokens drawn so far."""
        self.length = self._find_length()

    def first(self, num_tokens: int) -> list[int]:
        """At least the first `num_tokens` token ids."""
        while len(self.ids) < num_tokens:
            self.ids.append(next(self._source))
        return self.ids

    def token(self, index: int) -> Token:
        """The token at `index`; to be asked for in order."""
        if self._shown:
            return self._shown[index]
        token = self.first(index + 1)[index]
        if index + 1 < self.length:
            return Token(token, self._stream.push(token))
        if token in self._ends:
            return Token(token, self._last_text(token), Finish.STOP, self._reason(token))
        return Token(token, self._stream.push(token), Finish.LENGTH)

    def _last_text(self, token: int) -> str:
        return self._stream.push(token) if self._rules.include_stop else ""

    def _reason(self, token: int) -> int | None:
        """The end of turn needs no explanation."""
        return None if token == self._end else token

    def _allowed(self, tokens: Iterator[int]) -> Iterator[int]:
        """Without tokens that may not end it yet: they would not be sampled."""
        rules, num = self._rules, 0
        for token in tokens:
            if token in self._ends and num < rules.min_tokens:
                continue
            if token == self._end and rules.ignore_eos:
                continue
            num += 1
            yield token

    def _find_length(self) -> int:
        rules = self._rules
        if rules.stop:
            return self._search()
        if not self._ends:
            return rules.max_tokens
        for token in self._source:
            self.ids.append(token)
            if token in self._ends or len(self.ids) >= rules.max_tokens:
                break
        return len(self.ids)

    def _search(self) -> int:
        """Go through the text until a stop string or another end, holding back what may begin one."""
        rules = self._rules
        hold = 0 if rules.include_stop else max(map(len, rules.stop)) - 1
        text, offset = "", 0
        for token in self._source:
            self.ids.append(token)
            if token in self._ends:
                text += self._last_text(token)
                self._shown.append(Token(token, text[offset:], Finish.STOP, self._reason(token)))
                break
            before, text = len(text), text + self._stream.push(token)
            found = self._stop_in(text, before) if len(self.ids) > rules.min_tokens else None
            if found is not None:
                stop, at = found
                until = at + len(stop) if rules.include_stop else at
                self._shown.append(Token(token, text[offset:until], Finish.STOP, stop))
                break
            if len(self.ids) >= rules.max_tokens:
                self._shown.append(Token(token, text[offset:], Finish.LENGTH))
                break
            until = max(offset, len(text) - hold)
            self._shown.append(Token(token, text[offset:until]))
            offset = until
        return len(self.ids)

    def _stop_in(self, text: str, before: int) -> tuple[str, int] | None:
        """The first stop string of the list that the text since `before` completes, and where it begins."""
        for stop in self._rules.stop:
            at = text.find(stop, max(0, before + 1 - len(stop)))
            if at >= 0:
                return stop, at
        return None
