"""Deterministic answers: the same prompt gets the same tokens from every engine of the same seed.

An answer is a run of English, Persian and Hindi words drawn by a generator that is seeded with the prompt,
the request's seed and the choice's index; it ends by itself after a few words, or goes on for `ignore_eos`.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from anbar.apps.emulator.text import ModelText, whole_characters

_ENGLISH = "the store keeps water and grain for a long winter road north then"
_PERSIAN = "انبار آب کتاب زمستان می‌روم خانه"
_HINDI = "अंबार पानी किताब सर्दी क्षेत्र घर"
_WORDS = (*_ENGLISH.split(" "), *_PERSIAN.split(" "), *_HINDI.split(" "))
_MIN_WORDS, _MAX_WORDS = 6, 14
_MASK = (1 << 64) - 1
_MOST_PASSED_OVER = 64
"""Words in a row that are not sampled because they would end an answer too early. When all are such words, as
by stop tokens that are the whole vocabulary, they are sampled all the same, and do not end it."""


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
    script: str | None = None
    """A text that the request forces; None: whatever is drawn."""

    @property
    def most_drawn_at_once(self) -> int:
        """Tokens that may have to be drawn before the first one can be shown: its length must be known."""
        return self.max_tokens if self.stop else min(self.max_tokens, self.min_tokens + _TYPICAL_TOKENS)


_TYPICAL_TOKENS = 64
"""Of an answer that ends by itself."""


@dataclass(frozen=True, slots=True)
class Word:
    """Tokens that are drawn together."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    """What each token completes."""


class Writer:
    """Draws the words of answers. One per engine."""

    def __init__(self, text: ModelText, seed: int) -> None:
        self._text = text
        self._words = [self._word(text.words(" " + word)) for word in _WORDS]
        self._end = self._word([text.end_of_turn])
        self._seed = seed

    def draw(self, prompt: Sequence[int], seed: int | None, choice: int) -> Iterator[Word]:
        """Words without end: a few, the end of turn, and again."""
        digest = hashlib.sha256(array("I", prompt))
        digest.update(f"{self._seed}/{seed}/{choice}".encode())
        state = int.from_bytes(digest.digest()[:8], "big")
        words, num_words = self._words, _MIN_WORDS + state % (_MAX_WORDS - _MIN_WORDS + 1)
        while True:
            for _ in range(num_words):
                # A linear congruential generator (Knuth's MMIX): one of Python's takes longer to be seeded
                # than a short answer to be drawn.
                state = (state * 6364136223846793005 + 1442695040888963407) & _MASK
                yield words[(state >> 32) * len(words) >> 32]
            yield self._end

    def fixed(self, text: str) -> Iterator[Word]:
        """A given text, token by token, and the end of turn, and again."""
        whole = self._word(self._text.words(whole_characters(text)))
        words = [Word((token,), (shown,)) for token, shown in zip(whole.ids, whole.texts, strict=True)]
        while True:
            yield from words
            yield self._end

    def _word(self, tokens: Sequence[int]) -> Word:
        # Behind a token of any prompt, so that a space that the word begins with is shown.
        stream = self._text.stream(self._text.words("a"))
        return Word(tuple(tokens), tuple(map(stream.push, tokens)))


class Answer:
    """The tokens of one choice. `length` is known from the start: to find it, they are drawn as far as it
    takes (`AnswerRules.most_drawn_at_once`), and the rest as they are asked for."""

    def __init__(self, text: ModelText, words: Iterator[Word], rules: AnswerRules) -> None:
        self._rules = rules
        self._end = text.end_of_turn
        self._ends = rules.stop_tokens if rules.ignore_eos else rules.stop_tokens | {self._end}
        """Tokens that end it."""
        self._early = rules.stop_tokens | {self._end}
        """Tokens that are not sampled among the first `min_tokens`."""
        self._late = self._early - self._ends
        """Tokens that are not sampled behind those."""
        self._words = words
        self._texts: list[str] = []
        self._hold = 0 if rules.include_stop else max(map(len, rules.stop), default=1) - 1
        """Characters that are not shown yet: they may be the beginning of a stop string."""
        self._held = ""
        self._num_shown = 0
        self._stopped: tuple[str, int] | None = None
        """The stop string that ends it, and how many characters are shown."""
        self.ids: list[int] = []
        """Tokens drawn so far, some of them behind its end."""
        self.length = self._stop_length() if rules.stop else self._plain_length()

    def first(self, num_tokens: int) -> list[int]:
        """At least the first `num_tokens` token ids."""
        while len(self.ids) < num_tokens:
            self._draw()
        return self.ids

    def token(self, index: int) -> Token:
        """The token at `index`; to be asked for in order."""
        token = self.first(index + 1)[index]
        text = self._texts[index]
        if index + 1 == self.length:
            return self._last(token, text)
        if self._hold:
            held = self._held + text
            text = held[: -self._hold]
            self._held = held[len(text) :]
        self._num_shown += len(text)
        return Token(token, text)

    def _last(self, token: int, text: str) -> Token:
        if self._stopped is not None:
            stop, num_chars = self._stopped
            return Token(token, (self._held + text)[: num_chars - self._num_shown], Finish.STOP, stop)
        if token in self._ends and self.length > self._rules.min_tokens:
            # The end of turn needs no explanation.
            reason = None if token == self._end else token
            shown = self._held + text if self._rules.include_stop else self._held
            return Token(token, shown, Finish.STOP, reason)
        return Token(token, self._held + text, Finish.LENGTH)

    def _draw(self) -> Word:
        """The next word that may be sampled."""
        unwanted = self._early if len(self.ids) < self._rules.min_tokens else self._late
        for num_passed_over, word in enumerate(self._words):
            if unwanted.isdisjoint(word.ids):
                break
            if num_passed_over == _MOST_PASSED_OVER:
                self._early = self._late = frozenset()
                break
        self.ids += word.ids
        self._texts += word.texts
        return word

    def _ending(self, word: Word) -> int | None:
        """Its length, when the word that was drawn last ends it, by a token or by the limit."""
        rules, start = self._rules, len(self.ids) - len(word.ids)
        if not self._ends.isdisjoint(word.ids):
            for index in range(max(start, rules.min_tokens), min(len(self.ids), rules.max_tokens)):
                if self.ids[index] in self._ends:
                    return index + 1
        return rules.max_tokens if len(self.ids) >= rules.max_tokens else None

    def _plain_length(self) -> int:
        if not self._ends:
            return self._rules.max_tokens
        while True:
            length = self._ending(self._draw())
            if length is not None:
                return length

    def _stop_length(self) -> int:
        """Go through the text until a stop string or another end."""
        longest = max(map(len, self._rules.stop))
        num_chars, tail = 0, ""
        """Of the text so far: its length, and what of it may belong to a stop string."""
        while True:
            word = self._draw()
            length, before = self._ending(word), tail
            shown = "".join(word.texts)
            if any(stop in before + shown for stop in self._rules.stop):
                found = self._search(word, before, num_chars, length)
                if found is not None:
                    return found
            if length is not None:
                return length
            num_chars += len(shown)
            tail = (before + shown)[-longest:]

    def _search(self, word: Word, tail: str, num_chars: int, most: int | None) -> int | None:
        """The length, when a token of `word`, one before an end at `most`, completes a stop string."""
        rules, start = self._rules, len(self.ids) - len(word.ids)
        for index, text in enumerate(word.texts, start):
            is_end = index + 1 == most and self.ids[index] in self._ends
            if (most is not None and index >= most) or (is_end and index >= rules.min_tokens):
                return None
            window = tail + text
            for stop in rules.stop if text and index >= rules.min_tokens else ():
                at = window.find(stop, max(0, len(tail) + 1 - len(stop)))
                if at >= 0:
                    until = at + len(stop) if rules.include_stop else at
                    self._stopped = stop, num_chars - len(tail) + until
                    return index + 1
            tail, num_chars = window, num_chars + len(text)
        return None
