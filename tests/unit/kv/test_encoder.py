"""Texts encoded piece by piece have the ids of the tokenizer itself, for every family of tokenizers."""

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from anbar.adapters.vllm.encoder import Encoder, PieceCache
from anbar.adapters.vllm.text_runs import TextRuns
from anbar.adapters.vllm.tokenizer_kind import LLAMA3, kind_of
from anbar.adapters.vllm.word_cache import WordCache

from .families import FAMILIES, SENTENCES, SPECIAL, WITH_WORDS, byte_level

PIECES = st.sampled_from(
    [*" \n\t'.,!=()-_/\\", *["  ", " \n", "\n\n", "\r\n", " '", "'s", "'LL", "1", "42", "é", "e\u0301"]]
    + ["\x1c", "\x85", "\xa0", "\u2000", "\u2003", "\u2028", "\u180e", "\u200b", "\u200c", "\u0301", "\x0b"]
    + [word for sentence in SENTENCES for word in sentence.split()]
    + [*SPECIAL, "<|im_st", "art|>", "<mask>", "<end>", "word", "grain", "<", "[CLS]"]
    + ["🙂", "👩\u200d👩\u200d👧", "中文", "ｶﾞ", "ﬁ", "Å"]
)
TEXTS = st.lists(st.lists(PIECES, max_size=30).map("".join), min_size=1, max_size=4)


def encoder(raw: Tokenizer, cache_bytes: int = 1 << 20, sizes: tuple[int, int] = (4, 16)) -> Encoder:
    return Encoder(raw, kind_of(raw.to_str()), cache_bytes, sizes)


def ids(raw: Tokenizer, text: str, special: bool = False) -> list[int]:
    return list(raw.encode(text, add_special_tokens=special).ids)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=30)
@given(texts=TEXTS, sizes=st.sampled_from([(1, 1), (4, 16), (4, 64), (16, 128), (512, 4096)]))
def test_the_ids_are_the_tokenizers(name: str, texts: list[str], sizes: tuple[int, int]) -> None:
    """Several texts, each also behind the one before, with a cache that always has room and one that never
    has: words in several scripts, odd spaces, joiners, marks, special tokens whole and broken."""
    raw = FAMILIES[name]
    known, forgetful = encoder(raw, sizes=sizes), encoder(raw, 0, sizes)
    for text in (*texts, "".join(texts), "<|im_end|>".join(texts), *texts, *texts, "".join(texts)):
        for special in (False, True):
            expected = ids(raw, text, special)
            for made in (known, forgetful):
                assert made.read(text, add_special_tokens=special).whole().tolist() == expected


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=20)
@given(text=st.text(max_size=60), steps=st.lists(st.integers(1, 30), max_size=5))
def test_any_text_in_any_steps(name: str, text: str, steps: list[int]) -> None:
    """Unicode without limits (halves of surrogates are refused with the body), read step by step."""
    raw = FAMILIES[name]
    expected = ids(raw, text)
    reading = encoder(raw).read(text, add_special_tokens=False)
    for step in steps:
        reading.take(step)
        assert reading.ids.tolist() == expected[: len(reading.ids)]
        assert not reading.is_whole or len(reading.ids) == len(expected)
    assert reading.whole().tolist() == expected


def test_what_is_known_of_each_family() -> None:
    """Every family is cut at its special tokens; byte-level ones between spaces too."""
    for name, raw in FAMILIES.items():
        kind = kind_of(raw.to_str())
        assert "<|im_end|>" not in kind.cuts, "another token may hide it"
        assert "<s>" in kind.cuts
        assert not kind.note
        assert (kind.words is not None) == (name in WITH_WORDS)
        assert kind.guard_start == (name == "llama-2")


class Counting:
    """A tokenizer that notes how much it was asked."""

    def __init__(self, raw: Tokenizer) -> None:
        self._raw = raw
        self.num_chars = 0

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any:
        self.num_chars += len(sequence)
        return self._raw.encode(sequence, add_special_tokens=add_special_tokens)


def counting(raw: Tokenizer) -> tuple[Counting, Encoder]:
    counts = Counting(raw)
    made = Encoder(counts, kind_of(raw.to_str()), 1 << 22)
    counts.num_chars = 0
    return counts, made


