"""A log of requests as clients sent them, with their text: lines of
`{"timestamp": 1760000000000, "request": {…}, "output_tokens": 120}`.

`request` is the body of a chat or text completion, `timestamp` its arrival in milliseconds since 1970,
`output_tokens` what was answered (0 or absent: not known). It needs the model's own tokenizer: what prompts
have in common is a matter of tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import xxhash

from anbar.adapters.vllm.tokens import Tokenizer
from anbar.core.blocks import extend_many, root
from anbar.core.errors import ConfigError
from anbar.plan.workload import Asked, Workload

BLOCK = 16
"""Tokens: vLLM's default on GPUs."""
_LONG = 80
"""Characters of a line of text, from which on it is not the same by chance."""
_digest = xxhash.xxh3_64_intdigest


class RequestLine(msgspec.Struct, frozen=True):
    """One request."""

    timestamp: int
    request: dict[str, Any]
    output_tokens: int = 0


decode = msgspec.json.Decoder(RequestLine).decode


class RequestReader:
    """Makes a workload of lines; texts are forgotten as soon as they are read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lines = _Lines()

    def workload(self, entries: Iterable[tuple[str, RequestLine]]) -> Workload:
        """Entries with the place of each, for complaints. Raises ConfigError, which names it."""
        found = sorted((self._asked(where, entry) for where, entry in entries), key=lambda asked: asked.at_s)
        return Workload(found, BLOCK, self._lines.outside_prefix)

    def _asked(self, where: str, entry: RequestLine) -> Asked:
        body = entry.request
        read: Callable[[Mapping[str, object]], object]
        read = self._tokenizer.chat if "messages" in body else self._tokenizer.completion
        if "messages" not in body and "prompt" not in body:
            raise ConfigError(f"{where}: request has neither `messages` nor `prompt`")
        tokens = read(body)
        if not isinstance(tokens, list):
            raise ConfigError(f"{where}: request cannot be tokenized: {getattr(tokens, 'detail', tokens)}")
        if not tokens:
            raise ConfigError(f"{where}: request has no tokens")
        self._lines.read(_text(body))
        chain = extend_many(root(str(body.get("model", ""))), tokens, BLOCK)
        return Asked(entry.timestamp / 1e3, len(tokens), max(0, entry.output_tokens), tuple(chain))


def _text(body: Mapping[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return str(body.get("prompt", ""))
    return "\n".join(_content(message) for message in messages if isinstance(message, dict))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


class _Lines:
    """How much text came again, but behind another beginning: what no cache of prefixes can find."""

    def __init__(self) -> None:
        self._lines: set[int] = set()
        self._chains: set[int] = set()
        self._outside = 0
        self._all = 0

    @property
    def outside_prefix(self) -> float:
        return self._outside / self._all if self._all else 0.0

    def read(self, text: str) -> None:
        chain = 0
        for line in _long_lines(text):
            name = _digest(line.encode())
            chain = _digest(line.encode(), chain)
            self._all += len(line)
            if chain not in self._chains and name in self._lines:
                self._outside += len(line)
            self._chains.add(chain)
            self._lines.add(name)


def _long_lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if len(line) >= _LONG)
