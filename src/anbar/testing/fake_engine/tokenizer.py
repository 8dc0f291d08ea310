"""A tiny tokenizer that an engine and a router can load from the same directory, and how the fake uses it.

Byte-level BPE with a handful of merges and a ChatML template: a Persian or Hindi character is two or three
tokens, so answers really do split characters across tokens. `write_tokenizer` makes the directory; any other
directory with `tokenizer.json` and a chat template (SmolLM2's, say) works as well.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from jinja2 import Environment, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
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

# Enough that common English words take fewer tokens than bytes; Ġ is the byte-level alphabet's space.
_MERGES = (
    *(("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g"), ("e", "r"), ("a", "n"), ("an", "d")),
    *(("Ġ", "and"), ("o", "r"), ("e", "n"), ("Ġ", "a"), ("Ġ", "s"), ("r", "e"), ("o", "u"), ("Ġ", "w")),
)


def write_tokenizer(directory: Path) -> Path:
    """Write the tiny tokenizer to `directory` (made if need be) and return it; the same bytes every time."""
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


_OPEN_END = "[the message goes on here] "
"""Marks where a continued message ends, as `transformers` does; ends with a space on purpose."""


class TemplateError(ValueError):
    """The chat template refused the messages: an engine answers 400."""


def _raise(message: str) -> None:
    raise TemplateError(message)


def _environment() -> Environment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment


def _read_template(directory: Path) -> str:
    separate = directory / "chat_template.jinja"
    if separate.exists():
        return separate.read_text()
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    return cast(str, settings.get("chat_template", CHATML))


class FakeTokenizer:
    """Text and chats to token ids and back, as the engine would."""

    def __init__(self, tokenizer: Tokenizer, template: Template, end_of_turn: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self.end_of_turn = end_of_turn

    @classmethod
    def load(cls, directory: Path) -> "FakeTokenizer":
        """Load `tokenizer.json` and the chat template of `directory`."""
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        settings = json.loads((directory / "tokenizer_config.json").read_text())
        eos = settings.get("eos_token", TURN_END)
        end = tokenizer.token_to_id(eos["content"] if isinstance(eos, dict) else eos)
        if end is None:
            raise ValueError(f"{directory}: the eos token {eos!r} is not in the vocabulary")
        return cls(tokenizer, _environment().from_string(_read_template(directory)), end)

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of plain text; `special` adds what the tokenizer adds to a prompt (here: nothing)."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out; an incomplete character becomes U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def chat_text(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt of a conversation; TemplateError where the template (or an empty list) refuses."""
        if not messages:
            raise TemplateError("list index out of range")
        flat = [_flatten(message) for message in messages]
        if continue_final_message:
            flat[-1]["content"] = f"{flat[-1].get('content') or ''}{_OPEN_END}"
        text = self._template.render(
            messages=flat, add_generation_prompt=add_generation_prompt, **dict(variables or {})
        )
        if not continue_final_message:
            return text
        end = text.rindex(_OPEN_END.strip())
        # A template that strips contents has stripped the mark's space, and would have the message's own.
        return text[:end] if text.startswith(_OPEN_END, end) else text[:end].rstrip()


def _flatten(message: Mapping[str, object]) -> dict[str, object]:
    """Text parts become one string, one part a line, as vLLM does for a template that wants strings."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [str(part.get("text", "")) for part in content if isinstance(part, dict)]
        return {**message, "content": "\n".join(texts)}
    return {**message, "content": "" if content is None else content}


class Detokenizer:
    """Text of a growing token sequence, held back while its last character is incomplete."""

    def __init__(self, tokenizer: FakeTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The text that `token` completes; "" while a character is still open."""
        self._pending.append(token)
        text = self._tokenizer.decode(self._pending)
        if text.endswith("�"):
            return ""
        self._pending.clear()
        return text

    def flush(self) -> str:
        """What is left at the end of an answer: a cut character is U+FFFD, as vLLM shows it."""
        text = self._tokenizer.decode(self._pending) if self._pending else ""
        self._pending.clear()
        return text


@functools.lru_cache(maxsize=16)
def load_shared(directory: Path) -> FakeTokenizer:
    """One loaded tokenizer per directory: fakes of one test share it."""
    return FakeTokenizer.load(directory)
