"""Whatever a client sends that cannot be served is a 4xx in OpenAI's shape and reaches no engine."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.harness import Answer, Raw
from tests.integration.stack import CHAT, COMPLETIONS, MODEL, Stack, chat, completion
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def stack(common: Stack) -> AsyncIterator[Stack]:
    yield common
    assert common.num_seen == 0, "a bad request reached an engine"
    await common.assert_idle()


def assert_refused(answer: Answer, status: int = 400) -> dict[str, object]:
    assert answer.status == status, answer.body[:500]
    assert answer.headers["content-type"].startswith("application/json")
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert not any(word in answer.body for word in (b"Traceback", b'File "', b".py", b"0x"))
    return error


MESSAGE = {"role": "user", "content": "a"}
BAD_BODIES: dict[str, tuple[str, object]] = {
    "nothing": (CHAT, b""),
    "not json": (CHAT, b'{"model": "fake-model", "messages": ['),
    "trailing garbage": (COMPLETIONS, b'{"model": "fake-model", "prompt": "a"} x'),
    "not an object": (CHAT, b"[]"),
    "a number": (COMPLETIONS, b"42"),
    "invalid utf-8": (COMPLETIONS, b'{"model": "fake-model", "prompt": "\xff\xfe"}'),
    "lone surrogate": (COMPLETIONS, b'{"model": "fake-model", "prompt": "\\ud800"}'),
    "not a number": (COMPLETIONS, b'{"model": "fake-model", "prompt": "a", "temperature": NaN}'),
    "deep nesting": (CHAT, b'{"model": "fake-model", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep unknown field": (
        CHAT,
        b'{"model": "fake-model", "messages": [{"role": "user", "content": "a"}], "x": '
        + b'{"a":' * 50_000
        + b"1"
        + b"}" * 50_000
        + b"}",
    ),
    "no model": (CHAT, {"messages": [MESSAGE]}),
    "model is a number": (CHAT, chat("a", model=7)),
    "model is null": (CHAT, chat("a", model=None)),
    "no messages": (CHAT, {"model": MODEL}),
    "messages is text": (CHAT, {"model": MODEL, "messages": "a"}),
    "messages is empty": (CHAT, {"model": MODEL, "messages": []}),
    "message is text": (CHAT, {"model": MODEL, "messages": ["a"]}),
    "message without role": (CHAT, {"model": MODEL, "messages": [{"content": "a"}]}),
    "content is a number": (CHAT, chat([{"role": "user", "content": 3}])),
    "content is an object": (CHAT, chat([{"role": "user", "content": {"text": "a"}}])),
    "a part is a number": (CHAT, chat([{"role": "user", "content": [3]}])),
    "a part has no type": (CHAT, chat([{"role": "user", "content": [{"text": "a"}]}])),
    "role is a number": (CHAT, chat([{"role": 3, "content": "a"}])),
    "empty prompt": (COMPLETIONS, completion("")),
    "an empty prompt among others": (COMPLETIONS, completion(["a", ""])),
    "empty list of tokens": (COMPLETIONS, completion([[1], []])),
    "token is no integer": (COMPLETIONS, completion([1.5])),
    "max_tokens is zero": (COMPLETIONS, completion("a", max_tokens=0)),
    "max_completion_tokens is zero": (CHAT, chat("a", max_completion_tokens=0)),
    "temperature is three": (CHAT, chat("a", temperature=3)),
    "presence_penalty is three": (CHAT, chat("a", presence_penalty=3)),
    "frequency_penalty is three": (CHAT, chat("a", frequency_penalty=-3)),
    "stream_options without stream": (CHAT, chat("a", stream_options={"include_usage": True})),
    "logit_bias for text": (COMPLETIONS, completion("a", logit_bias={"a": 1})),
    "logit_bias is text": (COMPLETIONS, completion("a", logit_bias={"1": "x"})),
    "stop holds a number": (COMPLETIONS, completion("a", stop=[3])),
    "seed is text": (COMPLETIONS, completion("a", seed="x")),
    "logprobs is text": (COMPLETIONS, completion("a", logprobs="x")),
    "top_logprobs is text": (CHAT, chat("a", logprobs=True, top_logprobs="x")),
    "no prompt": (COMPLETIONS, {"model": MODEL}),
    "empty prompts": (COMPLETIONS, completion([])),
    "prompt is an object": (COMPLETIONS, completion({"text": "a"})),
    "mixed prompt": (COMPLETIONS, completion(["a", 1])),
    "negative token": (COMPLETIONS, completion([1, -5])),
    "max_tokens is text": (COMPLETIONS, completion("a", max_tokens="4")),
    "max_tokens is negative": (COMPLETIONS, completion("a", max_tokens=-1)),
    "max_tokens exceeds the context": (COMPLETIONS, completion("a", max_tokens=1_000_000)),
    "stream is text": (CHAT, chat("a", stream="yes")),
    "temperature is text": (CHAT, chat("a", temperature="hot")),
    "temperature is negative": (CHAT, chat("a", temperature=-1)),
    "n is zero": (CHAT, chat("a", n=0)),
    "top_p is two": (CHAT, chat("a", top_p=2)),
    "stream_options is text": (CHAT, chat("a", stream=True, stream_options="usage")),
    "stop is a number": (CHAT, chat("a", stop=3)),
    "prompt too long": (COMPLETIONS, completion("the long road " * 5000)),
    "chat too long": (CHAT, chat("the long road " * 5000)),
    "exactly the context": (COMPLETIONS, completion([5] * 8192)),
    "kv fields from a client": (COMPLETIONS, completion("a", kv_transfer_params={"remote_host": "x"})),
    "salt from a client": (COMPLETIONS, completion("a", cache_salt="mine")),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_bad_body(stack: Stack, name: str) -> None:
    """Each kind of wrong body is refused with 400, and the router goes on."""
    path, body = BAD_BODIES[name]
    assert_refused(await stack.post(path, body))
    assert (await stack.get("/health")).status == 200


async def test_unknown_model(stack: Stack) -> None:
    """A model that no engine serves is 404, in the words that OpenAI's clients know."""
    error = assert_refused(await stack.chat("a", model="gpt-nothing"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonl"])
async def test_body_that_is_not_called_json(stack: Stack, kind: str) -> None:
    """As vLLM does, the router refuses a body that is not called JSON, and says which header to send."""
    async with Raw.open(stack.port) as raw:
        body = json.dumps(completion("a"))
        named = f"content-type: {kind}\r\n" if kind else ""
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\n{named}content-length: {len(body)}\r\n\r\n"
        raw.write(f"{head}{body}".encode())
        error = assert_refused(await raw.answer())
    assert error["code"] == "unsupported_media_type"
    assert "Content-Type: application/json" in str(error["message"])


async def test_model_that_is_not_there(stack: Stack) -> None:
    """GET /v1/models/{model} for a model that no engine serves, slashes and all, is 404; POST is 405."""
    for name in ("gpt-nothing", "org/name", "a%2Fb", "%D8%B3", "%FF", "x" * 2000):
        error = assert_refused(await stack.get(f"/v1/models/{name}"), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert_refused(await stack.get("/v1/models/"), 404)
    assert_refused(await stack.post(f"/v1/models/{MODEL}", {}), 405)


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("content-length: 99999999\r\n", 413),
        ("".join(f"x-{i}: v\r\n" for i in range(200)), 431),
        ("x: " + "v" * 40_000 + "\r\n", 431),
    ],
)
async def test_what_is_too_large_can_be_traced(stack: Stack, lines: str, status: int) -> None:
    """A refusal before the request was complete bears the client's id, and is counted by its status."""
    counter = f'anbar_router_malformed_total{{status="{status}"}} '
    before = _value((await stack.get("/metrics")).body.decode(), counter)
    async with Raw.open(stack.port) as raw:
        raw.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-request-id: big-1\r\n{lines}\r\n".encode())
        answer = await asyncio.wait_for(raw.answer(), PATIENCE_S)
    assert_refused(answer, status)
    assert answer.headers["x-request-id"] == answer.headers["x-anbar-request-id"] == "big-1"
    assert _value((await stack.get("/metrics")).body.decode(), counter) == before + 1


def _value(page: str, counter: str) -> float:
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(counter)), 0.0)


