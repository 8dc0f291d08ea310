"""A model's tokenizer as the emulator uses it: prompts as the router computes them, and text of tokens."""

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers.decoders import DecodeStream

from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer, TokenizerOptions, load_tokenizer
from anbar.apps.emulator.errors import Json
from anbar.core.errors import ConfigError


class ModelText:
    """One model's tokenizer and chat template."""

    def __init__(
        self, prompts: Tokenizer, backend: tokenizers.Tokenizer, spec: "ModelSpec", max_model_len: int
    ) -> None:
        self._prompts = prompts
        self.max_model_len = max_model_len
        self.backend = backend
        self.end_of_turn = spec.end_of_turn
        """The token that ends an answer."""
        self.vocab_size: int = backend.get_vocab_size()
        """Of the tokenizer: what a text may consist of."""
        self.num_logits = spec.num_logits or self.vocab_size
        """Of the model, which may have fewer or more tokens than its tokenizer: what can be generated."""
        self.num_tokens = max(self.vocab_size, self.num_logits)
        """What a prompt of ids may consist of."""

        self.is_matryoshka = spec.is_matryoshka
        """Embeddings can be cut to a part of their dimensions."""

    @functools.cached_property
    def max_chars_per_token(self) -> int:
        """Of the longest token of the vocabulary, as it is written there."""
        return max(map(len, self.backend.get_vocab()))

    def chat(self, body: Json) -> list[int] | NotReproducible:
        """The prompt of a chat."""
        return self._prompts.chat(body)

    def completion(self, body: Json) -> list[int] | NotReproducible:
        """The prompt of a completion of one prompt."""
        return self._prompts.completion(body)

    def words(self, text: str) -> list[int]:
        """Tokens of a text in the middle of others."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the text of `tokens`, special ones included; an incomplete character becomes U+FFFD."""
        return self.backend.decode(list(tokens), skip_special_tokens=False)

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        """Tokens as the vocabulary has them."""
        return [self.backend.id_to_token(token) or "" for token in tokens]

    def stream(self, prompt: Sequence[int]) -> "TextStream":
        """The text of an answer to `prompt`, token by token."""
        return TextStream(self.backend, prompt)


def whole_characters(text: str) -> str:
    """A text without halves of surrogate pairs, which JSON allows, but no tokenizer and no answer."""
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is known of a model from its configuration."""

    end_of_turn: int
    num_logits: int | None
    is_matryoshka: bool


class TextStream:
    """Text of a growing answer: a character is held back until its last token, as vLLM does."""

    __slots__ = ("_backend", "_stream")

    def __init__(self, backend: tokenizers.Tokenizer, prompt: Sequence[int]) -> None:
        self._backend = backend
        # A few tokens are enough to tell whether the answer begins with a space.
        self._stream = DecodeStream(ids=list(prompt[-8:]), skip_special_tokens=True)

    def push(self, token: int) -> str:
        """The text that `token` completes; "" while a character is still open."""
        return self._stream.step(self._backend, token) or ""


@functools.lru_cache(maxsize=16)
def load_text(directory: Path, max_model_len: int) -> ModelText:
    """The tokenizer in `directory`, one for all engines of a process; ConfigError when there is none."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(
            f"--model {directory} has no tokenizer.json: the emulator needs the model's tokenizer"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"--model: {file} is not a tokenizer: {error}") from error
    prompts = load_tokenizer(directory, TokenizerOptions(max_model_len=max_model_len))
    config = _json(directory / "config.json")
    is_matryoshka = bool(config.get("is_matryoshka") or config.get("matryoshka_dimensions"))
    spec = ModelSpec(_end_of_turn(directory, backend), _vocab_size(config), is_matryoshka)
    return ModelText(prompts, backend, spec, max_model_len)


def _end_of_turn(directory: Path, backend: tokenizers.Tokenizer) -> int:
    """What vLLM stops at: the generation config's token, else the tokenizer's."""
    configured = _json(directory / "generation_config.json").get("eos_token_id")
    first = configured[0] if isinstance(configured, list) and configured else configured
    if isinstance(first, int):
        return first
    eos = _json(directory / "tokenizer_config.json").get("eos_token")
    name = eos.get("content") if isinstance(eos, dict) else eos
    found = backend.token_to_id(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"--model {directory}: its configuration names no eos token of its vocabulary")
    return int(found)


def _vocab_size(config: Json) -> int | None:
    """`vocab_size` of the configuration, which models of more than text keep with the text's."""
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        size = part.get("vocab_size")
        if type(size) is int and size > 0:
            return size
    return None


def _json(file: Path) -> dict[str, object]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
