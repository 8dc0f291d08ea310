"""What crosses the router unchanged, and what ends there."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from anbar.apps.emulator import EmulatedEngine, Script
from tests.integration.harness import Raw
from tests.integration.stack import CHAT, COMPLETIONS, MODEL, Setup, Stack, completion, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")
FIELDS: dict[str, object] = {
    "frequency_penalty": 0.25,
    "logit_bias": {"17": -1.5},
    "logprobs": None,
    "max_completion_tokens": 3,
    "n": 1,
    "presence_penalty": -0.5,
    "response_format": {"type": "text"},
    "seed": 1234567890123,
    "stop": ["\n\n", "پایان"],
    "temperature": 0.7,
    "top_p": 0.95,
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "reasoning_effort": "low",
    "include_reasoning": True,
    "user": "u-1",
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "length_penalty": 1.0,
    "stop_token_ids": [2],
    "ignore_eos": False,
    "min_tokens": 1,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "allowed_token_ids": None,
    "bad_words": ["x"],
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "priority": 0,
    "return_token_ids": True,
    "structured_outputs": None,
    "vllm_xargs": {"plugin": "value"},
    "metadata": {"unknown": [1, 2.5e-3, None]},
    "a_field_of_tomorrow": {"deep": [[[]]]},
}
"""OpenAI's and vLLM's fields, and some of neither."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def common(tokenizer_dir: Path, module_dir: Path) -> AsyncIterator[Stack]:
    setup = Setup(
        tokenizer_dir,
        module_dir,
        num_engines=1,
        engine={"api_keys": ("engine-key",)},
        entries=[{"api_key_file": str(module_dir / "key")}],
    )
    (module_dir / "key").write_text("engine-key\n")
    async with running_stack(setup) as running:
        yield running


@pytest.fixture
def engine(stack: Stack) -> EmulatedEngine:
    return stack.engines["e0"]


