"""What the emulator refuses, with the status, type, parameter and words that a real vLLM 0.32 had."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.adapters.http.message import Request
from anbar.apps.emulator import EmulatedEngine, EngineSettings
from anbar.apps.emulator.body_models import EMBED, Chat, Completion
from anbar.apps.emulator.embedding import parse_embed
from anbar.apps.emulator.errors import ApiError
from anbar.apps.emulator.generate_request import Served, parse_generate
from anbar.apps.emulator.settings import Runner
from anbar.apps.emulator.text import ModelText
from anbar.sim.engine.shape import EngineShape

from .client import call

CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BAD, TYPES = "BadRequestError", "Bad Request"
NAMED = {"type": "function", "function": {"name": "f"}}
SHAPE = EngineShape(16, 100, max_model_len=512)
HUGE = 2**70


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[EmulatedEngine]:
    async with EmulatedEngine(EngineSettings(model_dir=model_dir, port=0, shape=SHAPE)) as engine:
        yield engine


@pytest.fixture
async def pooling(model_dir: Path) -> AsyncIterator[EmulatedEngine]:
    settings = EngineSettings(model_dir=model_dir, port=0, shape=SHAPE, runner=Runner.POOLING)
    async with EmulatedEngine(settings) as engine:
        yield engine


async def refusal(engine: EmulatedEngine, path: str, fields: object) -> tuple[int, str, str | None, str]:
    """Status, type, parameter and message."""
    body = {
        CHAT: {"messages": [{"role": "user", "content": "a"}]},
        COMPLETION: {"prompt": "a"},
        EMBEDDINGS: {},
    }
    given = {**body[path], **fields} if isinstance(fields, dict) else fields
    status, text = await call(engine, path, given)
    event = re.search(r"^data: (.*)$", text, re.MULTILINE)
    error = json.loads(event[1] if event else text)["error"]
    return status, error["type"], error["param"], error["message"]


BOTH = [
    ({"logprobs": -1, "n": 1}, BAD, "logprobs", "Requested sample logprobs of 275, which is greater"),
    ({"prompt_logprobs": -1}, BAD, "prompt_logprobs", "Requested prompt logprobs of 275, which is greater"),
    ({"temperature": float("nan")}, BAD, "temperature", "temperature must be a finite number, got nan."),
    ({"temperature": float("inf")}, BAD, "temperature", "temperature must be a finite number, got inf."),
    ({"repetition_penalty": float("inf")}, BAD, None, "repetition_penalty must be a finite number, got inf."),
    ({"logit_bias": {"--5": 1}}, BAD, "logit_bias", "logit_bias contains key(s) that cannot be converted"),
    ({"logit_bias": {"275": 1}}, BAD, "logit_bias", "token_id(s) [275] in logit_bias contain out-of-vocab"),
    (
        {"allowed_token_ids": [275]},
        BAD,
        "allowed_token_ids",
        "allowed_token_ids contains out-of-vocab token id!",
    ),
    ({"stop_token_ids": [HUGE]}, BAD, "stop_token_ids", f"token_id(s) [{HUGE}] in stop_token_ids contain"),
    ({"truncate_prompt_tokens": 513}, BAD, "truncate_prompt_tokens", "truncate_prompt_tokens=513 cannot be"),
    ({"truncate_prompt_tokens": 0}, BAD, None, "The decoder prompt cannot be empty"),
    ({"truncation_side": "top"}, TYPES, "body.truncation_side", "1 validation error:"),
    ({"response_format": {"type": "x"}}, TYPES, "body.response_format.type", "6 validation errors:"),
    ({"response_format": {"type": "json_schema"}}, BAD, "response_format", "When response_format type is"),
    (
        {"structured_outputs": {}},
        BAD,
        None,
        "You must use one kind of structured outputs constraint but none",
    ),
    ({"structured_outputs": {"json": 5}}, TYPES, "body.structured_outputs.json", "2 validation errors:"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        *(BAD, None, "You can only use one kind of structured outputs constraint but multiple"),
    ),
    ({"logprob_token_ids": [5]}, BAD, "logprob_token_ids", "when using `logprob_token_ids`, `logprobs` must"),
    ({"thinking_token_budget": 1.5}, BAD, "thinking_token_budget", "`thinking_token_budget` must be a non-"),
    ({"thinking_token_budget": 5}, BAD, None, "thinking_token_budget is set but reasoning_config is not"),
    ({"kv_transfer_params": {"a": 2**64}}, BAD, "extra_args", "extra_args integers must be between -2**63"),
    ({"kv_transfer_params": 1}, TYPES, "body.kv_transfer_params", "1 validation error:"),
    ({"model": []}, TYPES, "body.model", "1 validation error:"),
    ({"vllm_xargs": {"a": {}}}, TYPES, "body.vllm_xargs.a", "4 validation errors:"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(("fields", "kind", "param", "words"), BOTH)
async def test_of_both(
    engine: EmulatedEngine, path: str, fields: dict[str, object], kind: str, param: str | None, words: str
) -> None:
    """Chats and completions refuse the same values."""
    if path == CHAT and fields.get("logprobs") == -1:
        fields = {"logprobs": True, "top_logprobs": -1}
    status, *shown, message = await refusal(engine, path, fields)
    assert (status, shown) == (400, [kind, param])
    assert message.startswith(words)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, '{"prompt": "a", "model": "\\ud800"}'),
        (COMPLETION, '{"prompt": "a", "request_id": "\\ud800"}'),
        (CHAT, '{"messages": [], "\\ud800": 1, "model": "\\ud800"}'),
        (COMPLETION, '{"prompt": "a", "seed": %s}' % ("9" * 5000)),
        ("/tokenize", '{"prompt": "a", "x": %s}' % ("9" * 5000)),
        ("/emulator/fault", '{"\\ud800": 1, "kind": "hang"}'),
        ("/emulator/fault", '{"kind": "\\ud800"}'),
        ("/emulator/fault", '{"kind": "status", "message": "\\ud800"}'),
        ("/emulator/answer", '{"text": "\\ud800"}'),
        ("/v1/load_lora_adapter", '{"lora_name": "\\ud800", "lora_path": "/x"}'),
    ],
)
async def test_what_no_answer_could_repeat(model_dir: Path, path: str, body: str) -> None:
    """Halves of surrogates and numbers of thousands of digits are refused, and nothing of them stays."""
    settings = EngineSettings(model_dir=model_dir, port=0, shape=SHAPE, runtime_loras=True)
    async with EmulatedEngine(settings) as engine:
        status, text = await call(engine, path, body.encode())
        assert status == 400, text
        assert (await call(engine, COMPLETION, {"prompt": "a"}))[0] == 200
        assert list(engine.adapters) == []
        assert engine.num_defects == 0


LATE = [
    {"logit_bias": {"275": 1}},
    {"stop_token_ids": [-1]},
    {"prompt": [275]},
    {"prompt": [HUGE], "echo": True},
]


@pytest.mark.parametrize("fields", LATE, ids=str)
async def test_streams_begin_before_the_vocabulary_is_looked_at(
    engine: EmulatedEngine, fields: dict[str, object]
) -> None:
    """vLLM's front end leaves that to the engine's client: the refusal is an event of a stream."""
    assert (await refusal(engine, COMPLETION, fields))[0] == 400
    assert (await refusal(engine, COMPLETION, {**fields, "stream": True}))[0] == 200


CHATS = [
    ({"messages": [1], "add_generation_prompt": False}, TYPES, "body.messages.0.", "8 validation errors:"),
    ({"messages": [{}]}, TYPES, "body.messages.0.", "15 validation errors:"),
    ({"messages": [{"role": "user", "content": 5}]}, TYPES, "body.messages.0.", "22 validation errors:"),
    ({"messages": [{"role": "user", "content": [{}]}]}, BAD, None, "messages: content part 0"),
    ({"messages": None}, BAD, None, "'NoneType' object is not iterable"),
    ({"max_tokens": 0, "echo": True}, BAD, "max_tokens", "max_tokens must be at least 1, got 0."),
    ({"tools": [1]}, TYPES, "body.tools.0", "1 validation error:"),
    (
        {"tools": [NAMED], "tool_choice": NAMED},
        BAD,
        None,
        'tool_choice=function "f" requires --tool-call-parser',
    ),
    (
        {"tools": [NAMED], "tool_choice": {}},
        BAD,
        "tool_choice.function",
        "Invalid value for `function`: `None`",
    ),
    (
        {"tools": [NAMED], "tool_choice": {"function": {}}},
        *(BAD, "tool_choice.function.name", "Expected field `name` in `function`"),
    ),
    ({"reasoning_effort": "nope"}, TYPES, "body.reasoning_effort", "1 validation error:"),
    ({"documents": [{"title": 5}]}, TYPES, "body.documents.0.title", "1 validation error:"),
    ({"chat_template_kwargs": [1]}, TYPES, "body.chat_template_kwargs", "1 validation error:"),
    *(
        (
            {"kv_transfer_params": {"prompt_token_ids": ids}},
            *(
                BAD,
                "kv_transfer_params.prompt_token_ids",
                "`kv_transfer_params['prompt_token_ids']` must be a",
            ),
        )
        for ids in ([], "abc", [-1], ["a"], [1.5], [True])
    ),
    (
        {"kv_transfer_params": {"prompt_token_ids": [275]}, "stream": True},
        *(BAD, "kv_transfer_params.prompt_token_ids", "Token id 275 is out of vocabulary"),
    ),
    (
        {"kv_transfer_params": {"prompt_token_ids": [5] * 513}},
        BAD,
        None,
        "Input length (513) exceeds",
    ),
]


@pytest.mark.parametrize(("fields", "kind", "param", "words"), CHATS)
async def test_of_chats(
    engine: EmulatedEngine, fields: dict[str, object], kind: str, param: str | None, words: str
) -> None:
    """Messages, tools, and a prompt that another engine has computed."""
    status, found, where, message = await refusal(engine, CHAT, fields)
    assert (status, found) == (400, kind)
    assert where == param or (where and param and param.endswith(".") and where.startswith(param))
    assert message.startswith(words)


async def test_what_is_accepted(engine: EmulatedEngine) -> None:
    """A bias is read as Python reads numbers; an echoed chat ignores a prompt that was computed elsewhere,
    and shows its prompt's log-probabilities."""
    for key in (" 5", "+5", "1_0", "٥"):
        status, _ = await call(engine, COMPLETION, {"prompt": "a", "logit_bias": {key: 1}, "max_tokens": 1})
        assert status == 200
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "echo": True}
    status, text = await call(engine, CHAT, {**chat, "kv_transfer_params": {"prompt_token_ids": ["x"]}})
    assert status == 200
    assert len(json.loads(text)["prompt_logprobs"]) == json.loads(text)["usage"]["prompt_tokens"]


