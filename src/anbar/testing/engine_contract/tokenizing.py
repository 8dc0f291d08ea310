"""Checks of /tokenize and /detokenize with all their options."""

from typing import cast

from anbar.testing.engine_contract.target import Json, Target, call, nonce, ok


def check_tokenize_text(target: Target) -> None:
    """Count, ids and the context's length; the ids' own texts on demand; fields that nobody knows are let
    be; no model need be named."""
    page = _tokenized(target, prompt="store and water")
    assert set(page) == {"count", "max_model_len", "tokens", "token_strs"}
    assert page["token_strs"] is None
    assert page["count"] == len(page["tokens"]) > 0
    named = _tokenized(target, prompt="store and water", return_token_strs=True, nobody_knows=1)
    assert named["tokens"] == page["tokens"]
    assert len(named["token_strs"]) == named["count"]
    assert all(isinstance(text, str) for text in named["token_strs"])
    assert ok(call(target, "POST", "/tokenize", {"prompt": "store and water"})) == page
    assert _tokenized(target, prompt="")["count"] in (0, 1)


def check_tokenize_is_unlimited(target: Target) -> None:
    """A text longer than the context is tokenized all the same."""
    text = "water " * (page_length(target) + 10)
    assert _tokenized(target, prompt=text)["count"] > page_length(target)


def check_tokenize_chats(target: Target) -> None:
    """Messages go through the chat template: with and without the generation prompt, or left open."""
    messages = [{"role": "user", "content": nonce()}, {"role": "assistant", "content": "One, two"}]
    asked = _tokenized(target, messages=messages)["tokens"]
    ended = _tokenized(target, messages=messages, add_generation_prompt=False)["tokens"]
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    opened = _tokenized(target, messages=messages, **fields)["tokens"]
    assert asked[: len(ended)] == ended
    assert len(opened) < len(ended) < len(asked)
    assert ended[: len(opened)] == opened
    named = _tokenized(target, messages=messages, return_token_strs=True)
    assert len(named["token_strs"]) == len(asked)


def check_special_tokens(target: Target) -> None:
    """`add_special_tokens` is on for texts and off for chats, and changes nothing in between."""
    text = nonce()
    with_them = _tokenized(target, prompt=text)["tokens"]
    assert _tokenized(target, prompt=text, add_special_tokens=True)["tokens"] == with_them
    without = _tokenized(target, prompt=text, add_special_tokens=False)["tokens"]
    assert with_them[len(with_them) - len(without) :] == without
    messages = [{"role": "user", "content": text}]
    chat = _tokenized(target, messages=messages)["tokens"]
    assert _tokenized(target, messages=messages, add_special_tokens=False)["tokens"] == chat


def check_detokenize(target: Target) -> None:
    """Ids become their text again; no ids are no text."""
    for text in ("store and water", "سلام नमस्ते"):
        ids = _tokenized(target, prompt=text, add_special_tokens=False)["tokens"]
        assert _detokenized(target, ids) == text
        assert ok(call(target, "POST", "/detokenize", {"tokens": ids})) == {"prompt": text}
    assert _detokenized(target, []) == ""


def page_length(target: Target) -> int:
    """The context's length as /tokenize gives it."""
    return cast(int, _tokenized(target, prompt="a")["max_model_len"])


def _tokenized(target: Target, **fields: object) -> Json:
    return ok(call(target, "POST", "/tokenize", {"model": target.model, **fields}))


def _detokenized(target: Target, ids: list[int]) -> str:
    page = ok(call(target, "POST", "/detokenize", {"model": target.model, "tokens": ids}))
    assert set(page) == {"prompt"}
    return cast(str, page["prompt"])
