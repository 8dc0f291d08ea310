"""The types of requests' fields, and pydantic's errors as vLLM words them.

Source: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`,
`entrypoints/serve/tokenize/protocol.py` and `entrypoints/serve/exception_handling/handlers/validation.py`.
Conversion is pydantic's own: "4" is a number, "yes" is true. Fields that nobody knows are let be.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from anbar.apps.emulator.errors import ApiError, Json

_INT64 = 2**63 - 1
Seed = Annotated[int, Field(ge=-_INT64 - 1, le=_INT64)]
Token = Annotated[int, Field(ge=0)]
Stop = str | Annotated[list[str], Field(max_length=4)] | None


class Body(BaseModel):
    """Any request."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None


class StreamOptions(Body):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Generation(Body):
    """What completions and chats have in common."""

    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=_INT64)] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    bad_words: list[str] = Field(default_factory=list)
    priority: int = Field(default=0, ge=-_INT64 - 1, le=_INT64)
    request_id: str = ""
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None


class Completion(Generation):
    prompt: list[Token] | list[list[Token]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    n: int = 1
    suffix: str | None = None
    add_special_tokens: bool = True


class Templated(Body):
    """What is rendered by a chat template. Messages are looked at one by one, later."""

    messages: list[Any]
    tools: list[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Chat(Templated, Generation):
    logprobs: bool | None = False
    top_logprobs: Annotated[int, BeforeValidator(lambda given: 0 if given is None else given)] = 0
    max_completion_tokens: int | None = None
    n: int | None = 1
    echo: bool = False
    return_prompt_text: bool | None = None


class TokenizeText(Body):
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChat(Templated):
    return_token_strs: bool | None = False


class Detokenize(Body):
    tokens: list[Annotated[int, Field(ge=0, le=_INT64)]]


def typed(body: Json, *kinds: type[Body]) -> dict[str, object]:
    """The body with its known fields in their types, by the first of `kinds` that it fits; ApiError with the
    errors of all of them when it fits none."""
    errors: list[Any] = []
    for kind in kinds:
        try:
            return _converted(body, kind.model_validate(body, from_attributes=True))
        except ValidationError as error:
            errors += error.errors(include_url=False)
    raise _refusal(errors)


def _converted(body: Json, model: Body) -> dict[str, object]:
    known = model.__dict__  # a look into it costs nothing; pydantic's own ways take longer than validation
    converted = dict(body)
    for name in model.model_fields_set:
        if name in known:
            value = known[name]
            converted[name] = value.model_dump() if isinstance(value, BaseModel) else value
    return converted


_MOST_ERRORS = 10
_MOST_INPUT_CHARS = 200
_KINDS = frozenset(("str", "int", "float", "bool", "list", "dict", "nullable", "function-before"))
"""Segments of pydantic's locations that name branches of a type rather than fields."""


def _refusal(errors: list[Any]) -> ApiError:
    label = "error" if len(errors) == 1 else "errors"
    lines = [f"{len(errors)} validation {label}:"]
    lines += [f"  {_shown(error)}" for error in errors[:_MOST_ERRORS]]
    if len(errors) > _MOST_ERRORS:
        lines.append(f"  ...and {len(errors) - _MOST_ERRORS} more {label}")
    return ApiError("\n".join(lines), kind="Bad Request", param=location(errors[0]["loc"]))


def _shown(error: Any) -> str:
    shown = {"type": error["type"], "loc": location(error["loc"]), "msg": error["msg"]}
    shown["input"] = summary(error["input"])
    if "ctx" in error:
        shown["ctx"] = error["ctx"]
    return str(shown)


def location(segments: tuple[int | str, ...]) -> str:
    """Where in the body an error is."""
    parts = [str(segment) for segment in segments]
    return ".".join(
        ("body", *(part for part in parts if part not in _KINDS and not set(part) & set("[](){}")))
    )


def summary(value: object) -> str:
    """An input as an error repeats it: containers by their size."""
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _MOST_INPUT_CHARS else text[:_MOST_INPUT_CHARS] + "...[truncated]"
