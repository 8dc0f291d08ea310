"""Token ids of texts from those of their words.

Most of what a byte-level tokenizer takes goes into finding words, though it knows their tokens already. The
patterns known here take white space only as the first character of a match or in a run of it (and ends of
lines as the last characters), so that they always end one word and begin the next where such a run begins,
or ends a line. So the tokens of a text are those of its pieces between such places.
"""

import re
from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from anbar.adapters.vllm.tokenizer_kind import Lines

_MAX_WORD_CHARS = 48
_MAX_WORDS = 65_536
"""Some 16 MB."""
_FORGOTTEN_SHARE = 16
"""One in so many words, those learnt first, makes room for new ones. To learn all of them anew would take a
second, and what got into their memory meanwhile would keep it from being theirs again."""
_MAX_UNKNOWN_SHARE = 0.4
"""With more words unknown than this, one call for the whole text is cheaper than one for each of them."""
_LEARNT_SHARE = 8
"""Then one in so many words is learnt beside: that takes a quarter of the call."""

# White space as the tokenizers' patterns have it: Python has four separators more. H: within a line.
_S, _W, _H = r"[\S\x1c-\x1f]", r"[^\S\x1c-\x1f]", r"[^\S\r\n\x1c-\x1f]"
_WORDS = {
    # GPT-2's pattern takes white space only at the start of a match, whatever it is.
    Lines.BEGIN_WORDS: re.compile(rf"{_W}*{_S}+|{_W}+"),
    # The later ones take ends of lines behind punctuation, and slashes behind those.
    Lines.END_WORDS: re.compile(rf"{_W}*[\r\n]|{_H}*{_S}+(?:{_W}*[\r\n](?=/){_S}+)*(?:{_W}*[\r\n])?|{_W}+"),
}
SAFE_CUT = {
    Lines.BEGIN_WORDS: re.compile(rf"(?<={_S})(?={_W})"),
    Lines.END_WORDS: re.compile(rf"(?<={_S})(?={_H})|(?<=\n)(?=[^\s/])"),
}
"""Places where a text may be cut; what is cut off is judged as a text of its own."""


class Encoding(Protocol):
    """What is used of an encoded text."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def special_tokens_mask(self) -> list[int]: ...


class Backend(Protocol):
    """What is used of a `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...


def packed(ids: Iterable[int]) -> bytes:
    """Ids as 32-bit numbers in the machine's order, as they are kept."""
    return array("I", ids).tobytes()


def encoded(backend: Backend, text: str) -> bytes:
    """The packed ids of a text, without those that the tokenizer puts around it."""
    return packed(backend.encode(text, add_special_tokens=False).ids)


class WordCache:
    """The words that one tokenizer has seen. Threads may share it: at worst a word is learnt twice."""

    def __init__(self, backend: Backend, lines: Lines, max_words: int = _MAX_WORDS) -> None:
        self._backend = backend
        self._find_words = _WORDS[lines].findall
        self._known = _Words(backend, max_words)

    def __len__(self) -> int:
        return len(self._known)

    def encode(self, text: str) -> bytes:
        """The packed ids of `text`, without those that a tokenizer puts around it."""
        words = self._find_words(text)
        known = self._known
        unknown = [word for word in words if word not in known]
        if len(unknown) > max(1, _MAX_UNKNOWN_SHARE * len(words)):
            for word in islice(unknown, 1 + len(words) // _LEARNT_SHARE):
                known[word]
            return encoded(self._backend, text)
        return b"".join(map(known.__getitem__, words))


class _Words(dict[str, bytes]):
    """The ids of words; of one that is not there, the tokenizer's, to be kept unless it is long."""

    def __init__(self, backend: Backend, max_words: int) -> None:
        super().__init__()
        self._backend = backend
        self._max_words = max_words

    def __missing__(self, word: str) -> bytes:
        found = encoded(self._backend, word)
        if len(word) <= _MAX_WORD_CHARS:
            if len(self) >= self._max_words:
                for oldest in list(islice(self, self._max_words // _FORGOTTEN_SHARE)):
                    self.pop(oldest, None)  # another thread may be at it too
            self[word] = found
        return found
