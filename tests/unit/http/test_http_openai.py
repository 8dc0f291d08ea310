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


@pytest.mark.parametrize("prompt", ["one", ["one", "two"], [1, 2, 3], [[1], [2, 3]]])
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
        (TEXT, text(prompt=[[1], []]), "prompt", "invalid_value"),
        (TEXT, text(prompt=[[]]), "prompt", "invalid_value"),
        (TEXT, text(prompt=""), "prompt", "invalid_value"),
        (TEXT, text(prompt=[""]), "prompt", "invalid_value"),
        (TEXT, text(prompt=["a", ""]), "prompt", "invalid_value"),
        (TEXT, text(prompt=[1.5]), "prompt", None),
        (TEXT, text(prompt="", prompt_embeds=[]), "prompt", "invalid_value"),
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
    "content", [3, True, {"a": 1}, [1], [None], [{}], [{"type": 3}], [{"text": "x"}], [{"type": "text"}, []]]
)
def test_wrong_content_is_refused(content: object) -> None:
    """A message's content is text or a list of parts that say what they are; the message is named."""
    error = refused(CHAT, chat(messages=[*HELLO, {"role": "user", "content": content}]))
    assert (error.param, error.code) == ("messages", "invalid_type")
    assert "message 1" in error.message


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        [],
        ["plain text"],
        [{"type": "text", "text": "x"}, {"type": "new", "x": 1}],
        [{"image_url": "http://x"}, {"type": None, "audio_url": "http://x"}],
    ],
)
def test_content_that_vllm_takes(content: object) -> None:
    """Nothing, text, text among parts, kinds that are not known here, and media that need no type."""
    assert parse(CHAT, chat(messages=[{"role": "assistant", "content": content}]), ClientKv.REFUSE)


WRONG_IN_BOTH: dict[str, list[object]] = {
    "max_tokens": [-1, 0, 2**31, 1.5, "5"],
    "n": [0, -1, 1.5, "2"],
    "temperature": [-0.1, 2.1, "hot"],
    "top_p": [0, 1.01, "x"],
    "presence_penalty": [-2.1, 2.1, "x"],
    "frequency_penalty": [-2.1, 2.1, "x"],
    "stream_options": [{"include_usage": True}, {"include_usage": 3}, []],
    "logit_bias": [{"a": 1}, {"1.5": 1}, {"1": "x"}, {"1": None}, [1]],
    "stop": ["", ["a", ""], [3], 3],
    "seed": ["a", 1.5, 2**63, -(2**63) - 1],
    "prompt_logprobs": [-2, "a"],
    "truncate_prompt_tokens": [-2, 10**40, "a"],
    "logprobs": ["a", 1.5, {}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_IN_BOTH.items() for value in values]
)
@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_out_of_vllms_range(endpoint: Endpoint, name: str, value: object) -> None:
    """What vLLM's own checks refuse is refused on both endpoints, and the field is named."""
    error = refused(endpoint, (chat if endpoint is CHAT else text)(**{name: value}))
    assert (error.status, error.param, error.kind) == (400, name, "invalid_request_error")
    assert error.code in ("invalid_type", "invalid_value")


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (TEXT, {"logprobs": -2}, "logprobs"),
        (TEXT, {"prompt_logprobs": 1, "max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (TEXT, {"echo": True, "max_tokens": -1}, "max_tokens"),
        (TEXT, {"n": 2, "temperature": 0}, "n"),
        (CHAT, {"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"top_logprobs": "a", "logprobs": True}, "top_logprobs"),
        (CHAT, {"top_logprobs": -2, "logprobs": True}, "top_logprobs"),
    ],
)
def test_fields_that_depend_on_another(endpoint: Endpoint, fields: dict[str, object], param: str) -> None:
    """Combinations that vLLM refuses."""
    assert refused(endpoint, (chat if endpoint is CHAT else text)(**fields)).param == param


TAKEN_BY_BOTH: list[dict[str, object]] = [
    {"temperature": 2, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2, "max_tokens": 1},
    {"stream_options": {}},
    {"logit_bias": {"1": 1, " 2 ": -200.5}, "stop": [], "seed": -(2**63), "n": 16384},
    {"logit_bias": {}, "stop": "x", "seed": 2**63 - 1, "unheard_of": [{"x": -1}], "top_k": -1},
    dict.fromkeys(("n", "temperature", "top_p", "stop", "seed", "logprobs", "max_tokens")),
]


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (TEXT, {"echo": True, "max_tokens": 0}),
        (TEXT, {"prompt": "", "prompt_embeds": "AA=="}),
        (TEXT, {"use_beam_search": True, "temperature": 9, "presence_penalty": 3, "stop": ""}),
        (TEXT, {"logprobs": -1, "prompt_logprobs": -1}),
        (TEXT, {"stream": True, "prompt_logprobs": 0, "stream_options": {"continuous_usage_stats": True}}),
        (TEXT, {"n": 2, "temperature": 0.5}),
        (CHAT, {"max_completion_tokens": 5, "max_tokens": 0}),
        (CHAT, {"top_logprobs": 0}),
        (CHAT, {"top_logprobs": -1, "logprobs": True}),
        *[(endpoint, fields) for endpoint in Endpoint for fields in TAKEN_BY_BOTH],
    ],
)
def test_what_vllm_takes_is_not_refused(endpoint: Endpoint, fields: dict[str, object]) -> None:
    """The ends of the ranges, null for every field, and what an engine reads otherwise than it seems."""
    assert parse(endpoint, (chat if endpoint is CHAT else text)(**fields), ClientKv.REFUSE).model == "m"


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
        (CHAT, {"messages": [{"role": "user", "content": [{"image_url": {"url": "x" * 9999}}, "x"]}]}, False),
    ],
)
def test_text_beyond_any_tokenization(endpoint: Endpoint, fields: dict[str, object], beyond: bool) -> None:
    """A context of 10 tokens holds 2560 characters at most; of several prompts the longest counts; images do
    not."""
    api = parse(endpoint, (chat if endpoint is CHAT else text)(**fields), ClientKv.REFUSE)
    assert is_beyond_context(api, 10) is beyond