EMBEDS = [
    ({"input": [-1]}, BAD, None, "Token id -1 is out of vocabulary"),
    ({"input": [2**32]}, BAD, None, "Token id 4294967296 is out of vocabulary"),
    ({"input": [5] * 513}, BAD, "input_tokens", "This model's maximum context length is 512 tokens."),
    ({"input": "x" * 200_000}, BAD, "input_text", "This model's maximum context length is 512 tokens."),
    ({"input": 5}, TYPES, "body.input", "10 validation errors:"),
    ({"input": "a", "model": []}, TYPES, "body.model", "11 validation errors:"),
    ({"input": "a", "kv_transfer_params": 1, "encoding_format": "x"}, TYPES, "body.encoding_format", "11 "),
    ({"input": "a", "normalize": True}, BAD, "normalize", "Parameter `normalize` was removed"),
    ({"input": "a", "dimensions": 8}, BAD, None, "Model '"),
    (
        {"input": "a", "truncate_prompt_tokens": 513},
        BAD,
        None,
        "truncate_prompt_tokens value is greater",
    ),
    ({"messages": [], "chat_template_kwargs": [1]}, TYPES, "body.input", ""),
]


@pytest.mark.parametrize(("fields", "kind", "param", "words"), EMBEDS)
async def test_of_embeddings(
    pooling: EmulatedEngine, fields: dict[str, object], kind: str, param: str | None, words: str
) -> None:
    """Inputs and chats."""
    status, *shown, message = await refusal(pooling, EMBEDDINGS, fields)
    assert (status, shown) == (400, [kind, param])
    assert message.startswith(words)