def prose(num_words: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.getrandbits(32):x}" for _ in range(num_words))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_new_turn_costs_the_new_turn(name: str) -> None:
    """Fifty turns of words that were never seen, then one more: nothing but it is encoded."""
    counts, made = counting(FAMILIES[name])
    turns = [f"<s>user\n{prose(60, seed)}<s>\n" for seed in range(50)]
    made.read("".join(turns), add_special_tokens=False).whole()
    counts.num_chars = 0
    made.read("".join(turns) + "<s>user\n" + prose(60, 99), add_special_tokens=False).whole()
    assert counts.num_chars < 2 * len(turns[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_long_conversation_that_came_twice_is_at_hand(name: str) -> None:
    """All but its end is there as soon as it comes again, also with another turn; the ids are the
    tokenizer's."""
    raw = FAMILIES[name]
    made = Encoder(raw, kind_of(raw.to_str()), 1 << 22)
    text = "".join(f"<s>user\n{prose(60, seed)}<s>\n" for seed in range(50))
    for _ in range(2):
        assert made.read(text, add_special_tokens=False).whole().tolist() == ids(raw, text)
    for longer in (text, f"{text}<s>user\n{prose(60, 99)}"):
        reading = made.read(longer, add_special_tokens=False)
        at_hand = reading.ids.tolist()
        assert len(at_hand) > 0.8 * len(ids(raw, text))
        assert reading.whole().tolist() == ids(raw, longer)
        assert at_hand == ids(raw, longer)[: len(at_hand)]


def sentences(text: str) -> Iterator[str]:
    """A text may be cut in front of a full stop."""
    at = 0
    while at < len(text):
        end = text.find(".", at + 1)
        yield text[at : end if end > 0 else len(text)]
        at = end if end > 0 else len(text)


@given(st.lists(st.text("ab.", max_size=30), max_size=20), st.integers(4, 10), st.integers(0, 4000))
def test_runs_are_pieces_put_together(texts: list[str], num_chars: int, max_bytes: int) -> None:
    """Texts that may be cut in some places only, and not where a run happens to end: what is known are the
    first of a text's pieces, all but the last few when it comes twice, and takes no more than it may."""
    runs = TextRuns(
        sentences,
        lambda pieces: [piece.encode() for piece in pieces],
        num_chars=num_chars,
        num_behind=1,
        max_bytes=max_bytes,
    )
    for text in texts:
        pieces = list(runs.pieces(text, 0))
        assert "".join(pieces) == text
        assert all(piece[0] == "." for piece in pieces[1:])
        for _ in range(2):
            known = runs.known(text, 0)
            assert known.ids == text[: known.num_chars].encode()
            left = text[known.num_chars :]
            assert len(left) <= num_chars or "." not in left[1:num_chars]
            rest = list(runs.pieces(text, known.num_chars))
            assert rest == pieces[len(pieces) - len(rest) :]
        assert runs.num_bytes <= max_bytes


@pytest.mark.parametrize("name", WITH_WORDS)
def test_a_document_with_a_new_end_costs_the_end(name: str) -> None:
    """One segment without special tokens."""
    counts, made = counting(FAMILIES[name])
    document = prose(3000, 1)
    made.read(document, add_special_tokens=False).whole()
    counts.num_chars = 0
    made.read(document + " " + prose(60, 2), add_special_tokens=False).whole()
    assert counts.num_chars < len(document) / 10


@pytest.mark.parametrize("name", WITH_WORDS)
def test_the_start_of_a_text_costs_the_start(name: str) -> None:
    """A long text of which only the first blocks are asked for; what is known already comes with them."""
    counts, made = counting(FAMILIES[name])
    text = prose(3000, 1)
    reading = made.read(text, add_special_tokens=False)
    assert not reading.ids
    reading.take(1)
    assert 100 < len(reading.ids) < 5000
    assert not reading.is_whole
    assert counts.num_chars < 2000
    first = reading.ids
    reading.take(1)
    assert reading.ids[: len(first)] == first
    again = made.read(text, add_special_tokens=False)
    again.take(1)
    assert len(again.ids) > len(reading.ids)


def test_words_make_room_for_new_ones_a_few_at_a_time() -> None:
    """More words than are kept, one after the other: never more than that, and the last ones are known."""
    raw = FAMILIES["gpt-2"]
    lines = kind_of(raw.to_str()).words
    assert lines is not None
    counts = Counting(raw)
    cache = WordCache(counts, lines, max_words=64)
    words = prose(500, 1).split()
    for number, word in enumerate(words, 1):
        cache.encode(word)
        assert min(number, 60) < len(cache) + 1 <= 65
        asked = counts.num_chars
        for recent in words[max(0, number - 60) : number]:
            cache.encode(recent)
        assert counts.num_chars == asked


@given(st.lists(st.tuples(st.text("ab", max_size=3), st.integers(0, 5)), max_size=60), st.integers(0, 1500))
def test_the_cache_keeps_what_was_used_last(puts: list[tuple[str, int]], room: int) -> None:
    """Against a list in order of use: never beyond its bytes, and the least recently used goes first."""
    cache = PieceCache(room)
    order: list[str] = []
    sizes: dict[str, int] = {}
    for piece, length in puts:
        if piece in order:
            order.remove(piece)
            order.append(piece)
            assert len(cache.known([piece, "zz"])) == 1
            continue
        assert cache.known([piece, *order]) == []
        before = cache.num_bytes
        cache.put(piece, b"\0" * 4 * length)
        order.append(piece)
        fresh = PieceCache(1 << 20)
        fresh.put(piece, b"\0" * 4 * length)
        sizes[piece] = fresh.num_bytes
        while sum(sizes[each] for each in order) > room:
            order.pop(0)
        assert cache.num_bytes == sum(sizes[each] for each in order) <= max(room, before)
        assert len(cache) == len(order)


def test_threads_share_one_encoder() -> None:
    """Eight threads, a cache that overflows all the time: still the tokenizer's ids."""
    raw = FAMILIES["qwen-2"]
    made = encoder(raw, 2000)
    texts = [sentence * (1 + at % 3) for at, sentence in enumerate(SENTENCES * 10)]
    expected = [ids(raw, text) for text in texts]

    def whole(text: str) -> list[int]:
        return made.read(text, add_special_tokens=False).whole().tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(whole, texts * 10)) == expected * 10


def described(change: Callable[[Any], None]) -> str:
    about = json.loads(WITH_WORDS["gpt-2"].to_str())
    change(about)
    return json.dumps(about)


def _normalized(about: Any) -> None:
    about["normalizer"] = {"type": "Lowercase"}


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


def _two_patterns(about: Any) -> None:
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    about["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, about["pre_tokenizer"]]}


def _without_words(about: Any) -> None:
    about["pre_tokenizer"] = None


@pytest.mark.parametrize(
    "change",
    [
        _normalized,
        _prefixed,
        _unsplit,
        _stripping,
        _spaced,
        _random,
        _other_pattern,
        _two_patterns,
        _without_words,
    ],
)
def test_other_kinds_have_no_words(change: Callable[[Any], None]) -> None:
    """One thing is different: texts are not cut between words."""
    assert kind_of(described(lambda about: None)).words is not None
    assert kind_of(described(change)).words is None


def _strange(about: Any) -> None:
    about["pre_tokenizer"] = {"type": "Newfangled"}


def _no_tokens(about: Any) -> None:
    about["added_tokens"] = []


def _unsafe_tokens(about: Any) -> None:
    for token in about["added_tokens"]:
        token["rstrip"] = True


@pytest.mark.parametrize("change", [_strange, _random, _no_tokens, _unsafe_tokens])
def test_kinds_that_are_not_cut_say_why(change: Callable[[Any], None]) -> None:
    """What is not known to be exact is not done, and there is a note."""
    kind = kind_of(described(change))
    assert kind.note
    assert not kind.cuts


@pytest.mark.parametrize(
    ("tokens", "cuts"),
    [
        (["<a>", "<b>"], {"<a>", "<b>"}),
        (["<a>", "<a><b>"], {"<a><b>"}),
        (["<|a", "x<|"], set()),
        (["<a>", "x<"], set()),
        (["<a>", ">x)"], {"<a>"}),
        (["<>", "<><>"], {"<><>"}),
        ([" <a>", "a>", "_<"], set()),
    ],
)
def test_tokens_at_which_texts_are_cut(tokens: list[str], cuts: set[str]) -> None:
    """Not those that another may hide, and none that ends with a letter or a space."""
    raw = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    about = json.loads(raw.to_str())
    pattern = about["added_tokens"][0]
    about["added_tokens"] = [{**pattern, "content": token} for token in tokens]
    assert set(kind_of(json.dumps(about)).cuts) == cuts


def test_a_tokenizer_without_cuts_is_asked_for_whole_texts() -> None:
    """No added token, no pattern: the text goes to the tokenizer as it is."""
    raw = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    counts, made = counting(raw)
    assert made.read("abab" * 1000, add_special_tokens=True).whole().tolist() == [2] * 2000
    assert counts.num_chars == 4000
