"""Checks of what ends an answer: stop strings, stop tokens, least and most tokens."""

from typing import cast

from anbar.testing.engine_contract.target import (
    Json,
    Target,
    call,
    chunks,
    complete,
    context_length,
    needs,
    nonce,
    ok,
    some_tokens,
)

_SHORT = 1024
"""Contexts of at most this many tokens are filled."""
_TEXT = {"max_tokens": 16, "ignore_eos": True, "return_token_ids": True}


def check_stop_strings(target: Target) -> None:
    """The first stop string to appear ends the answer at the token that completes it; it is left out, or
    kept when `include_stop_str_in_output`; all tokens count."""
    prompt, whole, stop = _with_stop(target)
    text = cast(str, whole["text"])
    found = _choice(target, prompt, stop=["\x01never", stop])
    assert found["text"] == text[: text.index(stop)]
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop), found
    count = len(found["token_ids"])
    assert found["token_ids"] == whole["token_ids"][:count]
    kept = _choice(target, prompt, stop=stop, include_stop_str_in_output=True)
    assert kept["text"] == text[: text.index(stop) + len(stop)]
    assert kept["token_ids"] == found["token_ids"]
    nothing: tuple[object, ...] = (None, [], "\x01never")
    for stops in nothing:
        assert _choice(target, prompt, stop=stops) == whole, f"with stop {stops!r}"


def check_stop_strings_in_streams(target: Target) -> None:
    """A stream never shows a part of a stop string that it leaves out: text is held back until it is sure."""
    prompt, whole, stop = _with_stop(target)
    text = cast(str, whole["text"])
    for keep in (False, True):
        end = text.index(stop) + (len(stop) if keep else 0)
        stream = chunks(
            complete(target, prompt, stream=True, stop=stop, include_stop_str_in_output=keep, **_TEXT)
        )
        parts = [chunk["choices"][0] for chunk in stream]
        assert "".join(part["text"] for part in parts) == text[:end], (parts, text, stop)
        assert parts[-1]["stop_reason"] == stop
        assert all(part["stop_reason"] is None for part in parts[:-1])
    held = chunks(complete(target, prompt, stream=True, stop="\x01" * 5, **_TEXT))
    shown, tokens = "", 0
    for part in (chunk["choices"][0] for chunk in held[:-1]):
        shown, tokens = shown + part["text"], tokens + len(part["token_ids"])
        assert shown == text[: len(shown)], (shown, text)
        assert tokens < 16, "the last token comes with the last chunk"
    assert len(shown) <= len(text) - 4, "the last four characters could have been the stop string's"


def check_stop_token_ids(target: Target) -> None:
    """A stop token ends the answer with its id as reason: it counts, and shows its text only when
    `include_stop_str_in_output`; before `min_tokens` it is never generated."""
    prompt, whole, at = _with_new_token(target)
    ids = whole["token_ids"]
    found = _choice(target, prompt, stop_token_ids=[ids[at]])
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", ids[at]), found
    assert found["token_ids"] == ids[: at + 1], found
    kept = _choice(target, prompt, stop_token_ids=[ids[at]], include_stop_str_in_output=True)
    assert kept["token_ids"] == ids[: at + 1]
    assert cast(str, kept["text"]).startswith(found["text"])
    assert cast(str, whole["text"]).startswith(kept["text"])
    late = _choice(target, prompt, stop_token_ids=[ids[at]], min_tokens=at + 3)
    assert len(late["token_ids"]) >= at + 3
    assert ids[at] not in late["token_ids"][: at + 3]
    assert _choice(target, prompt, stop_token_ids=None) == whole


def check_min_tokens(target: Target) -> None:
    """A stop string within the first `min_tokens` tokens does not end the answer."""
    prompt, whole, stop = _with_stop(target)
    early = len(_choice(target, prompt, stop=stop)["token_ids"])
    found = _choice(target, prompt, stop=stop, min_tokens=early)
    assert len(found["token_ids"]) > early, f"{stop!r} is complete with token {early}: {found}"
    assert found["token_ids"] == whole["token_ids"][: len(found["token_ids"])]


def check_length(target: Target) -> None:
    """Without a limit, or with a null one, a completion gets 16 tokens."""
    body = {"model": target.model, "prompt": nonce(), "ignore_eos": True}
    for limit in ({"max_tokens": None}, {}):
        page = ok(call(target, "POST", "/v1/completions", {**body, **limit}))
        assert page["usage"]["completion_tokens"] == 16, page


def check_context_end(target: Target) -> None:
    """Answers end where the model's context does, which is tried where that is not far."""
    length = context_length(target)
    needs(length <= _SHORT, f"its context has more than {_SHORT} tokens")
    page = ok(complete(target, some_tokens(target, length - 2), max_tokens=8, ignore_eos=True))
    assert page["usage"]["completion_tokens"] == 2, page
    assert page["choices"][0]["finish_reason"] == "length"


def _with_stop(target: Target) -> tuple[str, Json, str]:
    """A prompt, its answer, and a string that first appears in the middle of that."""
    for _ in range(20):
        prompt = f"{nonce()} tell"
        whole = _choice(target, prompt)
        text = cast(str, whole["text"])
        words = [word for word in text[1:-4].split()[1:] if len(word) > 2 and "�" not in word]
        if words:
            return prompt, whole, words[0]
    raise AssertionError("no answer has a word in its middle")


def _with_new_token(target: Target) -> tuple[str, Json, int]:
    """A prompt, its answer, and where in the middle of that a token appears for the first time."""
    for _ in range(20):
        prompt = f"{nonce()} tell"
        whole = _choice(target, prompt)
        ids = whole["token_ids"]
        found = [at for at in range(2, len(ids) - 3) if ids[at] not in ids[:at]]
        if found:
            return prompt, whole, found[0]
    raise AssertionError("no answer has a new token in its middle")


def _choice(target: Target, prompt: str, **fields: object) -> Json:
    return cast(Json, ok(complete(target, prompt, **{**_TEXT, **fields}))["choices"][0])
