"""Made-up log-probabilities have vLLM's shape, and their tokens joined are the text."""

from anbar.apps.emulator.logprobs import Logprobs
from anbar.apps.emulator.text import ModelText


def test_tokens_joined_are_the_text(text: ModelText) -> None:
    """Also where a character is several tokens: the last of them shows it."""
    said = "water आब می‌روم grain"
    tokens = text.words(said)
    assert len(tokens) > len(said)
    page = Logprobs(text, (), 3).completion(tokens)
    assert "".join(page["tokens"]) == said
    assert page["text_offset"] == [len("".join(page["tokens"][:index])) for index in range(len(tokens))]
    for piece, value, top in zip(page["tokens"], page["token_logprobs"], page["top_logprobs"], strict=True):
        assert top[piece] == value == max(top.values()) <= 0
        assert len(top) <= 3


def test_chunks_continue(text: ModelText) -> None:
    """Told in pieces it is what it is at once."""
    tokens = text.words("water आब")
    whole = Logprobs(text, (), 1).completion(tokens)
    pieces = Logprobs(text, (), 1)
    for name in whole:
        pieces = Logprobs(text, (), 1)
        assert [entry for token in tokens for entry in pieces.completion([token])[name]] == whole[name]


def test_chats_and_prompts(text: ModelText) -> None:
    """A chat's entries have bytes and alternatives; a prompt's first token has no probability."""
    tokens = text.words("grain")
    content = Logprobs(text, (), 2).chat(tokens)["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content) == b"grain"
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in content)
    assert all(not entry["top_logprobs"] for entry in Logprobs(text, (), 0).chat(tokens)["content"])
    first, *rest = Logprobs(text, (), 1).prompt(tokens)
    assert first is None
    assert [next(iter(entry)) for entry in rest] == [str(token) for token in tokens[1:]]


def test_tokens_by_number(text: ModelText) -> None:
    """`return_tokens_as_token_ids` names tokens and alternatives by number."""
    page = Logprobs(text, (), 2, as_ids=True).completion([9, 10])
    assert page["tokens"] == ["token_id:9", "token_id:10"]
    assert all(name.startswith("token_id:") for top in page["top_logprobs"] for name in top)
