"""Checks of /v1/chat/completions beyond the plain answer: fields, log-probabilities, tools, open ends."""

import re

from anbar.testing.engine_contract.completions import USAGE
from anbar.testing.engine_contract.samples import block_size
from anbar.testing.engine_contract.target import (
    Json,
    Reply,
    Target,
    call,
    chat,
    chunks,
    long_prompt,
    needs,
    nonce,
    ok,
    refused,
)

_WHOLE = {
    *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
    *("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params"),
    "metrics",
}
_CHOICE = {
    *("index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"),
}
_MESSAGE = {
    *("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def check_chat_fields(target: Target) -> None:
    """A whole answer and the chunks of a stream have vLLM's fields, no more and no fewer."""
    page = ok(chat(target, nonce(), max_tokens=2, ignore_eos=True))
    assert set(page) == _WHOLE, page
    (choice,) = page["choices"]
    assert set(choice) == _CHOICE, choice
    assert set(choice["message"]) == _MESSAGE, choice
    assert set(page["usage"]) == USAGE, page
    assert re.fullmatch("chatcmpl-[0-9a-f]{16}", page["id"]), page["id"]
    role, *middle, last = chunks(chat(target, nonce(), max_tokens=2, ignore_eos=True, stream=True))
    head = {"id", "object", "created", "model", "choices"}
    assert set(role) == {*head, "prompt_token_ids", "prompt_text"}, role
    assert all(set(chunk) == head for chunk in middle), middle
    assert set(last) == {*head, "system_fingerprint"}, last
    part = {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert set(role["choices"][0]) == part - {"token_ids"}, role
    assert all(set(chunk["choices"][0]) == part for chunk in middle), middle
    assert set(last["choices"][0]) == {*part, "stop_reason"}, last
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in (*middle, last))


def check_chat_logprobs(target: Target) -> None:
    """`logprobs` gives each token with its bytes, `top_logprobs` that many alternatives."""
    text = nonce()
    fields: Json = {"max_tokens": 3, "ignore_eos": True, "logprobs": True, "skip_special_tokens": False}
    for top in (0, 2):
        choice = ok(chat(target, text, top_logprobs=top, **fields))["choices"][0]
        content = choice["logprobs"]["content"]
        assert len(content) == 3
        for entry in content:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
            assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
            assert entry["logprob"] <= 0
            assert len(entry["top_logprobs"]) == top
            assert all(set(other) == {"token", "logprob", "bytes"} for other in entry["top_logprobs"])
        shown = "".join(entry["token"] for entry in content)
        assert "�" in shown or shown == choice["message"]["content"]
    role, *stream = chunks(chat(target, text, top_logprobs=2, stream=True, **fields))
    assert role["choices"][0]["logprobs"] is None
    streamed = [entry for chunk in stream for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert [entry["token"] for entry in streamed] == [entry["token"] for entry in content]


def check_chat_choices(target: Target) -> None:
    """`n` choices are in order; a stream begins with the role of each and ends each once."""
    fields = {"n": 2, "temperature": 1, "max_tokens": 2, "ignore_eos": True}
    page = ok(chat(target, nonce(), **fields))
    assert [choice["index"] for choice in page["choices"]] == [0, 1]
    assert page["usage"]["completion_tokens"] == 4
    options = {"include_usage": True}
    *stream, last = chunks(chat(target, nonce(), stream=True, stream_options=options, **fields))
    roles = [chunk["choices"][0] for chunk in stream[:2]]
    assert [(role["index"], role["delta"].get("role")) for role in roles] == [
        (0, "assistant"),
        (1, "assistant"),
    ]
    ended = [c["index"] for chunk in stream for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ended) == [0, 1]
    assert last["usage"]["completion_tokens"] == 4


def check_chat_token_ids(target: Target) -> None:
    """`return_token_ids` and `return_prompt_text` show what the model saw, once in a stream."""
    text = nonce()
    fields = {"max_tokens": 2, "ignore_eos": True, "return_token_ids": True, "return_prompt_text": True}
    page = ok(chat(target, text, **fields))
    assert len(page["choices"][0]["token_ids"]) == 2
    assert text in page["prompt_text"]
    body = {"model": target.model, "prompt": page["prompt_text"], "add_special_tokens": False}
    assert ok(call(target, "POST", "/tokenize", body))["tokens"] == page["prompt_token_ids"]
    role, *rest = chunks(chat(target, text, stream=True, **fields))
    assert role["prompt_token_ids"] == page["prompt_token_ids"]
    assert role["prompt_text"] == page["prompt_text"]
    shown = [token for chunk in rest for token in chunk["choices"][0]["token_ids"]]
    assert shown == page["choices"][0]["token_ids"]


def check_open_ends(target: Target) -> None:
    """Without a generation prompt the answer has the last message's role; a final message is continued
    without its end; both at once are refused; `echo` repeats it."""
    messages = [{"role": "user", "content": nonce()}, {"role": "assistant", "content": "One, two"}]
    closed = {"add_generation_prompt": False}
    going = {**closed, "continue_final_message": True}
    ended = _ask(target, messages, **closed)
    opened = _ask(target, messages, **going)
    asked = _ask(target, messages)
    assert ended["prompt_text"].startswith(opened["prompt_text"])
    assert opened["prompt_text"].endswith("One, two")
    assert asked["prompt_text"].startswith(ended["prompt_text"])
    assert len(asked["prompt_text"]) > len(ended["prompt_text"])
    for page, wanted in ((ended, closed), (opened, going), (asked, {})):
        body = {"model": target.model, "messages": messages, **wanted}
        assert ok(call(target, "POST", "/tokenize", body))["tokens"] == page["prompt_token_ids"]
    user = _ask(target, messages[:1], **closed)
    assert user["choices"][0]["message"]["role"] == "user"
    echoed = _ask(target, messages, echo=True, **going)
    answer = opened["choices"][0]["message"]["content"]
    assert echoed["choices"][0]["message"]["content"] == "One, two" + answer
    error = refused(_send(target, messages, continue_final_message=True), 400)
    assert error["message"].startswith("continue_final_message and add_generation_prompt are not compatible")


def check_tools_in_prompts(target: Target) -> None:
    """Tools, calls and results are rendered by the model's template, the same for /tokenize; with the choice
    `none` no engine refuses them."""
    arguments = '{"city": "Pune"}'
    asked = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    messages: list[Json] = [
        {"role": "user", "content": f"{nonce()} How is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "call-1", "content": "sunny"},
    ]
    page = _ask(target, messages, tools=TOOLS, tool_choice="none")
    body = {"model": target.model, "messages": messages, "tools": TOOLS}
    assert ok(call(target, "POST", "/tokenize", body))["tokens"] == page["prompt_token_ids"]


def check_created_tokens(target: Target) -> None:
    """A chat's usage says how many tokens of its prompt were put into the cache: whole blocks, without those
    that were there. Offload tiers may have had them."""
    needs(not target.offloads, "its tiers may have them")
    size = block_size(target)
    text, salt = long_prompt(3 * size), nonce()
    for first in (True, False):
        usage = ok(chat(target, text, cache_salt=salt))["usage"]
        whole = usage["prompt_tokens"] // size * size
        details = usage["prompt_tokens_details"]
        assert details["created_cache_tokens"] == whole - details["cached_tokens"], usage
        assert (details["cached_tokens"] == 0) == first, usage


def check_content_parts(target: Target) -> None:
    """Text given in parts is joined by newlines."""
    first, second = nonce(), nonce()
    parts = [{"type": "text", "text": first}, {"type": "text", "text": second}]
    split = _ask(target, [{"role": "user", "content": parts}])
    joined = _ask(target, [{"role": "user", "content": f"{first}\n{second}"}])
    assert split["prompt_token_ids"] == joined["prompt_token_ids"]


def _send(target: Target, messages: object, **fields: object) -> Reply:
    body = {"model": target.model, "messages": messages, "max_tokens": 2, "temperature": 0, **fields}
    return call(target, "POST", "/v1/chat/completions", body)


def _ask(target: Target, messages: object, **fields: object) -> Json:
    shown = {"return_token_ids": True, "return_prompt_text": True, "ignore_eos": True}
    return ok(_send(target, messages, **shown, **fields))
