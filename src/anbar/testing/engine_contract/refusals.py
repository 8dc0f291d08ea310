"""Checks of what vLLM refuses of a request: status, type, parameter and words.

`checked` sends bodies that differ from a good one in the named fields. A wanted text may have `…` for what
depends on the model, and `{length}` for its context length.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from anbar.testing.engine_contract.target import Json, Target, call, context_length, refused

COMPLETIONS, CHATS, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
_GOOD: dict[str, Json] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 4, "temperature": 0},
    CHATS: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "temperature": 0},
    EMBEDDINGS: {"input": "a"},
    TOKENIZE: {},
    DETOKENIZE: {},
}
NO_OBJECT = "Input should be a valid dictionary or object to extract fields from"
VALUE, TYPE = "BadRequestError", "Bad Request"
"""Error types: a value that vLLM refuses; a body that does not fit the fields' types."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Fields over a good body, and the error they must give."""

    fields: Json
    message: str
    param: str | None = None
    kind: str = VALUE


def value(name: str, given: object, message: str, *, shown: object = None) -> Refusal:
    """A field whose value is refused with its name, and with the value where vLLM repeats it."""
    tail = f"(parameter={name})" if shown is None else f"(parameter={name}, value={shown})"
    return Refusal({name: given}, f"{message} {tail}", name)


def plain(name: str, given: object, message: str) -> Refusal:
    """A field whose value is refused in words alone."""
    return Refusal({name: given}, message)


def typed(name: str, given: object, kind: str, message: str, shown: str, *, ctx: str = "") -> Refusal:
    """A field that has the wrong type, which is one error; `shown` is the input as it is repeated."""
    where = f"body.{name}"
    text = f"{{'type': '{kind}', 'loc': '{where}', 'msg': {message!r}, 'input': {shown!r}{ctx}}}"
    return Refusal({name.partition(".")[0]: given}, f"1 validation error:\n  {text}", where, TYPE)


def checked(target: Target, path: str, rows: Iterable[Refusal]) -> None:
    """Send each row's body; all that differs is told at once."""
    wrong = [said for row in rows if (said := _difference(target, path, row))]
    assert not wrong, "\n".join(wrong)


def _difference(target: Target, path: str, row: Refusal) -> str:
    body = {"model": target.model, **_GOOD[path], **row.fields}
    try:
        error = refused(call(target, "POST", path, body), 400)
    except (AssertionError, OSError, ValueError, KeyError) as problem:
        return f"{path} {_brief(row.fields)}: {problem}"
    wanted = row.message
    if "{length}" in wanted:
        wanted = wanted.replace("{length}", str(context_length(target)))
    pattern = ".*".join(re.escape(part) for part in wanted.split("…"))
    same = re.fullmatch(pattern, error["message"], re.DOTALL)
    if same and (error["type"], error["param"]) == (row.kind, row.param):
        return ""
    return f"{path} {_brief(row.fields)}: {error}, not {row.kind} {row.param} {wanted!r}"


def _brief(fields: Json) -> str:
    text = str(fields)
    return text if len(text) < 100 else f"{text[:100]}…"
