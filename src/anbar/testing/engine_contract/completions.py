"""Checks of /v1/completions beyond the plain answer: echo, log-probabilities, token ids, n, batches, ids."""

import re
from typing import cast

from anbar.testing.engine_contract.target import Json, Target, call, chat, chunks, complete, nonce, ok, tokens

_WHOLE = {
    *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
    *("kv_transfer_params", "ec_transfer_params", "metrics"),
}
_CHOICE = {
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs"),
    *("prompt_token_ids", "routed_experts"),
}
_CHUNK_CHOICE = {
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"),
}
USAGE = {
    *("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"),
    "completion_tokens_details",
}


def check_completion_fields(target: Target) -> None:
    """A whole answer and the chunks of a stream have vLLM's fields, no more and no fewer."""
    page = ok(complete(target, nonce(), max_tokens=2, ignore_eos=True))
    assert set(page) == _WHOLE, page
    assert re.fullmatch("cmpl-[0-9a-f]{16}", page["id"]), page["id"]
    assert set(page["choices"][0]) == _CHOICE, page
    assert set(page["usage"]) == USAGE, page
    details = {"cached_tokens", "created_cache_tokens", "multimodal_tokens"}
    assert set(page["usage"]["prompt_tokens_details"]) == details, page
    assert page["system_fingerprint"].startswith("vllm-"), page
    empty = ("service_tier", "kv_transfer_params", "ec_transfer_params")
    assert all(page[name] is None for name in empty), page
    assert (page["metrics"] is not None) == target.timed, page
    *first, last = chunks(complete(target, nonce(), max_tokens=2, ignore_eos=True, stream=True))
    head = {"id", "object", "created", "model", "choices"}
    assert all(set(chunk) == head for chunk in first), first
    assert set(last) == {*head, "system_fingerprint"}, last
    assert last["system_fingerprint"] == page["system_fingerprint"]
    for chunk in (*first, last):
        assert chunk["object"] == "text_completion"
        assert set(chunk["choices"][0]) == _CHUNK_CHOICE, chunk


def check_echo(target: Target) -> None:
    """`echo` puts the prompt before the answer, in the first chunk of a stream; max_tokens 0 then shows the
    prompt alone, though one token is generated and counted."""
    prompt = f"{nonce()} echo"
    plain = _text(target, prompt, max_tokens=3, ignore_eos=True)
    assert _text(target, prompt, max_tokens=3, ignore_eos=True, echo=True) == prompt + plain
    page = ok(complete(target, prompt, max_tokens=0, echo=True))
    assert page["choices"][0]["text"] == prompt
    assert page["choices"][0]["finish_reason"] == "length"
    assert page["usage"]["completion_tokens"] == 1, page["usage"]
    hidden = ok(complete(target, prompt, max_tokens=3, ignore_eos=True, echo=True, return_token_ids=True))
    assert hidden["choices"][0]["text"] == plain, "the ids show the prompt, the text no longer does"
    stream = chunks(complete(target, prompt, max_tokens=3, ignore_eos=True, echo=True, stream=True))
    texts = [chunk["choices"][0]["text"] for chunk in stream]
    assert texts[0].startswith(prompt), texts
    assert "".join(texts) == prompt + plain


def check_logprobs(target: Target) -> None:
    """`logprobs` k: for each token its text, its value, up to k+1 alternatives, and where its text begins."""
    prompt = nonce()
    fields = {"max_tokens": 3, "ignore_eos": True, "logprobs": 2, "skip_special_tokens": False}
    choice = ok(complete(target, prompt, **fields))["choices"][0]
    seen = cast(Json, choice["logprobs"])
    assert set(seen) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert [len(seen[name]) for name in sorted(seen)] == [3] * 4, seen
    shown = "".join(seen["tokens"])
    assert "�" in shown or shown == choice["text"], "but for parts of characters, tokens make up the text"
    assert all(value <= 0 for value in seen["token_logprobs"])
    for token, value, top in zip(seen["tokens"], seen["token_logprobs"], seen["top_logprobs"], strict=True):
        assert 1 <= len(top) <= 3
        assert top[token] == value
    starts = [sum(map(len, seen["tokens"][:index])) for index in range(3)]
    assert seen["text_offset"] == starts
    stream = chunks(complete(target, prompt, stream=True, **fields))
    parts = [chunk["choices"][0]["logprobs"] for chunk in stream]
    assert [offset for part in parts for offset in part["text_offset"]] == starts
    assert [token for part in parts for token in part["tokens"]] == seen["tokens"]


