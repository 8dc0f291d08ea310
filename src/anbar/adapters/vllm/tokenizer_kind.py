"""Which shortcuts a tokenizer allows, read from its own description (`tokenizer.json`).

Source: the `tokenizers` library, 0.23. A text is first split at the added tokens that are not normalized,
the earliest first, and of several at one place the longest. What stands between two of them is then
normalized, split into words and encoded by itself; the one thing that looks further is Metaspace's
`prepend_scheme: first`, which asks whether it stands at the start of the text. So what lies between two
added tokens has the same ids wherever it stands, provided that they are found at the same places when it is
cut out.

Further, in front of a space, a text can be cut where it is known that the tokenizer does so too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

Json = Mapping[str, object]


class Lines(Enum):
    """Where, around the end of a line, a tokenizer that cuts in front of spaces cuts too."""

    BEGIN_WORDS = "in front of it"
    END_WORDS = "behind it"


@dataclass(frozen=True, slots=True)
class TokenizerKind:
    """What is exact for one tokenizer."""

    cuts: tuple[str, ...]
    """Added tokens at which a text may be cut; empty: none."""
    guard_start: bool
    """What stands at the start of a text has other ids than elsewhere."""
    words: Lines | None
    """The text between may be cut in front of spaces, and so around the ends of lines; None: nowhere."""
    note: str
    """Why texts cannot be cut at added tokens; "" when they can."""


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NO_LETTER = r"[^\r\n\p{L}\p{N}]?"

LLAMA3 = rf"{_CASES}|{_NO_LETTER}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
QWEN2 = rf"{_CASES}|{_NO_LETTER}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"
QWEN35 = rf"{_CASES}|{_NO_LETTER}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
O200K = (
    rf"{_NO_LETTER}{_UPPER}*{_LOWER}+{_CASES}?|{_NO_LETTER}{_UPPER}+{_LOWER}*{_CASES}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
TEKKEN = (
    rf"{_NO_LETTER}{_UPPER}*{_LOWER}+|{_NO_LETTER}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}"
)

_WORD_PATTERNS = {
    GPT2: Lines.BEGIN_WORDS,
    LLAMA3: Lines.END_WORDS,
    QWEN2: Lines.END_WORDS,
    QWEN35: Lines.END_WORDS,
    O200K: Lines.END_WORDS,
    TEKKEN: Lines.END_WORDS,
    DEEPSEEK3: Lines.END_WORDS,
}
_PATTERNS_WITHOUT_SPACES = frozenset((r"\p{N}{1,3}", r"\p{N}", "[一-龥぀-ゟ゠-ヿ]+", "[一-龥\u0800-一가-퟿]+"))
"""Steps of sequences that only cut further, at characters that are no spaces."""

_BY_ITSELF = {
    *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation", "Split"),
    *("UnicodeScripts", "Whitespace", "WhitespaceSplit"),
}
"""Kinds of pre-tokenizers that look at nothing but the text given to them, Metaspace's start aside."""


def kind_of(description: str) -> TokenizerKind:
    """The kind of the tokenizer that describes itself so (`tokenizers.Tokenizer.to_str()`)."""
    about = json.loads(description)
    steps = list(_steps(about["pre_tokenizer"], "pretokenizers"))
    guard_start = any(step["type"] == "Metaspace" and step.get("prepend_scheme") == "first" for step in steps)
    note = _obstacle(about, steps)
    cuts = () if note else _cuts(about["added_tokens"])
    if not note and not cuts:
        note = "it has no added token at which texts can be cut"
    return TokenizerKind(cuts, guard_start, _words(about, steps), note)


def _obstacle(about: Json, steps: Sequence[Json]) -> str:
    if cast("Json", about["model"]).get("dropout"):
        return "its tokens are chosen at random (dropout)"
    strange = next((step["type"] for step in steps if step["type"] not in _BY_ITSELF), None)
    return f"its pre-tokenizer {strange!r} is not known" if strange else ""


def _steps(part: object, children: str) -> Iterator[Json]:
    """The steps of a normalizer or pre-tokenizer, sequences unfolded."""
    if not isinstance(part, Mapping):
        return
    if part["type"] != "Sequence":
        yield part
        return
    for child in part[children]:
        yield from _steps(child, children)


def _cuts(added: Sequence[Json]) -> tuple[str, ...]:
    """The added tokens that are found wherever they stand, and that change nothing beside them."""
    first = [token for token in added if not token["normalized"]]
    texts = [str(token["content"]) for token in first]
    return tuple(
        text
        for token, text in zip(first, texts, strict=True)
        if not (token["lstrip"] or token["rstrip"] or token["single_word"])
        and _is_apart(text)
        and not any(_hides(other, text) for other in texts)
    )


def _is_apart(text: str) -> bool:
    """Neither end is a space, which a neighbour may take, or part of a word, which a neighbour may mind."""
    return bool(text) and not re.match(r"[\s\w]", text[0]) and not re.match(r"[\s\w]", text[-1])


def _hides(other: str, text: str) -> bool:
    """Whether `text` may go unnoticed because `other`, which begins before it or is longer, is taken."""
    if other == text:
        return False
    return text in other or any(other.endswith(text[:size]) for size in range(1, min(len(text), len(other))))


def _words(about: Json, steps: Sequence[Json]) -> Lines | None:
    model = cast("Json", about["model"])
    normal = all(step["type"] == "NFC" for step in _steps(about["normalizer"], "normalizers"))
    plain = not any(
        token["lstrip"] or token["rstrip"] or re.search(r"\s", str(token["content"]))
        for token in cast("Sequence[Json]", about["added_tokens"])
    )
    if model["type"] != "BPE" or model.get("dropout") or not normal or not plain or not steps:
        return None
    lines: set[Lines] = set()
    for step in steps:
        found = _pattern(step)
        if found is None:
            return None
        if found in _WORD_PATTERNS:
            lines.add(_WORD_PATTERNS[found])
    return lines.pop() if len(lines) == 1 else None


def _pattern(step: Json) -> str | None:
    """The pattern by which a step splits, "" for one that leaves spaces alone; None: not known."""
    if step["type"] == "Digits":
        return ""
    if step["type"] == "ByteLevel" and not step["add_prefix_space"]:
        return GPT2 if step["use_regex"] else ""
    if step["type"] != "Split" or step["behavior"] != "Isolated" or step["invert"]:
        return None
    pattern = cast("Json", step["pattern"]).get("Regex")
    if pattern in _PATTERNS_WITHOUT_SPACES:
        return ""
    return str(pattern) if pattern in _WORD_PATTERNS else None
