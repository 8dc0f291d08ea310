"""Parsing and judging request bodies: what is refused, with which status, code and parameter."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.http.openai import (
    ClientKv,
    Endpoint,
    check_length,
    check_output_length,
    is_beyond_context,
    parse,
)
from anbar.core.errors import RequestError
from anbar.core.refusals import unknown_model

CHAT, TEXT = Endpoint.CHAT, Endpoint.COMPLETIONS
HELLO = [{"role": "user", "content": "سلام، नमस्ते"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **fields}).encode()


def text(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "p", **fields}).encode()


def refused(endpoint: Endpoint, body: bytes, kv: ClientKv = ClientKv.REFUSE) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(endpoint, body, kv)
    return caught.value


def status(endpoint: Endpoint, body: bytes) -> int:
    try:
        parse(endpoint, body, ClientKv.ALLOW)
    except RequestError as error:
        return error.status
    return 200


def test_chat_is_read() -> None:
    """All that routing needs is there, and nothing else was needed."""
    api = parse(
        CHAT, chat(stream=True, max_completion_tokens=5, tools=[{"type": "function"}]), ClientKv.REFUSE
    )
    assert (api.model, api.stream, api.wants_usage, api.max_output_tokens) == ("m", True, False, 5)
    assert api.body["messages"] == HELLO
    assert api.body["tools"] == [{"type": "function"}]


@pytest.mark.parametrize("prompt", ["one", "", ["one", "two"], [1, 2, 3], [[1], [2, 3]]])
def test_kinds_of_prompt(prompt: object) -> None:
    """String, strings, token ids, lists of token ids."""
    assert parse(TEXT, text(prompt=prompt), ClientKv.REFUSE).body["prompt"] == prompt


def test_embeddings_may_stand_for_a_prompt() -> None:
    """vLLM's prompt_embeds: no prompt is needed then, but a wrong one is still wrong."""
    assert parse(TEXT, text(prompt=None, prompt_embeds="AAAA"), ClientKv.REFUSE).model == "m"
    assert refused(TEXT, text(prompt=3, prompt_embeds="AAAA")).param == "prompt"


@pytest.mark.parametrize(
    ("endpoint", "body", "param", "code"),
    [
        (CHAT, chat(model=3), "model", "invalid_type"),
        (CHAT, chat(model=""), "model", None),
        (CHAT, b'{"messages":[]}', "model", "missing_parameter"),
        (CHAT, b'{"model":"m"}', "messages", "missing_parameter"),
        (CHAT, chat(messages=[]), "messages", "empty_array"),
        (CHAT, chat(messages="hi"), "messages", "invalid_type"),
        (CHAT, chat(messages=[1]), "messages", "invalid_type"),
        (CHAT, chat(messages=[{"content": "x"}]), "messages", "missing_parameter"),
        (CHAT, chat(messages=[{"role": 1}]), "messages", "missing_parameter"),
        (CHAT, chat(stream="yes"), "stream", "invalid_type"),
        (CHAT, chat(max_tokens="5"), "max_tokens", "invalid_type"),
        (CHAT, chat(max_tokens=-1), "max_tokens", "invalid_value"),
        (CHAT, chat(max_tokens=10**30), "max_tokens", "invalid_value"),
        (CHAT, chat(max_completion_tokens=1.5), "max_completion_tokens", "invalid_type"),
        (CHAT, chat(max_completion_tokens=-2), "max_completion_tokens", "invalid_value"),
        (CHAT, chat(n=0), "n", "invalid_value"),
        (CHAT, chat(n="1"), "n", "invalid_type"),
        (CHAT, chat(temperature="hot"), "temperature", "invalid_type"),
        (CHAT, chat(temperature=-0.1), "temperature", "invalid_value"),
        (CHAT, chat(top_p=0), "top_p", "invalid_value"),
        (CHAT, chat(top_p=1.1), "top_p", "invalid_value"),
        (CHAT, chat(stop=3), "stop", "invalid_type"),
        (CHAT, chat(stop=[3]), "stop", "invalid_type"),
        (CHAT, chat(user=3), "user", "invalid_type"),
        (CHAT, chat(tools={}), "tools", "invalid_type"),
        (CHAT, chat(stream_options=[]), "stream_options", "invalid_type"),
        (CHAT, chat(cache_salt="s"), "cache_salt", "unsupported_parameter"),
        (CHAT, chat(kv_transfer_params={}), "kv_transfer_params", "unsupported_parameter"),
        (CHAT, chat(ec_transfer_params={}), "ec_transfer_params", "unsupported_parameter"),
        (CHAT, chat(vllm_xargs={"kv_transfer_params": "x"}), "vllm_xargs", "invalid_value"),
        (TEXT, text(prompt=None), "prompt", "missing_parameter"),
        (TEXT, text(prompt=[]), "prompt", "empty_array"),
        (TEXT, text(prompt=3), "prompt", None),
        (TEXT, text(prompt=["a", 1]), "prompt", None),
        (TEXT, text(prompt=[1, True]), "prompt", None),
        (TEXT, text(prompt=[-1]), "prompt", None),
        (TEXT, text(prompt=[[1], []]), "prompt", None),
        (TEXT, text(prompt=[[1], ["a"]]), "prompt", None),
        (TEXT, b'{"model":"m","prompt":"p","cache\\u005fsalt":"s"}', "cache_salt", "unsupported_parameter"),
    ],
)
def test_wrong_values_are_named(endpoint: Endpoint, body: bytes, param: str, code: str | None) -> None:
    """400 with the field at fault and OpenAI's kind of error."""
    error = refused(endpoint, body)
    assert (error.status, error.param, error.code, error.kind) == (400, param, code, "invalid_request_error")
    assert param in error.message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe{}",
        '{"model":"m","messages":[]}'.encode("utf-16"),
        chat().replace(b'"m"', b'"\xff"'),
        chat()[:-1] + b',"x":"\xff"}',
        chat()[:-1] + b',"x":"\xed\xa0\x80"}',
        chat()[:-1] + b',"x":"\\ud800"}',
        chat()[:-1] + b',"x":"\\ud800 and then much more text"}',
        chat()[:-1] + b',"x":"\\udc00 and then much more text"}',
        chat()[:-1] + b',"temperature":NaN}',
        chat()[:-1] + b',"x":Infinity}',
        chat()[:-1] + b',"temperature":1e999}',
        chat()[:-1] + b',"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 50_000 + b"]" * 50_000 + b"}]}",
        chat() + b"x",
    ],
    ids=lambda body: repr(body[:30]) + str(len(body)),
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """Broken JSON, other encodings, lone surrogates, NaN, nesting without end: 400 and a short message."""
    error = refused(CHAT, body)
    assert error.status == 400
    assert len(error.message) < 300


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    """Whatever the bytes are, either a request comes out or a RequestError."""
    for endpoint in Endpoint:
        assert status(endpoint, body) in (200, 400)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(
    [
        *(
            "model",
            "messages",
            "prompt",
            "stream",
            "stream_options",
            "max_tokens",
            "n",
            "temperature",
            "top_p",
        ),
        *("stop", "user", "cache_salt", "kv_transfer_params", "vllm_xargs", "tools", "echo", "logprobs"),
        *("prompt_embeds", "truncate_prompt_tokens", "prompt_logprobs", "chat_template_kwargs", "other"),
    ]
)


