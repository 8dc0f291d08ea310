"""Checks of token ids that are not in the vocabulary, wherever a request may have ids.

Source: vLLM 0.32 `sampling_params.py`, `v1/engine/input_processor.py`.
"""

from anbar.testing.engine_contract.refusals import (
    CHATS,
    COMPLETIONS,
    DETOKENIZE,
    TOKENIZE,
    TYPE,
    Refusal,
    checked,
    plain,
    typed,
    value,
)
from anbar.testing.engine_contract.target import Json, Target, call, chunks, complete, ok

_FAR = 10**9
_LOW = "Input should be greater than or equal to 0"
_LIST = "Input should be a valid list"
_INTEGER = "Input should be a valid integer, unable to parse string as an integer"
_ALLOWED = "allowed_token_ids contains out-of-vocab token id!"


def check_refused_ids(target: Target) -> None:
    """/tokenize wants a prompt or messages, /detokenize a list of ids that are not negative; what is in no
    vocabulary has no text there, what is in no tokenizer's numbers is refused."""
    missing = (
        "{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of 2 items>'}"
    )
    first = (
        "{'type': 'string_type', 'loc': 'body.prompt', 'msg': 'Input should be a valid string', 'input': '5'}"
    )
    row = Refusal({"prompt": 5}, f"2 validation errors:\n  {first}\n  {missing}", "body.prompt", TYPE)
    checked(target, TOKENIZE, [row])
    rows = (
        typed("tokens.0", [-1], "greater_than_equal", _LOW, "-1", ctx=", 'ctx': {'ge': 0}"),
        typed("tokens", "x", "list_type", _LIST, "x"),
        typed("tokens.0", ["x"], "int_parsing", _INTEGER, "x"),
        typed("tokens", None, "list_type", _LIST, "None"),
        plain("tokens", [2**40], "number too large to fit in target type"),
    )
    checked(target, DETOKENIZE, rows)
    body = {"model": target.model, "tokens": [_FAR]}
    assert ok(call(target, "POST", DETOKENIZE, body)) == {"prompt": ""}


def check_refused_prompt_ids(target: Target) -> None:
    """A prompt of ids that the model has not."""
    rows = [
        plain("prompt", prompt, f"Token id {far} is out of vocabulary")
        for far in (_FAR, 2**70)
        for prompt in ([far], [[5], [far]])
    ]
    checked(target, COMPLETIONS, rows)


def check_refused_sampling_ids(target: Target) -> None:
    """Ids that steer sampling: out of vocabulary, above or below."""
    for far in (_FAR, -1):
        row = [far]
        text = f"token_id(s) {row} in {{}} contain out-of-vocab token ids. Vocabulary size: …"
        rows = (
            value("stop_token_ids", row, text.format("stop_token_ids"), shown=row),
            value("logit_bias", {str(far): 1}, text.format("logit_bias"), shown=row),
            value("allowed_token_ids", row, _ALLOWED, shown=row),
        )
        for path in (COMPLETIONS, CHATS):
            checked(target, path, rows)


def check_late_refusals(target: Target) -> None:
    """What is found only when the stream has begun is one error event, then [DONE]; the status is 200."""
    shown = f"(parameter=allowed_token_ids, value=[{_FAR}])"
    late: tuple[tuple[object, Json, str, str | None], ...] = (
        ([_FAR], {}, f"Token id {_FAR} is out of vocabulary", None),
        ("a", {"allowed_token_ids": [_FAR]}, f"{_ALLOWED} {shown}", "allowed_token_ids"),
    )
    for prompt, fields, message, param in late:
        (event,) = chunks(complete(target, prompt, stream=True, **fields))
        error = event["error"]
        wanted = (message, "BadRequestError", param, 400)
        assert (error["message"], error["type"], error["param"], error["code"]) == wanted, error
    assert complete(target, "a", temperature=-1, stream=True).status == 400
