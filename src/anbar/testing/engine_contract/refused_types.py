"""Checks of bodies that do not fit the fields' types: pydantic's errors, as vLLM words them.

Source: vLLM 0.32 `entrypoints/serve/exception_handling/handlers/validation.py`.
"""

from dataclasses import replace

from anbar.testing.engine_contract.refusals import (
    CHATS,
    COMPLETIONS,
    NO_OBJECT,
    TOKENIZE,
    TYPE,
    Refusal,
    checked,
    typed,
)
from anbar.testing.engine_contract.target import Target, call, complete, ok, refused

_INTEGER = "Input should be a valid integer, unable to parse string as an integer"
_NUMBER = "Input should be a valid number, unable to parse string as a number"
_BOOLEAN = "Input should be a valid boolean, unable to interpret input"
_STRING = "Input should be a valid string"
_DICTIONARY = "Input should be a valid dictionary"
_LIST = "Input should be a valid list"
_BOTH = (
    typed("model", 5, "string_type", _STRING, "5"),
    typed("max_tokens", "many", "int_parsing", _INTEGER, "many"),
    typed("max_tokens", [4], "int_type", "Input should be a valid integer", "<list of 1 items>"),
    typed(
        "max_tokens",
        4.5,
        "int_from_float",
        "Input should be a valid integer, got a number with a fractional part",
        "4.5",
    ),
    typed("n", "x", "int_parsing", _INTEGER, "x"),
    typed("temperature", "hot", "float_parsing", _NUMBER, "hot"),
    typed("top_p", "x", "float_parsing", _NUMBER, "x"),
    typed("top_k", "x", "int_parsing", _INTEGER, "x"),
    typed("seed", "x", "int_parsing", _INTEGER, "x"),
    typed(
        "seed",
        2**64,
        "less_than_equal",
        "Input should be less than or equal to 9223372036854775807",
        "18446744073709551616",
        ctx=", 'ctx': {'le': 9223372036854775807}",
    ),
    typed("stream", "x", "bool_parsing", _BOOLEAN, "x"),
    typed("stream", 2, "bool_parsing", _BOOLEAN, "2"),
    typed("ignore_eos", None, "bool_type", "Input should be a valid boolean", "None"),
    typed("min_tokens", "x", "int_parsing", _INTEGER, "x"),
    typed("min_tokens", None, "int_type", "Input should be a valid integer", "None"),
    typed(
        "truncate_prompt_tokens",
        -2,
        "greater_than_equal",
        "Input should be greater than or equal to -1",
        "-2",
        ctx=", 'ctx': {'ge': -1}",
    ),
    typed("logit_bias.5", {"5": "x"}, "float_parsing", _NUMBER, "x"),
    typed("stop_token_ids", 5, "list_type", _LIST, "5"),
    typed("stop_token_ids.0", ["x"], "int_parsing", _INTEGER, "x"),
    typed("user", 5, "string_type", _STRING, "5"),
    typed("request_id", None, "string_type", _STRING, "None"),
    typed("session_id", 5, "string_type", _STRING, "5"),
    typed("priority", "x", "int_parsing", _INTEGER, "x"),
    typed("logit_bias", [1], "dict_type", _DICTIONARY, "<list of 1 items>"),
    typed("kv_transfer_params", "x", "dict_type", _DICTIONARY, "x"),
    typed("return_token_ids", "x", "bool_parsing", _BOOLEAN, "x"),
    Refusal(
        {"stop": 5},
        "2 validation errors:\n"
        f"  {{'type': 'string_type', 'loc': 'body.stop', 'msg': '{_STRING}', 'input': '5'}}\n"
        f"  {{'type': 'list_type', 'loc': 'body.stop', 'msg': '{_LIST}', 'input': '5'}}",
        "body.stop",
        TYPE,
    ),
    Refusal(
        {"stop": ["a"] * 5},
        "2 validation errors:\n"
        f"  {{'type': 'string_type', 'loc': 'body.stop', 'msg': '{_STRING}', 'input': '<list of 5 items>'}}\n"
        "  {'type': 'too_long', 'loc': 'body.stop', "
        "'msg': 'List should have at most 4 items after validation, not 5', 'input': '<list of 5 items>', "
        "'ctx': {'field_type': 'List', 'max_length': 4, 'actual_length': 5}}",
        "body.stop",
        TYPE,
    ),
    Refusal(
        {"max_tokens": "x", "temperature": "y"},
        "2 validation errors:\n…'loc': 'body.max_tokens'…'loc': 'body.temperature'…",
        "body.max_tokens",
        TYPE,
    ),
)


def check_refused_types(target: Target) -> None:
    """Fields of the wrong type, in completions and chats."""
    for path in (COMPLETIONS, CHATS):
        checked(target, path, _BOTH)