def check_logprobs_as_ids(target: Target) -> None:
    """`return_tokens_as_token_ids` names tokens by id, in the alternatives too."""
    fields = {"logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True, "ignore_eos": True}
    choice = ok(complete(target, nonce(), max_tokens=2, **fields))["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(key.startswith("token_id:") for top in choice["logprobs"]["top_logprobs"] for key in top)


def check_echo_logprobs(target: Target) -> None:
    """With `echo` the prompt's tokens have log-probabilities too, but for the first."""
    page = ok(complete(target, nonce(), max_tokens=2, ignore_eos=True, echo=True, logprobs=1))
    seen = page["choices"][0]["logprobs"]
    assert len(seen["tokens"]) == page["usage"]["prompt_tokens"] + 2
    assert seen["token_logprobs"][0] is None
    assert seen["top_logprobs"][0] is None
    assert all(value <= 0 for value in seen["token_logprobs"][1:])
    assert page["choices"][0]["prompt_logprobs"] is not None


def check_prompt_logprobs(target: Target) -> None:
    """`prompt_logprobs`: one entry per prompt token, null for the first, else values by token id."""
    prompt = nonce()
    ids = tokens(target, prompt)
    choice = ok(complete(target, prompt, max_tokens=1, prompt_logprobs=1))["choices"][0]
    first, *rest = choice["prompt_logprobs"]
    assert first is None
    assert len(rest) == len(ids) - 1
    for token, entry in zip(ids[1:], rest, strict=True):
        assert set(entry[str(token)]) == {"logprob", "rank", "decoded_token"}
        assert 1 <= len(entry) <= 2


def check_token_ids(target: Target) -> None:
    """`return_token_ids`: the prompt's ids and the answer's, which detokenize to its text (but for a last
    character that is not whole); in a stream the prompt's come once, with the first chunk."""
    prompt = nonce()
    fields = {"max_tokens": 4, "ignore_eos": True, "return_token_ids": True, "skip_special_tokens": False}
    choice = ok(complete(target, prompt, **fields))["choices"][0]
    assert choice["prompt_token_ids"] == tokens(target, prompt)
    assert len(choice["token_ids"]) == 4
    body = {"model": target.model, "tokens": choice["token_ids"]}
    whole = ok(call(target, "POST", "/detokenize", body))["prompt"]
    assert whole.rstrip("\ufffd") == choice["text"], "a character that the limit cuts is not shown"
    first, *rest = [chunk["choices"][0] for chunk in chunks(complete(target, prompt, stream=True, **fields))]
    assert first["prompt_token_ids"] == choice["prompt_token_ids"]
    assert all(part["prompt_token_ids"] is None for part in rest)
    assert [token for part in (first, *rest) for token in part["token_ids"]] == choice["token_ids"]


def check_prompts_of_ids(target: Target) -> None:
    """A prompt given as ids is the same as its text; lists of ids are a batch."""
    first, second = f"{nonce()} a", f"{nonce()} b c"
    pages = [ok(complete(target, given)) for given in (first, tokens(target, first))]
    assert pages[0]["choices"][0]["text"] == pages[1]["choices"][0]["text"]
    batch = [tokens(target, first), tokens(target, second)]
    page = ok(complete(target, batch, return_token_ids=True))
    assert [choice["prompt_token_ids"] for choice in page["choices"]] == batch
    assert page["usage"]["prompt_tokens"] == sum(map(len, batch))


def check_choices(target: Target) -> None:
    """Choices of a batch are ordered by prompt, then by n; a prompt counts once, however many choices."""
    prompts = [f"{nonce()} a", f"{nonce()} b c d"]
    fields = {"n": 2, "temperature": 1, "max_tokens": 2, "ignore_eos": True}
    page = ok(complete(target, prompts, return_token_ids=True, **fields))
    ids = [tokens(target, prompt) for prompt in prompts]
    assert [choice["index"] for choice in page["choices"]] == [0, 1, 2, 3]
    assert [choice["prompt_token_ids"] for choice in page["choices"]] == [ids[0], ids[0], ids[1], ids[1]]
    assert page["usage"]["prompt_tokens"] == sum(map(len, ids))
    options = {"include_usage": True}
    *stream, last = chunks(complete(target, prompts, stream=True, stream_options=options, **fields))
    finished = [chunk["choices"][0] for chunk in stream if chunk["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in finished) == [0, 1, 2, 3]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == page["usage"][name], name


def check_transfer_params(target: Target) -> None:
    """`kv_transfer_params` is for the engine's connector, which gives nothing back; in a chat it may carry
    the prompt's ids, which are then used as they are."""
    params = {"anbar": {"v": 1}}
    assert ok(complete(target, nonce(), kv_transfer_params=params))["kv_transfer_params"] is None
    ids = tokens(target, nonce())
    given = {"kv_transfer_params": {"prompt_token_ids": ids}, "return_token_ids": True}
    assert ok(chat(target, "not this", **given))["prompt_token_ids"] == ids


def check_request_ids(target: Target) -> None:
    """An answer's id is the caller's: from the header, else from the body; the header comes back in the
    answer only where the engine is told so."""
    name = nonce()
    body = {"model": target.model, "prompt": "a", "max_tokens": 1, "request_id": f"{name}-body"}
    reply = call(target, "POST", "/v1/completions", body, {"x-request-id": name})
    assert ok(reply)["id"] == f"cmpl-{name}"
    assert reply.headers.get("x-request-id") == (name if target.request_ids else None)
    assert ok(call(target, "POST", "/v1/completions", body))["id"] == f"cmpl-{name}-body"
    for path in ("/health", "/nothing"):
        given = call(target, "GET", path).headers.get("x-request-id")
        assert (given is not None) == target.request_ids, path
    if target.request_ids:
        assert call(target, "GET", "/health", headers={"x-request-id": name}).headers["x-request-id"] == name


def _text(target: Target, prompt: str, **fields: object) -> str:
    return cast(str, ok(complete(target, prompt, **fields))["choices"][0]["text"])
