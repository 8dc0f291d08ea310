"""A request's body as JSON, or vLLM's refusal of it."""

import json
from typing import cast

import msgspec

from anbar.adapters.http.message import Request
from anbar.apps.emulator.body_models import summary
from anbar.apps.emulator.errors import ApiError, FrameworkError, invalid

_decode = msgspec.json.Decoder().decode
dump = msgspec.json.Encoder().encode
"""JSON as the engine writes it: compact, text as UTF-8."""

_OBJECT = "Input should be a valid dictionary or object to extract fields from"


def parse_json(request: Request) -> dict[str, object]:
    """The body as an object; ApiError as FastAPI and vLLM word it."""
    if (request.header(b"content-type") or b"").lower().partition(b";")[0] != b"application/json":
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    body = _loads(request.body) if request.body else None
    if isinstance(body, dict):
        return cast(dict[str, object], body)
    if body is None:
        raise invalid("{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}", "body")
    error = {"type": "model_attributes_type", "loc": "body", "msg": _OBJECT, "input": summary(body)}
    raise invalid(str(error), "body")


def _loads(data: bytes) -> object:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _loads_slowly(data)


def _loads_slowly(data: bytes) -> object:
    """What is odd goes through the parser that vLLM's framework has: it takes some of it, and says where the
    rest is wrong."""
    try:
        found = json.loads(data.decode())
        json.dumps(found, ensure_ascii=False).encode()  # halves of surrogates, which no answer could repeat
        return found
    except json.JSONDecodeError as error:
        raise _not_json(error) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits, too deep
        raise FrameworkError("There was an error parsing the body") from error


def _not_json(error: json.JSONDecodeError) -> ApiError:
    where = f"body.{error.pos}"
    shown = {
        "type": "json_invalid",
        "loc": where,
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": error.msg},
    }
    return invalid(str(shown), where)