@given(st.dictionaries(_names, _json, max_size=6))
def test_no_object_raises_anything_else(fields: dict[str, object]) -> None:
    """Known names with any JSON value, floats beyond JSON included: a request or a RequestError."""
    for endpoint, base in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "p"})):
        body = json.dumps({"model": "m", **base, **fields}).encode()
        assert status(endpoint, body) in (200, 400)


def test_salt_is_checked_when_allowed() -> None:
    """With client_kv_fields allow, a salt passes if vLLM would take it."""
    assert parse(CHAT, chat(cache_salt="s3"), ClientKv.ALLOW).cache_salt == "s3"
    for salt in ("", "a/b", "a@b", "a\\b", "a\0b", "x" * 129):
        assert refused(CHAT, chat(cache_salt=salt), ClientKv.ALLOW).param == "cache_salt"


@pytest.mark.parametrize(
    ("endpoint", "fields", "reads"),
    [
        (TEXT, {"prompt_logprobs": 1}, False),
        (TEXT, {"echo": True, "logprobs": 1}, False),
        (TEXT, {"echo": True}, True),
        (TEXT, {"logprobs": 1}, True),
        (CHAT, {"prompt_logprobs": 0}, False),
        (CHAT, {"logprobs": True, "top_logprobs": 3}, True),
    ],
)
def test_prompt_logprobs_skip_the_cache(endpoint: Endpoint, fields: dict[str, object], reads: bool) -> None:
    """vLLM reads no prefix cache for a request that wants log-probabilities of its prompt."""
    api = parse(endpoint, (chat if endpoint is CHAT else text)(**fields), ClientKv.REFUSE)
    assert api.reads_cache is reads


@pytest.mark.parametrize(
    ("num_tokens", "fields", "fits"),
    [
        (99, {"max_tokens": 100}, True),
        (100, {"max_tokens": 1}, False),
        (101, {}, False),
        (5, {"max_tokens": 101}, False),
        (5, {"max_tokens": 101, "max_completion_tokens": 100}, True),
    ],
)
def test_length_rule_is_vllms(num_tokens: int, fields: dict[str, object], fits: bool) -> None:
    """Of a context of 100 the prompt leaves room for a token and max_tokens fits; together they may not."""
    api = parse(CHAT, chat(**fields), ClientKv.REFUSE)
    if fits:
        check_length(api, num_tokens, 100)
        return
    with pytest.raises(RequestError) as caught:
        check_length(api, num_tokens, 100)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_completion_default_of_16_tokens_counts() -> None:
    """Without max_tokens a completion asks for 16."""
    with pytest.raises(RequestError):
        check_output_length(parse(TEXT, text(), ClientKv.REFUSE), 15)


def test_unknown_model_is_404_and_short() -> None:
    """The client's own text comes back, but not megabytes of it."""
    error = unknown_model("x" * 10_000)
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("endpoint", "fields", "beyond"),
    [
        (TEXT, {"prompt": "x" * 2560}, False),
        (TEXT, {"prompt": "x" * 2561}, True),
        (TEXT, {"prompt": ["x" * 2560, "x" * 2560]}, False),
        (TEXT, {"prompt": ["x", "x" * 2561]}, True),
        (TEXT, {"prompt": [[1] * 9999]}, False),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 2000}] * 2}, True),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 2561}]}]}, True),
        (CHAT, {"messages": [{"role": "user", "content": [{"image_url": {"url": "x" * 9999}}, 1]}]}, False),
    ],
)
def test_text_beyond_any_tokenization(endpoint: Endpoint, fields: dict[str, object], beyond: bool) -> None:
    """A context of 10 tokens holds 2560 characters at most; of several prompts the longest counts; images do
    not."""
    api = parse(endpoint, (chat if endpoint is CHAT else text)(**fields), ClientKv.REFUSE)
    assert is_beyond_context(api, 10) is beyond