async def test_request_body_byte_for_byte(stack: Stack, engine: EmulatedEngine) -> None:
    """A body with every field there is, odd spacing and escapes reaches the engine unchanged."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "سلام"}], **FIELDS}
    assert len(FIELDS) >= 33
    sent = json.dumps(body, indent=3, ensure_ascii=True).replace("\n", "\r\n\t").encode() + b" \n"
    answer = await stack.post(CHAT, sent)
    assert answer.status == 200, answer.body
    assert engine.records.seen[-1].body == sent
    assert answer.json["choices"][0]["token_ids"]


async def test_chunked_request_body(stack: Stack, engine: EmulatedEngine) -> None:
    """A body sent in chunks, split inside a character, reaches the engine whole."""
    sent = json.dumps(completion("آب و अंबार"), ensure_ascii=False).encode()
    async with Raw.open(stack.port) as raw:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        for start in range(0, len(sent), 7):
            part = sent[start : start + 7]
            raw.write(b"%x\r\n%b\r\n" % (len(part), part))
            await raw.drain()
        raw.write(b"0\r\n\r\n")
        assert (await raw.answer()).status == 200
    assert engine.records.seen[-1].body == sent


async def test_whole_answer_byte_for_byte(stack: Stack, engine: EmulatedEngine) -> None:
    """An answer with odd spacing, escapes and unknown fields arrives unchanged, and so do its headers."""
    page = {f"field_{i}": [i, "\u0633", None, 1e-7] for i in range(33)}
    body = b"  " + json.dumps(page, indent=1).encode() + b"\n\n"
    headers = ((b"content-type", b"application/json; charset=utf-8"), (b"x-engine-header", b"kept"))
    engine.script(Script((body,), headers=headers))
    answer = await stack.complete("a")
    assert answer.body == body
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-engine-header"] == "kept"
    assert answer.headers["content-length"] == str(len(body))


async def test_stream_byte_for_byte(stack: Stack, engine: EmulatedEngine) -> None:
    """A stream with comments, odd events and chunks cut inside characters arrives unchanged."""
    text = 'data: {"x": "نمی‌دانم"}\n\n: keep-alive\n\nevent: odd\r\ndata:no-space\r\n\r\ndata: [DONE]\n\n'
    data = text.encode()
    chunks = tuple(data[i : i + 5] for i in range(0, len(data), 5))
    engine.script(Script(chunks, headers=((b"content-type", b"text/event-stream"),), chunked=True))
    answer = await stack.post(COMPLETIONS, completion("a", stream=True))
    assert answer.body == data
    assert answer.headers["content-type"] == "text/event-stream"


async def test_engine_errors_pass_unchanged(stack: Stack, engine: EmulatedEngine) -> None:
    """A 4xx of the engine is the answer: its status and its body."""
    body = b'{"error":{"message":"no such tool","type":"BadRequestError","param":null,"code":400}}'
    engine.script(Script((body,), status=400))
    answer = await stack.complete("a")
    assert (answer.status, answer.body) == (400, body)


async def test_secrets_end_at_the_router(stack: Stack, engine: EmulatedEngine) -> None:
    """The client's key, cookies and x-anbar-* headers do not reach the engine; the engine's own key does."""
    headers = {
        "authorization": "Bearer client-secret",
        "cookie": "session=client-secret",
        "x-api-key": "client-secret",
        "x-anbar-engine": "forged",
        "x-anbar-anything": "forged",
        "connection": "keep-alive, x-named",
        "x-named": "hop",
        "te": "trailers",
        "x-mine": "kept",
    }
    answer = await stack.post(COMPLETIONS, completion("a"), headers)
    assert answer.status == 200
    seen = engine.records.seen[-1]
    assert seen.header("authorization") == "Bearer engine-key"
    assert seen.header("x-mine") == "kept"
    assert not seen.header_names & {"cookie", "x-api-key", "te", "x-named"}
    assert not any(name.startswith("x-anbar-") for name in seen.header_names)
    assert not any(b"client-secret" in value or b"forged" in value for _, value in seen.headers)
    assert answer.headers["x-anbar-engine"] == "e0"


async def test_logs_are_discreet(stack: Stack) -> None:
    """One line for each request, with its id, and without its prompt, its key or its headers."""
    headers = {"authorization": "Bearer sk-secret", "x-request-id": "find-me", "cookie": "c=secret"}
    await stack.post(COMPLETIONS, completion("a-private-thought"), headers)
    await stack.post(COMPLETIONS, b'{"model": "a-private-thought"', headers)
    own = [line for line in await stack.logged() if line.get("request_id") == "find-me"]
    assert len(own) == 2
    log = stack.log.getvalue().decode()
    assert not any(word in log for word in ("private", "secret", "engine-key", "Traceback"))


async def test_engine_key_does_not_reach_the_client(stack: Stack) -> None:
    """No endpoint of the router shows an engine's key."""
    for path in ("/admin/engines", "/metrics", "/v1/models", "/ready", "/health"):
        assert b"engine-key" not in (await stack.get(path)).body


async def test_request_ids(stack: Stack, engine: EmulatedEngine) -> None:
    """The client's request id is used everywhere; one that could break a log line is replaced."""
    answer = await stack.post(COMPLETIONS, completion("a"), {"x-request-id": "my-request.7"})
    assert answer.headers["x-request-id"] == answer.headers["x-anbar-request-id"] == "my-request.7"
    assert engine.records.seen[-1].header("x-request-id") == "my-request.7"
    assert answer.json["id"].startswith("cmpl-my-request.7")
    answer = await stack.post(COMPLETIONS, completion("a"), {"x-request-id": "a b\tc" + "x" * 300})
    made = answer.headers["x-request-id"]
    assert " " not in made
    assert engine.records.seen[-1].header("x-request-id") == made
    assert (await stack.get("/health")).headers["x-request-id"]


async def test_query_and_path_are_kept(stack: Stack, engine: EmulatedEngine) -> None:
    """A query string reaches the engine."""
    assert (await stack.post(COMPLETIONS + "?api-version=1", completion("a"))).status == 200
    assert engine.records.seen[-1].target == COMPLETIONS + "?api-version=1"


async def test_contract_headers(stack: Stack) -> None:
    """Every routed answer says which engine, which policy, what was predicted."""
    for answer in (await stack.complete("a"), await stack.post(COMPLETIONS, completion("a", stream=True))):
        assert answer.engine == "e0"
        assert answer.predicted >= 0
        assert answer.headers["x-anbar-policy"] == "predicted_ttft"
        assert "x-anbar-degraded" not in answer.headers