def check_refused_shapes(target: Target) -> None:
    """Prompts and messages of the wrong shape: every branch of their types is tried and told."""
    one = f"{{'type': 'list_type', 'loc': 'body.prompt', 'msg': '{_LIST}', 'input': '5'}}"
    prompt = f"4 validation errors:\n  {one}\n  {one}\n…"
    rows = (
        Refusal({"prompt": 5}, prompt, "body.prompt", TYPE),
        Refusal(
            {"prompt": ["a", 1]}, "5 validation errors:\n…'loc': 'body.prompt.0'…", "body.prompt.0", TYPE
        ),
        Refusal(
            {"prompt": [-1]},
            "4 validation errors:\n  {'type': 'greater_than_equal', …",
            "body.prompt.0",
            TYPE,
        ),
    )
    checked(target, COMPLETIONS, rows)
    options = typed("stream_options", "x", "model_attributes_type", NO_OBJECT, "x")
    checked(target, COMPLETIONS, [replace(options, fields={"stream": True, **options.fields})])
    chats = (
        typed("messages", "hello", "list_type", _LIST, "hello"),
        typed("tools", "x", "list_type", _LIST, "x"),
        typed("chat_template_kwargs", "x", "dict_type", _DICTIONARY, "x"),
        typed("max_completion_tokens", "x", "int_parsing", _INTEGER, "x"),
        typed("logprobs", 5, "bool_parsing", _BOOLEAN, "5"),
    )
    checked(target, CHATS, chats)
    body = {"model": target.model, "max_tokens": 1}
    absent = refused(call(target, "POST", CHATS, body), 400)
    wanted = (
        "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', "
        "'input': '<dict of 2 items>'}"
    )
    assert (absent["message"], absent["param"], absent["type"]) == (wanted, "body.messages", TYPE), absent


def check_bodies(target: Target) -> None:
    """Bodies that are no JSON object, and how the framework says so."""
    invalid = (
        "{{'type': 'json_invalid', 'loc': 'body.{}', 'msg': 'JSON decode error', "
        "'input': '<dict of 0 items>', 'ctx': {{'error': '{}'}}}}"
    )
    missing = "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}"
    shape = "{{'type': 'model_attributes_type', 'loc': 'body', 'msg': '" + NO_OBJECT + "', 'input': '{}'}}"
    bodies: tuple[tuple[bytes, str, str], ...] = (
        (b'{"model": ', invalid.format(10, "Expecting value"), "body.10"),
        (b'{"a": 1} x', invalid.format(9, "Extra data"), "body.9"),
        (b'{"prompt": "a\nb"}', invalid.format(13, "Invalid control character at"), "body.13"),
        (b"", missing, "body"),
        (b"null", missing, "body"),
        (b"[1, 2]", shape.format("<list of 2 items>"), "body"),
        (b"5", shape.format("5"), "body"),
    )
    for body, text, param in bodies:
        error = refused(call(target, "POST", COMPLETIONS, body), 400)
        wanted = (f"1 validation error:\n  {text}", TYPE, param)
        assert (error["message"], error["type"], error["param"]) == wanted, (body, error)
    for body in (b'{"prompt": "\xff"}', b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"):
        reply = call(target, "POST", COMPLETIONS, body)
        assert (reply.status, reply.json) == (400, {"detail": "There was an error parsing the body"}), body[
            :20
        ]


def check_content_types(target: Target) -> None:
    """Only JSON is read, whatever its parameters and case."""
    body = b'{"prompt": "a", "max_tokens": 1}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json ; charset=utf-8"):
        for path in (COMPLETIONS, CHATS, TOKENIZE):
            error = refused(call(target, "POST", path, body, {"content-type": kind}), 400)
            wanted = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            assert (error["message"], error["type"], error["param"]) == (wanted, TYPE, None), kind
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        ok(call(target, "POST", COMPLETIONS, body, {"content-type": kind}))


def check_lenient_types(target: Target) -> None:
    """What is converted rather than refused: numbers as text, 4.0, true; what nobody knows is let be."""
    accepted: tuple[tuple[str, object], ...] = (
        ("max_tokens", "2"),
        ("max_tokens", 2.0),
        ("max_tokens", True),
        ("temperature", "1"),
        ("stream", None),
        ("cache_salt", None),
        ("seed", -1),
        ("nobody_knows", 1),
        ("stream_options", {}),
    )
    for name, given in accepted:
        reply = complete(target, "a", **{"max_tokens": 1, name: given})
        assert reply.status == 200, (name, given, reply.body[:300])
    reply = complete(target, "a", max_tokens=1, stream="true", stream_options={"nobody_knows": 1})
    assert reply.headers["content-type"].startswith("text/event-stream")