async def test_what_is_embedded(pooling: EmulatedEngine) -> None:
    """Chats one by one or many, without the beginning of an answer; a prompt that fills the context; hundreds
    of inputs, which are begun a few at a time."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for fields in (
        {"messages": chat},
        {"messages": chat, "continue_final_message": True},
        {"messages": [chat, chat]},
        {"input": chat},
        {"input": [5] * 512},
        {"input": [[5, 6]] * 300},
        {"input": "a", "kv_transfer_params": 1},
    ):
        status, text = await call(pooling, EMBEDDINGS, fields)
        assert status == 200, text
        given = fields.get("messages", fields.get("input"))
        num = len(given) if isinstance(given, list) and isinstance(given[0], list) else 1
        assert [item["index"] for item in json.loads(text)["data"]] == list(range(num))


ODD = [
    *(None, True, -1, 0, 5, 513, 2**32, 2**64, -HUGE, 0.5, float("nan"), float("inf"), "", "a", "\ud800"),
    *([], {}, [[]], [None], [1], [[1]], ["", "a"], [HUGE], {"a": 1}, {"5": 1}, {"a": HUGE}, "required"),
    *([{"role": "user"}], [{"role": "user", "content": [1]}], [NAMED], NAMED),
    *({"type": "json_object"}, {"json": "5"}, {"choice": [""]}),
]
VALUES = st.sampled_from(ODD) | st.lists(st.sampled_from(ODD), max_size=2)
FIELDS = {
    CHAT: ({"messages": [{"role": "user", "content": "a"}]}, sorted(Chat.model_fields)),
    COMPLETION: ({"prompt": "a"}, sorted(Completion.model_fields)),
    EMBEDDINGS: ({"input": "a"}, sorted({name for kind in EMBED for name in kind.model_fields})),
}


@pytest.mark.parametrize("path", FIELDS)
@settings(max_examples=100)
@given(data=st.data())
def test_whatever_a_value_is_it_is_taken_or_refused(text: ModelText, path: str, data: st.DataObject) -> None:
    """No value of a field makes anything else than a valid request, or a refusal that can be shown."""
    base, names = FIELDS[path]
    body = {**base, **data.draw(st.dictionaries(st.sampled_from(names), VALUES, min_size=1, max_size=3))}
    request = Request(method=b"POST", target=path.encode(), headers=(), body=b"")
    served = Served(("m",), {}, auto_tools=True)
    try:
        if path == EMBEDDINGS:
            parse_embed(request, body, text=text, served=served, size=4)
        else:
            parse_generate(request, body, chat=path == CHAT, text=text, served=served)
    except ApiError as error:
        json.dumps(error.body())