async def test_refusal_without_a_sane_id_gets_one(stack: Stack) -> None:
    """Where no usable id was read, the router makes one."""
    async with Raw.open(stack.port) as raw:
        raw.write(b"NONSENSE\r\n\r\n")
        answer = await asyncio.wait_for(raw.answer(), PATIENCE_S)
    assert len(answer.headers["x-request-id"]) == 32


async def test_unknown_path_and_method(stack: Stack) -> None:
    """An unknown path is 404, a wrong method 405; neither is forwarded."""
    assert_refused(await stack.get("/v1/nothing"), 404)
    assert_refused(await stack.post("/v1/embeddings", {}), 404)
    assert_refused(await stack.get(CHAT), 405)
    assert_refused(await stack.post("/health", {}), 405)


async def test_fifty_megabytes(stack: Stack) -> None:
    """A body of 50 MB is refused with 413 by its declared length, without reading it all."""
    size = 50 * 1024**2
    async with Raw.open(stack.port) as raw:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.write(f"{head}content-length: {size}\r\n\r\n".encode() + b"x" * 65536)
        assert_refused(await asyncio.wait_for(raw.answer(), PATIENCE_S), 413)


async def test_fifty_megabytes_in_chunks(stack: Stack) -> None:
    """Without a declared length, a body is refused once it has grown too long."""
    async with Raw.open(stack.port) as raw:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        raw.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        answer = asyncio.ensure_future(raw.answer())
        part = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        for _ in range(50):
            if answer.done():
                break
            raw.write(part)
            try:
                await asyncio.wait_for(raw.drain(), PATIENCE_S)
            except (ConnectionError, TimeoutError):
                break
            await asyncio.sleep(0)
        assert_refused(await asyncio.wait_for(answer, PATIENCE_S), 413)


async def test_body_ends_too_early(stack: Stack) -> None:
    """A client that declares more than it sends and closes gets nothing through."""
    async with Raw.open(stack.port) as raw:
        body = json.dumps(completion("a")).encode()
        raw.write(
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body) + 10}\r\n\r\n".encode()
            + body
        )
        await raw.drain()
        await raw.abort()
    await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "head",
    [
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: nine\r\n\r\n",
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        "POST {path} HTTP/1.1\r\nhost: x\r\nbad header: 1\r\n\r\n",
        "NONSENSE\r\n\r\n",
        "GET {path} HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
async def test_bad_framing(stack: Stack, head: str) -> None:
    """What is not proper HTTP/1.1 gets a 4xx (or nothing) and a closed connection: no request smuggling."""
    async with Raw.open(stack.port) as raw:
        raw.write(head.format(path=COMPLETIONS).encode("latin-1"))
        data = await raw.read_all()
    assert data == b"" or data.split()[1].startswith(b"4"), data[:200]
    assert b"Traceback" not in data


async def test_too_many_headers(stack: Stack) -> None:
    """Headers without end are refused before they fill the memory."""
    async with Raw.open(stack.port) as raw:
        lines = "".join(f"x-h{i}: {'v' * 100}\r\n" for i in range(2000))
        raw.write(f"GET /health HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
        data = await raw.read_all()
    assert data.startswith(b"HTTP/1.1 431")
