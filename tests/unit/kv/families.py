"""Small tokenizers of the families that models have, trained here on a few sentences."""

from collections.abc import Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from anbar.adapters.vllm.tokenizer_kind import DEEPSEEK3, LLAMA3, O200K, QWEN2, QWEN35, TEKKEN

SENTENCES = [
    "The store's grain is for 2 winters: it's ok, THEY'LL see. don't  know\n\nwhy 1234 x=3\r\n//a/b",
    "سلام دنیا، حال شما چطور است؟ می‌روم به خانه‌ها ۱۲۳",
    "नमस्ते दुनिया, आप कैसे हैं? क्षेत्र १२ ज्ञान",
    *["def f():\n    if x:\n\t\treturn   1 \n \n \t \t"] * 4,
]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>", "<|im_start|>x", "<x<|im_end|>"]
"""The fourth is longer than the first, the fifth hides the second."""

_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _split(*patterns: str) -> Any:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*steps, _BYTES])


def _trained(model: Any, trainer: Any, *, pre_tokenizer: Any = None, normalizer: Any = None) -> Tokenizer:
    raw = Tokenizer(model)
    if pre_tokenizer is not None:
        raw.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        raw.normalizer = normalizer
    raw.train_from_iterator(SENTENCES, trainer)
    return raw


def byte_level(pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    """Byte-level BPE."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    return _trained(models.BPE(), trainer, pre_tokenizer=pre_tokenizer, normalizer=normalizer)


def _sentencepiece(**parts: Any) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", *SPECIAL], initial_alphabet=["▁"], show_progress=False
    )
    return _trained(models.BPE(unk_token="<unk>", fuse_unk=True), trainer, **parts)


def _llama3() -> Tokenizer:
    raw = byte_level(_split(LLAMA3))
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    return raw


def _roberta() -> Tokenizer:
    raw = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<end>", rstrip=True)])
    raw.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("grain")])
    raw.post_processor = processors.RobertaProcessing(("<s>", 2), ("<|im_end|>", 1), add_prefix_space=True)
    return raw


def _wordpiece() -> Tokenizer:
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]", "[CLS]", "[SEP]", *SPECIAL], show_progress=False
    )
    raw = _trained(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        normalizer=normalizers.BertNormalizer(),
    )
    raw.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return raw


def _unigram() -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    return _trained(
        models.Unigram(),
        trainer,
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always"),
        normalizer=normalizers.NFKC(),
    )


_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_SPACES = normalizers.Replace(" ", "▁")

WITH_WORDS: Mapping[str, Tokenizer] = {
    "gpt-2": byte_level(_GPT2),
    "digits": byte_level(pre_tokenizers.Sequence([_DIGITS, _GPT2])),
    "llama-3": _llama3(),
    "qwen-2": byte_level(_split(QWEN2), normalizers.NFC()),
    "qwen-3.5": byte_level(_split(QWEN35), normalizers.NFC()),
    "o200k": byte_level(_split(O200K)),
    "tekken": byte_level(_split(TEKKEN)),
    "deepseek-3": byte_level(_split(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3)),
}
"""Those whose text may be cut in front of spaces."""

WITHOUT_WORDS: Mapping[str, Tokenizer] = {
    "llama-2, legacy": _sentencepiece(normalizer=normalizers.Sequence([normalizers.Prepend("▁"), _SPACES])),
    "llama-2": _sentencepiece(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "gemma": _sentencepiece(
        normalizer=_SPACES, pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "roberta": _roberta(),
    "bert": _wordpiece(),
    "t5": _unigram(),
}
FAMILIES = {**WITH_WORDS, **WITHOUT_WORDS}
