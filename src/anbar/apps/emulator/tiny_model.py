"""A model directory that needs no download: a tiny tokenizer that an emulator and a router can both load.

Byte-level BPE with a handful of merges and a ChatML template: a Persian or Hindi character is two or three
tokens, so answers really do split characters across tokens. There are no weights.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>' + '\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
"""The template of SmolLM2 and many others, less its default system message, plus tools and thinking."""

# A few merges, so that English words are fewer tokens than bytes; Ġ is the byte-level alphabet's space.
_MERGES = (
    *(("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("e", "r"), ("a", "n"), ("an", "d")),
    *(("Ġ", "and"), ("o", "r"), ("e", "n"), ("Ġ", "a"), ("Ġ", "s"), ("r", "e"), ("o", "u"), ("Ġ", "w")),
)


def write_tiny_model(directory: Path) -> Path:
    """Write the tiny model to `directory` (made if need be) and return it; the same bytes every time."""
    directory.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [END_OF_TEXT, TURN_START, TURN_END, *alphabet, *("".join(pair) for pair in _MERGES)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (END_OF_TEXT, TURN_START, TURN_END)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
        "chat_template": CHATML,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(vocabulary)}))
    return directory
