"""What is wrong with a configuration, in words a user can act on."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

KeyPath = tuple[str | int, ...]
"""Where a value stands: ("engines", 0, "launch", "port")."""

_MAX_SHOWN = 80
"""Characters of a wrong value that are repeated in a message."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One complaint; `line` is None until the loader looks it up."""

    path: KeyPath
    message: str
    line: int | None = None


def dotted(path: KeyPath) -> str:
    """`engines[0].launch.port`; the root is ""."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """ "; did you mean `port`?" when one of `allowed` is close to `word`, else ""."""
    close = difflib.get_close_matches(word, sorted(allowed), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


def from_pydantic(errors: Sequence[ErrorDetails], root: type[BaseModel]) -> Iterator[Problem]:
    """Problems for pydantic's `errors` in data that should have become a `root`."""
    paths = [_place(tuple(error["loc"])) for error in errors]
    for error, path in zip(errors, paths, strict=True):
        deeper = any(other != path and other[: len(path)] == path for other in paths)
        if error["type"] == "too_short" and deeper:
            continue  # pydantic counts only the items that were right: an echo of their errors
        if error["type"] == "extra_forbidden":
            yield Problem(path, _unknown_key(path, root))
        elif error["type"] == "missing":
            yield Problem(path, "is required and not given")
        else:
            yield Problem(path, f"is {_shown(path, error['input'])}; {_allowed(error)}")


def _place(loc: KeyPath) -> KeyPath:
    """Where an error is; that of a user's key is at the key itself."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def fields_at(path: KeyPath, root: type[BaseModel]) -> Mapping[str, Any]:
    """The fields of the model at `path`; {} where there is none."""
    model: type[BaseModel] | None = root
    is_users_key = False
    for part in path:
        if isinstance(part, int) or is_users_key:
            is_users_key = False
            continue
        if model is None or part not in model.model_fields:
            return {}
        annotation = model.model_fields[part].annotation
        is_users_key = get_origin(annotation) is dict
        model = next(_models_in(annotation), None)
    return model.model_fields if model is not None else {}


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _unknown_key(path: KeyPath, root: type[BaseModel]) -> str:
    allowed = list(fields_at(path[:-1], root))
    return f"unknown key{suggestion(str(path[-1]), allowed)} (allowed here: {', '.join(allowed)})"


def _shown(path: KeyPath, value: object) -> str:
    if "env" in path:
        return "not shown here"  # may be a secret
    if value is None:
        return "empty"
    text = repr(value)
    if "@" in text and ("://" in text or "nodes" in path):
        return "not shown here"  # an address with a password
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda ctx: "a whole number",
    "float_type": lambda ctx: "a number",
    "finite_number": lambda ctx: "a finite number",
    "string_type": lambda ctx: "text (put it in quotes)",
    "path_type": lambda ctx: "a path",
    "tuple_type": lambda ctx: "a list",
    "dict_type": lambda ctx: "keys and values",
    "model_type": lambda ctx: "keys and values",
    "greater_than": lambda ctx: f"more than {ctx['gt']:g}",
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']}",
    "string_too_short": lambda ctx: "not empty",
    "too_short": lambda ctx: f"at least {ctx['min_length']} item{'s' * (ctx['min_length'] > 1)}",
    "multiple_of": lambda ctx: f"multiples of {ctx['multiple_of']:g}",
    "enum": lambda ctx: ctx["expected"].replace("'", "").replace(" or ", ", "),
    "string_pattern_mismatch": lambda ctx: f"text of the form {ctx['pattern']}",
}


def _allowed(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    words = _WORDS.get(error["type"])
    return f"allowed: {words(context)}" if words else error["msg"]
