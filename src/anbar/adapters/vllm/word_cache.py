"""Token ids of short texts from those of their words.

Most of what a byte-level tokenizer takes goes into finding words, though it knows their tokens already. Where
a single space stands between two other characters, its pattern always ends one word and begins the next, so
that the tokens of a text are those of its pieces.
"""

import json
import re
from collections.abc import Mapping
from typing import Protocol

MAX_CHARS = 4096
"""Longer texts are for the tokenizer itself, which lets other threads run meanwhile."""
_MAX_WORD_CHARS = 32
_MAX_WORDS = 32_768
"""Some 10 MB."""

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_DIGITS = {"type": "Digits"}
_two_spaces = re.compile(r"\s\s").search
"""Python's spaces are those of the tokenizer's pattern and four more."""


class Encoding(Protocol):
    """What is used of an encoded text."""

    @property
    def ids(self) -> list[int]: ...


class Backend(Protocol):
    """What is used of a `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...

    def num_special_tokens_to_add(self, is_pair: bool) -> int: ...

    def to_str(self) -> str: ...


class WordCache:
    """The words that one tokenizer has seen."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, list[int]] = {}
        """By words behind a space."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without those that a tokenizer puts around it."""
        if _two_spaces(text) is not None:
            return self._encode(text)
        first, *words = text.split(" ")
        ids = self._encode(first)
        known = self._known
        for word in words:
            found = known.get(word)
            ids += self._learn(word) if found is None else found
        return ids

    def _encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def _learn(self, word: str) -> list[int]:
        found = self._encode(" " + word)
        if len(word) <= _MAX_WORD_CHARS:
            if len(self._known) >= _MAX_WORDS:
                self._known.clear()
            self._known[word] = found
        return found


def has_words(backend: Backend) -> bool:
    """Whether the tokenizer is of the kind that finds its words by GPT-2's pattern (perhaps each digit by
    itself), and nothing before or beside that looks across them."""
    about = json.loads(backend.to_str())
    split = about["pre_tokenizer"] or {}
    steps = split["pretokenizers"] if split.get("type") == "Sequence" else [split]
    if len(steps) > 1 and _is(steps[0], _DIGITS):
        del steps[0]
    model = about["model"]
    return (
        len(steps) == 1
        and _is(steps[0], _BYTE_LEVEL)
        and model["type"] == "BPE"
        and not model.get("dropout")
        and about["normalizer"] is about["truncation"] is about["padding"] is None
        and not any(
            token["lstrip"] or token["rstrip"] or re.search(r"\s", token["content"])
            for token in about["added_tokens"]
        )
    )


def _is(step: Mapping[str, object], kind: Mapping[str, object]) -> bool:
    return all(step.get(name) == value for name, value in kind.items())
