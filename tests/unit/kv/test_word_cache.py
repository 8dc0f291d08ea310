"""Ids from words at hand are those of the tokenizer itself, whatever the text; tokenizers that look across
words, or before which something else does, are told apart."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from anbar.adapters.vllm.word_cache import WordCache, has_words

SENTENCES = [
    "The store's grain is for 2 winters: it's ok, they'll see. don't  know\n\nwhy 1234 x=3",
    "سلام دنیا، حال شما چطور است؟ می‌روم",
    "नमस्ते दुनिया, आप कैसे हैं? क्षेत्र १२",
    *["def f():\n    if x:\n        return   1 \n \n \t \t"] * 4,
]
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
PIECES = st.sampled_from(
    [*" \n\t'.,!=()-_/\\", "  ", " \n", " '", "'s", "'ll", "1", "42", "é", "e\u0301"]
    + ["\x1c", "\x85", "\xa0", "\u2003", "\u200c"]
    + [word for sentence in SENTENCES for word in sentence.split()]
    + ["<|im_end|>", "🙂", "中文"]
)  # fmt: skip


def trained(pre_tokenizer: Any) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(vocab_size=450, special_tokens=["<|im_end|>"], initial_alphabet=alphabet),
    )
    return raw


TOKENIZERS = [trained(BYTE_LEVEL), trained(pre_tokenizers.Sequence([DIGITS, BYTE_LEVEL]))]


@pytest.mark.parametrize("raw", TOKENIZERS, ids=["plain", "digits"])
@given(st.lists(st.lists(PIECES, max_size=30).map("".join), min_size=1, max_size=4))
def test_the_ids_are_the_tokenizers(raw: Tokenizer, texts: list[str]) -> None:
    """Several texts of words, odd spaces, digits, quotes and special tokens go through one cache."""
    cache = WordCache(raw)
    for text in (*texts, *texts, "x \n \n \t \t y"):
        assert cache.encode(text) == raw.encode(text, add_special_tokens=False).ids


def test_what_was_learnt_is_not_handed_out() -> None:
    """A caller may do to its list what it likes."""
    cache = WordCache(TOKENIZERS[0])
    cache.encode("the store store").clear()
    cache.encode("the store").append(7)
    assert cache.encode("the store") == TOKENIZERS[0].encode("the store").ids


def _normalized(about: Any) -> None:
    about["normalizer"] = {"type": "NFC"}


def _prefixed(about: Any) -> None:
    about["pre_tokenizer"]["add_prefix_space"] = True


def _unsplit(about: Any) -> None:
    about["pre_tokenizer"]["use_regex"] = False


def _stripping(about: Any) -> None:
    about["added_tokens"][0]["lstrip"] = True


def _spaced(about: Any) -> None:
    about["added_tokens"][0]["content"] = "a b"


def _random(about: Any) -> None:
    about["model"]["dropout"] = 0.5


def _other_pattern(about: Any) -> None:
    split = {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Isolated", "invert": False}
    about["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, about["pre_tokenizer"]]}


def _without_words(about: Any) -> None:
    about["pre_tokenizer"] = None


class Described:
    """A tokenizer of which only the description is looked at."""

    def __init__(self, about: Any) -> None:
        self._about = about

    def to_str(self) -> str:
        return json.dumps(self._about)

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        return 0

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any:
        raise AssertionError("not encoded")


@pytest.mark.parametrize(
    "change",
    [_normalized, _prefixed, _unsplit, _stripping, _spaced, _random, _other_pattern, _without_words],
)
def test_other_kinds_have_no_words(change: Callable[[Any], None]) -> None:
    """One thing is different: the shortcut is not taken."""
    about = json.loads(TOKENIZERS[0].to_str())
    assert has_words(Described(about))
    change(about)
    assert not has_words(Described(about))
