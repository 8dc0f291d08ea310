"""The types of requests' fields, and pydantic's errors as vLLM words them.

Source: vLLM 0.32 `entrypoints/openai/{chat_completion,completion}/protocol.py`,
`entrypoints/serve/tokenize/protocol.py` and `entrypoints/serve/exception_handling/handlers/validation.py`.
Conversion is pydantic's own: "4" is a number, "yes" is true. Fields that nobody knows are let be.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from anbar.apps.emulator.errors import ApiError, Json
from anbar.apps.emulator.message_models import ChatMessage

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


class JsonSchema(Body):
    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuralTagFormat(Body):
    type: Literal["structural_tag"]
    format: Any


class StructuralTag(Body):
    begin: str
    structural_tag_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    end: str


class LegacyStructuralTagFormat(Body):
    type: Literal["structural_tag"]
    structures: list[StructuralTag]
    triggers: list[str]


class RepetitionDetection(Body):
    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class StructuredOutputs(Body):
    """Fields of a dataclass of vLLM's, which allows no others."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


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
    use_beam_search: bool = False
    length_penalty: float = 1.0
    spaces_between_special_tokens: bool = True
    truncation_side: Literal["left", "right"] | None = None
    logprob_token_ids: list[int] | None = None
    response_format: ResponseFormat | StructuralTagFormat | LegacyStructuralTagFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    routed_experts_prompt_start: int = Field(default=0, ge=0)
    ec_transfer_params: dict[str, Any] | None = None
    repetition_detection: RepetitionDetection | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None


class Completion(Generation):
    prompt: list[Token] | list[list[Token]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    n: int = 1
    suffix: str | None = None
    prompt_embeds: bytes | list[bytes] | None = None
    add_special_tokens: bool = True


class Function(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(Body):
    type: Literal["function"] = "function"
    function: Function
    defer_loading: bool | None = None


class NamedFunction(Body):
    name: str


class NamedToolChoice(Body):
    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none"] | Literal["auto"] | Literal["required"] | NamedToolChoice | None


class Templated(Body):
    """What is rendered by a chat template."""

    messages: list[ChatMessage]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class Chat(Templated, Generation):
    tools: list[Tool] | None = None
    tool_choice: ToolChoice = "none"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    documents: list[dict[str, str]] | None = None
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
    tools: list[Tool] | None = None
    return_token_strs: bool | None = False


class _Encoding(BaseModel):
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] = "float32"
    endianness: Literal["native", "big", "little"] = "native"
    dimensions: int | None = None
    use_activation: bool | None = None


class _Pooling(Body):
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    truncation_side: Literal["left", "right"] | None = None
    request_id: str = ""
    priority: int = Field(default=0, ge=-_INT64 - 1, le=_INT64)
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None


class _Input(BaseModel):
    input: list[int] | list[list[int]] | str | list[str]
    add_special_tokens: bool = True


class _Template(BaseModel):
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None


class _Messages(_Template):
    messages: list[ChatMessage]


Chats = Annotated[Sequence[Annotated[list[ChatMessage], Field(min_length=1)]], Field(min_length=1)]


class EmbedInput(_Pooling, _Input, _Encoding):
    """Fields come in the order of the bases from the last one on, which is that of errors."""


class EmbedChat(_Pooling, _Messages, _Encoding):
    pass


class EmbedChats(_Pooling, _Template, _Encoding):
    messages: Chats


class EmbedChatInput(EmbedChat):
    input: list[ChatMessage]


class EmbedChatsInput(EmbedChats):
    input: Chats


EMBED = (EmbedInput, EmbedChat, EmbedChats, EmbedChatInput, EmbedChatsInput)


class Detokenize(Body):
    tokens: list[Annotated[int, Field(ge=0, le=_INT64)]]


class LoadAdapter(Body):
    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadAdapter(Body):
    lora_name: str
    lora_int_id: int | None = None


class SleepQuery(BaseModel):
    level: Annotated[int, Field(ge=0, le=2)] = 1
    mode: Literal["abort", "wait", "keep"] = "abort"


class ResetQuery(BaseModel):
    reset_running_requests: bool = False
    reset_external: bool = False


Query = TypeVar("Query", bound=BaseModel)


def typed_query(query: Mapping[str, str], kind: type[Query]) -> Query:
    """The parameters of a path; ApiError where they do not fit."""
    try:
        return kind.model_validate(query)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False), "query") from error


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


def fits(body: Json, kind: type[Body]) -> dict[str, object] | None:
    """As `typed`; None when the body does not fit."""
    try:
        return _converted(body, kind.model_validate(body, from_attributes=True))
    except ValidationError:
        return None


def _converted(body: Json, model: Body) -> dict[str, object]:
    known = model.__dict__  # a look into it costs nothing; pydantic's own ways take longer than validation
    converted = dict(body)
    for name in model.model_fields_set & known.keys():
        value = known[name]
        converted[name] = plain(value) if isinstance(value, BaseModel | list) else value
    return converted


def plain(value: object) -> object:
    """Models as dictionaries."""
    if isinstance(value, list):
        return [plain(one) for one in value] if value and isinstance(value[0], BaseModel) else value
    return value.model_dump(by_alias=True) if isinstance(value, BaseModel) else value


_MOST_ERRORS = 10
_MOST_INPUT_CHARS = 200
_KINDS = frozenset(
    (
        *("str", "int", "float", "bool", "bytes", "list", "dict", "nullable", "function-before"),
        *("ResponseFormat", "StructuralTagFormat", "LegacyStructuralTagFormat", "NamedToolChoice"),
    )
)
"""Segments of pydantic's locations that name branches of a type rather than fields, and are left out."""


def _refusal(errors: list[Any], part: str = "body") -> ApiError:
    label = "error" if len(errors) == 1 else "errors"
    lines = [f"{len(errors)} validation {label}:"]
    lines += [f"  {_shown(error, part)}" for error in errors[:_MOST_ERRORS]]
    if len(errors) > _MOST_ERRORS:
        lines.append(f"  ...and {len(errors) - _MOST_ERRORS} more {label}")
    return ApiError("\n".join(lines), kind="Bad Request", param=location(errors[0]["loc"], part))


def _shown(error: Any, part: str) -> str:
    shown = {"type": error["type"], "loc": location(error["loc"], part), "msg": error["msg"]}
    shown["input"] = summary(error["input"])
    if "ctx" in error:
        shown["ctx"] = error["ctx"]
    return str(shown)


def location(segments: tuple[int | str, ...], part: str = "body") -> str:
    """Where in a part of the request an error is."""
    names = map(str, segments)
    return ".".join((part, *(name for name in names if name not in _KINDS and not set(name) & set("[](){}"))))


def summary(value: object) -> str:
    """An input as an error repeats it: containers by their size."""
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _MOST_INPUT_CHARS else text[:_MOST_INPUT_CHARS] + "...[truncated]"
