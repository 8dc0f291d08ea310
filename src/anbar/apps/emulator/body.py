"""A request's body as JSON, or vLLM's refusal of it."""

from typing import cast

import msgspec

from anbar.adapters.http.message import Request
from anbar.apps.emulator.errors import FrameworkError, Json, invalid

_decode = msgspec.json.Decoder().decode
dump = msgspec.json.Encoder().encode
"""JSON as the engine writes it: compact, text as UTF-8."""


def parse_json(request: Request) -> dict[str, object]:
    """The body as an object; ApiError as FastAPI and vLLM word it."""
    kind = (request.header(b"content-type") or b"").lower().partition(b";")[0].strip()
    if kind != b"application/json":
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    if not request.body:
        raise invalid("{'type': 'missing', 'loc': 'body', 'msg': 'Field required'}", "body")
    try:
        body = _decode(request.body)
    except msgspec.DecodeError as error:
        _refuse_encoding(request.body)
        text = "{'type': 'json_invalid', 'loc': 'body.0', 'msg': 'JSON decode error'}"
        raise invalid(text, "body.0") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise FrameworkError("There was an error parsing the body") from error
    if not isinstance(body, dict):
        raise invalid(
            "{'type': 'model_attributes_type', 'msg': 'Input should be a valid dictionary'}", "body"
        )
    return cast(dict[str, object], body)


def _refuse_encoding(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise FrameworkError("There was an error parsing the body") from error


def text_field(body: Json, name: str) -> str | None:
    """A field of text; ApiError for anything else but null."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    where = f"body.{name}"
    raise invalid(f"{{'type': 'str_type', 'loc': '{where}', 'msg': 'Input should be a valid str'}}", where)
