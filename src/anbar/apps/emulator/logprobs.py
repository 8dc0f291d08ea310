"""Log-probabilities in vLLM's shapes. Their numbers are made up: always the same for the same token.

Source: vLLM 0.32 `_create_completion_logprobs`, `_create_chat_logprobs`.
"""

from collections.abc import Sequence

from anbar.apps.emulator.errors import Json
from anbar.apps.emulator.text import ModelText


def _logprob(token: int) -> float:
    """Of a token that was sampled: between -1.3 and 0."""
    return -((token * 2654435761) % 1024) / 800


_OPEN = "\ufffd"
"""What a decoder shows of a character that is not complete."""


class Logprobs:
    """Log-probabilities of one run of tokens, in their order; each with `num_top` alternatives.

    A token that ends inside a character shows nothing, and the one that completes it shows all of it: joined,
    the tokens are the text.
    """

    def __init__(
        self, text: ModelText, context: Sequence[int], num_top: int, *, as_ids: bool = False
    ) -> None:
        """`context` comes before the run; `as_ids`: tokens are shown as `token_id:<id>`."""
        self._text = text
        self._stream = text.stream(context)
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0

    def completion(self, tokens: Sequence[int], *, first_is_unknown: bool = False) -> Json:
        """The `logprobs` of a completion's choice, or of a chunk of it."""
        offsets: list[int] = []
        shown: list[str] = []
        for token in tokens:
            offsets.append(self._offset)
            shown.append(self._shown(token))
            self._offset += len(shown[-1])
        known: list[float | None] = [_logprob(token) for token in tokens]
        # Backwards: of several that are shown alike, the likeliest counts.
        tops: list[Json | None] = [
            dict(reversed(self._ranked(token, piece))) for token, piece in zip(tokens, shown, strict=True)
        ]
        if first_is_unknown and tokens:
            known[0] = tops[0] = None
        return {"text_offset": offsets, "token_logprobs": known, "tokens": shown, "top_logprobs": tops}

    def chat(self, tokens: Sequence[int]) -> Json:
        """The `logprobs` of a chat's choice, or of a chunk of it."""
        content: list[Json] = []
        for token in tokens:
            piece = self._shown(token)
            tops = [_entry(*pair) for pair in self._ranked(token, piece)[: self._num_top]]
            content.append({**_entry(piece, _logprob(token)), "top_logprobs": tops})
        return {"content": content}

    def prompt(self, tokens: Sequence[int]) -> list[Json | None]:
        """`prompt_logprobs`: by token id, nothing for the first token."""
        pieces = [self._shown(token) for token in tokens]
        return [None, *(self._by_id(*pair) for pair in zip(tokens[1:], pieces[1:], strict=True))]

    def _by_id(self, token: int, piece: str) -> Json:
        ranked = [(token, _logprob(token), piece)]
        ranked += [(other, value, self._alone(other)) for other, value in self._others(token)]
        return {
            str(other): {"logprob": value, "rank": rank, "decoded_token": shown}
            for rank, (other, value, shown) in enumerate(ranked, 1)
        }

    def _ranked(self, token: int, piece: str) -> list[tuple[str, float]]:
        """The sampled token, which is the likeliest, and the alternatives."""
        others = [(self._alone(other), value) for other, value in self._others(token)]
        return [(piece, _logprob(token)), *others]

    def _others(self, token: int) -> list[tuple[int, float]]:
        """Neighbours in the vocabulary, each less likely than the one before."""
        size = self._text.vocab_size
        return [((token + step) % size, _logprob(token) - 2.0 * step) for step in range(1, self._num_top)]

    def _shown(self, token: int) -> str:
        """The next token of the run."""
        pushed = self._stream.push(token)
        if self._as_ids:
            return f"token_id:{token}"
        alone = self._text.decode([token])
        return pushed if alone.endswith(_OPEN) else alone

    def _alone(self, token: int) -> str:
        if self._as_ids:
            return f"token_id:{token}"
        alone = self._text.decode([token])
        return "" if alone.endswith(_OPEN) else alone


def _entry(piece: str, value: float) -> dict[str, object]:
    return {"token": piece, "logprob": value, "bytes": list(piece.encode())}
